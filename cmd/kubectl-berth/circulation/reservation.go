// SPDX-License-Identifier: Apache-2.0

// Package circulation has the commands that take addresses out of circulation and put them
// back, reserve, unreserve and release, and move-claim, which gives them to another
// claim. Each write is limited to the state of the object that
// the user saw, so nothing is taken from a pod that got the address meanwhile.
package circulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory/netbox"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

const reserveLong = `Takes addresses out of circulation: no pod gets them until "kubectl berth unreserve".

An address that a pod or a workload has is not reserved: the answer says who has it. Release
it first, or end the pod. The reason is in the annotation berth.dev/reason of the FloatingIP.

-f reserves the addresses that an inventory says are taken, whatever their status, as far as pools give them. It reads
what NetBox exports (IP addresses, "Export", "All Data"), pages of NetBox's API for IP addresses or ranges (JSON), or lines
with an address, FIRST-LAST or a CIDR. Addresses that the inventory has from "kubectl berth export -o netbox" are left out.
The reason is "in the inventory", with --reason NAME "in the inventory: NAME". Reserving a file again changes nothing.
With --prune, reserved addresses with exactly this reason which the files lack now are free again; others never.`

const reserveExamples = `  # The router's second address, until the network team is done
  kubectl berth reserve 10.0.70.12 --reason "VRRP, ticket 4711"

  # Which of them could not be reserved? Changes nothing
  kubectl berth reserve 10.0.70.12 10.0.70.13 --dry-run

  # What would the inventory take out of circulation, and put back? Then do it
  kubectl berth reserve -f addresses.csv --prune --dry-run
  kubectl berth reserve -f addresses.csv --prune`

type reserving struct {
	*command.Call
	addrs  []netip.Addr
	reason string
	// files are those of reserve -f, and entries the addresses in them.
	files   []string
	entries []netbox.Entry
	prune   bool

	// all are the pools, and pools what they compile to; nil: not read yet.
	all   []*v1alpha1.IPPool
	pools *pools.Snapshot
	// refused is set when some address was left as it is, against the user's wish.
	refused error
}

func NewReserve() command.Command {
	o := &reserving{}
	return command.Command{
		Use: "reserve ADDRESS... | -f FILE", Short: "Takes addresses out of circulation", Long: reserveLong, Example: reserveExamples,
		Args: command.AtLeast(0), Names: target.Addresses, Writes: true, Found: "some are not reserved: somebody has them, or no pool gives them",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.reason, "reason", "", "Why, for a person who finds the address reserved later. With -f the name of the inventory.")
			flags.StringArrayVarP(&o.files, "filename", "f", nil, "File with the addresses that an inventory says are taken; - is stdin. Can be repeated.")
			flags.BoolVar(&o.prune, "prune", false, "With -f: put addresses back that -f reserved, with the same --reason, and that the files lack now.")
		},
		Prepare: o.prepare,
		Run: func(ctx context.Context, _ *command.Call) error {
			if len(o.files) > 0 {
				return o.reserveTaken(ctx)
			}
			return o.each(ctx, o.reserve)
		},
	}
}

func (o *reserving) prepare(call *command.Call) (err error) {
	o.Call = call
	switch {
	case (len(call.Args) > 0) == (len(o.files) > 0):
		return errors.New("name addresses, or give -f: exactly one of the two")
	case o.prune && len(o.files) == 0:
		return errors.New("--prune is for -f")
	case len(o.files) > 0:
		o.reason = netbox.Reason(o.reason)
		o.entries, err = readTaken(call, o.files)
		return err
	}
	o.addrs, err = call.Addresses()
	return err
}

const unreserveLong = `Puts reserved addresses back into circulation: pods get them again.`

func NewUnreserve() command.Command {
	o := &reserving{}
	return command.Command{
		Use: "unreserve ADDRESS...", Short: "Puts reserved addresses back into circulation", Long: unreserveLong,
		Example: "  kubectl berth unreserve 10.0.70.12", Names: target.Addresses, Args: command.AtLeast(1),
		Writes: true, Found: "some are still reserved, because they changed meanwhile, or no pool gives them",
		Prepare: func(call *command.Call) (err error) {
			o.Call = call
			o.addrs, err = call.Addresses()
			return err
		},
		Run: func(ctx context.Context, _ *command.Call) error { return o.each(ctx, o.unreserve) },
	}
}

// errSome says that some addresses were left as they are; the output says which and why.
const errSome = answer.FindingsError("Not all addresses: see above.")

func (o *reserving) each(ctx context.Context, do func(context.Context, netip.Addr) (string, error)) error {
	for _, addr := range o.addrs {
		did, err := do(ctx, addr)
		if err := o.say(addr, did, err); err != nil {
			return err
		}
	}
	return o.refused
}

// say prints the outcome for an address or a range. It returns an error that is no refusal.
func (o *reserving) say(of fmt.Stringer, did string, err error) error {
	var refused refusal
	switch {
	case errors.As(err, &refused):
		did, o.refused = string(refused), errSome
	case err != nil:
		return fmt.Errorf("%s: %w", of, err)
	case o.DryRun:
		did += " (dry run)"
	}
	fmt.Fprintf(o.Out, "%s: %s\n", of, did)
	return nil
}

type refusal string

func (r refusal) Error() string { return string(r) }

const (
	errChanged = refusal("it changed a moment ago: look at it and try again")
	errFreed   = refusal("it was freed a moment ago: try again")
)

const alreadyReserved = "is reserved already"

func (o *reserving) reserve(ctx context.Context, addr netip.Addr) (string, error) {
	if err := o.readPools(ctx); err != nil {
		return "", err
	}
	pool := o.pools.PoolOf(addr)
	if pool == nil {
		// There may be a record of it.
		did, err := o.reserved(ctx, addr)
		if errors.Is(err, errFreed) {
			err = o.given("not reserved: ", addr)
		}
		return did, err
	}
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)},
		Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: pool.Name, Reserved: true},
	}
	if o.reason != "" {
		ip.Annotations = map[string]string{v1alpha1.AnnotationReason: o.reason}
	}
	_, err := o.Berth.FloatingIPs.Create(ctx, ip, metav1.CreateOptions{DryRun: o.DryRuns(), FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		return o.reserved(ctx, addr)
	}
	if err != nil {
		return "", fmt.Errorf("reserve: %w", err)
	}
	return "reserved in pool " + pool.Name, nil
}

func (o *reserving) given(what string, addr netip.Addr) error {
	return refusal(what + standing.OfNobody(addr, o.all, o.pools).Because)
}

func (o *reserving) readPools(ctx context.Context) (err error) {
	if o.pools == nil {
		if o.all, err = o.Pools(ctx); err == nil {
			o.pools = pools.Compile(o.all)
		}
	}
	return err
}

// reserved handles an address that exists already: it writes the reason if that is reserved. An
// inventory's replaces no other: --prune would undo a reservation that it did not make.
func (o *reserving) reserved(ctx context.Context, addr netip.Addr) (string, error) {
	ip, err := o.FloatingIP(ctx, addr)
	switch {
	case err != nil:
		return "", err
	case ip == nil:
		return "", errFreed
	case !ip.Spec.Reserved:
		return "", refusal("not reserved: " + freeing.Whose(ip))
	case o.reason == "" || ip.Annotations[v1alpha1.AnnotationReason] == o.reason || len(o.files) > 0:
		return alreadyReserved, nil
	}
	metav1.SetMetaDataAnnotation(&ip.ObjectMeta, v1alpha1.AnnotationReason, o.reason)
	if _, err := o.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: o.DryRuns()}); err != nil {
		return "", fmt.Errorf("write the reason: %w", err)
	}
	return "is reserved already; the reason is written", nil
}

func (o *reserving) unreserve(ctx context.Context, addr netip.Addr) (string, error) {
	ip, err := o.FloatingIP(ctx, addr)
	switch {
	case err != nil:
		return "", err
	case ip == nil:
		if err := o.readPools(ctx); err != nil {
			return "", err
		}
		if _, given := o.pools.Home(addr); !given {
			return "", o.given("is not reserved: ", addr)
		}
		return "is not reserved: nobody has it", nil
	case !ip.Spec.Reserved:
		return "is not reserved: " + freeing.Whose(ip), nil
	case o.prune && ip.Annotations[v1alpha1.AnnotationReason] != o.reason:
		return "", errChanged
	case ip.Spec.Pod != nil || ip.Spec.Owner != nil:
		// Reserved by hand over a record that somebody has: that stays.
		ip.Spec.Reserved = false
		delete(ip.Annotations, v1alpha1.AnnotationReason)
		_, err = o.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: o.DryRuns()})
		if err == nil {
			return "not reserved any more: " + freeing.Whose(ip), nil
		}
	default:
		if err = freeing.Remove(ctx, o.Berth.FloatingIPs, ip.Name, string(ip.UID), ip.ResourceVersion, o.DryRuns()); err == nil {
			return "free", nil
		}
	}
	if apierrors.IsConflict(err) {
		return "", errChanged
	}
	return "", fmt.Errorf("unreserve: %w", err)
}

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

type action int

const (
	toReserve   action = iota
	toUnreserve        // an earlier inventory had it, and the present one lacks it
	toLeave            // nothing is to be done, or can be
	toRefuse           // the inventory says that it is taken, but somebody here has it
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

// plan decides about the addresses of an inventory. ips has the FloatingIPs of its addresses and,
// to prune, all that are reserved. reason is that of this inventory's reservations. The moves are
// in the order of the addresses.
func plan(entries []netbox.Entry, snapshot *pools.Snapshot, ips map[netip.Addr]*v1alpha1.FloatingIP, reason string, prune bool) ([]move, error) {
	taken, isTaken, err := addressesOf(entries, snapshot, ips)
	if err != nil {
		return nil, err
	}
	moves := make(map[iprange.Range]move, len(taken))
	add := func(r iprange.Range, action action, why string) { moves[r] = move{r, action, why} }
	for addr := range taken {
		action, why := toReserve, ""
		if ip := ips[addr]; ip != nil && ip.Spec.Reserved {
			action, why = toLeave, alreadyReserved
		} else if ip != nil {
			action, why = toRefuse, "not reserved: "+freeing.Whose(ip)
		}
		add(iprange.Single(addr), action, why)
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

// addressesOf returns the addresses that the inventory has for others than Berth and that pools
// give or FloatingIPs have, and all of its addresses for others.
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
	summary := "\n%d reserved, %d put back.\n"
	if o.DryRun {
		summary = "\n%d would be reserved, %d put back. Nothing was changed.\n"
	}
	fmt.Fprintf(o.Out, summary, reserved, freed)
	return o.refused
}

func (o *reserving) concerned(ctx context.Context) (map[netip.Addr]*v1alpha1.FloatingIP, error) {
	var ranges []iprange.Range
	for i := range o.entries {
		ranges = append(ranges, o.entries[i].Range)
	}
	all, ips := iprange.SetOf(ranges...), map[netip.Addr]*v1alpha1.FloatingIP{}
	err := o.EachFloatingIP(ctx, "", func(ip *v1alpha1.FloatingIP) {
		if addr := ip.Addr(); all.Contains(addr) || o.prune && ip.Spec.Reserved {
			ips[addr] = ip.DeepCopy() // a pointer would keep its whole page in memory
		}
	})
	return ips, err
}
