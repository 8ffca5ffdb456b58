// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory/netbox"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

// readTaken reads the addresses that an inventory says are taken.
func readTaken(call *command.Call, names []string) ([]netbox.Entry, error) {
	lists := make([][]byte, len(names))
	for i, name := range names {
		var err error
		if lists[i], err = call.ReadFile(name); err != nil {
			return nil, fmt.Errorf("read the inventory: %w", err)
		}
	}
	entries, err := netbox.Read(lists...)
	if err != nil {
		return nil, fmt.Errorf("read the inventory %s: %w", strings.Join(names, ", "), err)
	}
	return entries, nil
}

// action is the action for an address of an inventory.
type action int

const (
	toReserve action = iota
	// toUnreserve: an earlier inventory had it, and the present one lacks it.
	toUnreserve
	// toLeave: nothing is to be done, or can be.
	toLeave
	// toRefuse: the inventory says that it is taken, but somebody here has it.
	toRefuse
)

// move is the action for an address; for a range without any address of a pool.
type move struct {
	iprange.Range
	action action
	// why nothing is done.
	why string
}

// mostOfRanges is the largest number of addresses of pools in ranges of an inventory.
const mostOfRanges = 1 << 16

// plan decides about the addresses of an inventory. ips has the FloatingIPs of its addresses and, to prune, all that are reserved.
// reason is that of this inventory's reservations. The moves are in the order of the addresses.
func plan(entries []netbox.Entry, snapshot *pools.Snapshot, ips map[netip.Addr]*v1alpha1.FloatingIP, reason string, prune bool) ([]move, error) {
	taken, isTaken, err := addressesOf(entries, snapshot, ips)
	if err != nil {
		return nil, err
	}
	moves := make(map[iprange.Range]move, len(taken))
	add := func(r iprange.Range, action action, why string) { moves[r] = move{r, action, why} }
	for addr := range taken {
		switch ip := ips[addr]; {
		case ip == nil:
			add(iprange.Single(addr), toReserve, "")
		case ip.Spec.Reserved:
			add(iprange.Single(addr), toLeave, alreadyReserved)
		default:
			add(iprange.Single(addr), toRefuse, "not reserved: "+freeing.Whose(ip))
		}
	}
	for i := range entries {
		switch e := &entries[i]; {
		case e.IsBerths() && !isTaken.Contains(e.First):
			add(e.Range, toLeave, "not reserved: the inventory has it from Berth")
		case !e.IsBerths() && !hasAny(e.Range, taken):
			add(e.Range, toLeave, "not reserved: no pool gives it")
		}
	}
	for addr, ip := range ips {
		if prune && ip.Spec.Reserved && ip.Annotations[v1alpha1.AnnotationReason] == reason && !isTaken.Contains(addr) {
			add(iprange.Single(addr), toUnreserve, "")
		}
	}
	return slices.SortedFunc(maps.Values(moves), func(a, b move) int {
		return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last))
	}), nil
}

// addressesOf returns the addresses that the inventory has for others than Berth and that pools give or FloatingIPs
// have, and all of its addresses for others.
func addressesOf(entries []netbox.Entry, snapshot *pools.Snapshot, ips map[netip.Addr]*v1alpha1.FloatingIP) (map[netip.Addr]bool, iprange.Set, error) {
	taken := map[netip.Addr]bool{}
	var ranges []iprange.Range
	left := uint64(mostOfRanges)
	for i := range entries {
		e := &entries[i]
		if e.IsBerths() {
			continue
		}
		ranges = append(ranges, e.Range)
		if e.First == e.Last {
			if _, ok := snapshot.Home(e.First); ok {
				taken[e.First] = true
			}
			continue
		}
		for _, pool := range snapshot.Pools() {
			for _, both := range pool.Ranges.Common(e.Range) {
				if both.Size() > left {
					return nil, nil, fmt.Errorf("ranges of the inventory have more than %d addresses of pools: take them out of the pools, with spec.exclude", mostOfRanges)
				}
				left -= both.Size()
				for addr := both.First; both.Contains(addr); addr = addr.Next() {
					taken[addr] = true
				}
			}
		}
	}
	all := iprange.SetOf(ranges...)
	for addr := range ips {
		if all.Contains(addr) {
			taken[addr] = true
		}
	}
	return taken, all, nil
}

// hasAny says whether a range has one of some addresses.
func hasAny(r iprange.Range, addrs map[netip.Addr]bool) bool {
	if r.First == r.Last {
		return addrs[r.First]
	}
	for addr := range addrs {
		if r.Contains(addr) {
			return true
		}
	}
	return false
}

// reserveTaken reserves the addresses of the inventory.
func (o *reserving) reserveTaken(ctx context.Context) error {
	if err := o.readPools(ctx); err != nil {
		return err
	}
	ips, err := o.concerned(ctx)
	if err != nil {
		return err
	}
	moves, err := plan(o.entries, o.pools, ips, o.reason, o.prune)
	if err != nil {
		return err
	}
	reserved, freed := 0, 0
	for _, each := range moves {
		var did string
		var err error
		switch each.action {
		case toReserve:
			if did, err = o.reserve(ctx, each.First); err == nil && did != alreadyReserved {
				reserved++
			}
		case toUnreserve:
			if did, err = o.unreserve(ctx, each.First); err == nil {
				freed++
				did += ": the inventory lacks it now"
			}
		case toRefuse:
			err = refusal(each.why)
		case toLeave:
			fmt.Fprintf(o.Out, "%s: %s\n", each, each.why)
			continue
		}
		if err := o.say(each, did, err); err != nil {
			return err
		}
	}
	if o.DryRun {
		fmt.Fprintf(o.Out, "\n%d would be reserved, %d put back. Nothing was changed.\n", reserved, freed)
	} else {
		fmt.Fprintf(o.Out, "\n%d reserved, %d put back.\n", reserved, freed)
	}
	return o.outcome()
}

// concerned returns the FloatingIPs that the plan needs.
func (o *reserving) concerned(ctx context.Context) (map[netip.Addr]*v1alpha1.FloatingIP, error) {
	ranges := make([]iprange.Range, len(o.entries))
	for i := range o.entries {
		ranges[i] = o.entries[i].Range
	}
	all, ips := iprange.SetOf(ranges...), map[netip.Addr]*v1alpha1.FloatingIP{}
	err := o.EachFloatingIP(ctx, "", func(ip *v1alpha1.FloatingIP) error {
		addr, err := v1alpha1.AddrOf(ip.Name)
		if err != nil {
			return err
		}
		if all.Contains(addr) || o.prune && ip.Spec.Reserved {
			ips[addr] = ip.DeepCopy() // a pointer would keep its whole page in memory
		}
		return nil
	})
	return ips, err
}
