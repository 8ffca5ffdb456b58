// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/sorted"
)

// spare is how many addresses of a class the candidates have in addition to those that the pod
// could take, because other schedulers may take some before Reserve. An owner may have addresses in
// hundreds of pools.
const spare = 2

// Kept returns the owner's addresses from which the pod must get some, each once. If there are many
// in one pool, it returns the first few of them.
func (c *Candidates) Kept() []netip.Addr { return c.kept }

// Wanted returns how many free addresses the pod needs, because the owner keeps none for these
// parts.
func (c *Candidates) Wanted() (n int) {
	for part := range c.parts {
		if len(c.parts[part].kept) == 0 {
			n++
		}
	}
	return n
}

// held returns the first few addresses of each class of the owner's addresses, in order of
// preference. Addresses of one class are in the same pool, fit the same parts, record the same
// position among their pod's addresses, and either all or none have the request's terms. For the
// request they are equivalent, so a few are enough.
func (c *Candidates) held() []allocator.Record {
	parts := c.request.Parts
	ranged := slices.ContainsFunc(parts, func(part Part) bool { return !part.Ranges.IsEmpty() })
	givenUp := map[netip.Addr]allocator.Record{}
	held := c.book.Held(c.claimant.Owner, c.request.UID, c.request.Name, len(parts)+spare, ranged, func(record *allocator.Record) (class uint64, ok bool) {
		if !c.request.mayKeep(record) {
			return 0, false
		}
		for i := range parts {
			if parts[i].Fits(record.Addr) {
				ok = true
				class |= 1 << i
			}
		}
		class = class<<8 | uint64(max(0, min(record.Index, math.MaxUint8)))
		class <<= 1
		if c.request.hasTermsOf(record) {
			class |= 1
		}
		home, homed := c.state.snapshot.Home(record.Addr)
		var pool *pools.Pool
		if homed {
			pool = c.pool(home)
		} else {
			home = -1
		}
		// A claim's ranges count like its pools, because they are the same for all its pods. The lists of
		// one pod do not apply to other pods.
		outside := !ok && c.request.HasRanges && slices.ContainsFunc(parts, func(p Part) bool { return (&Part{Family: p.Family}).Fits(record.Addr) })
		if outside || ok && c.request.givesUp(record, pool) {
			givenUp[record.Addr] = *record
			return 0, false
		}
		return class<<32 | uint64(uint32(home)), ok
	})
	c.givenUp = slices.SortedFunc(maps.Values(givenUp), func(x, y allocator.Record) int {
		return cmp.Or(sorted.TrueFirst(x.LastPod == c.request.Name, y.LastPod == c.request.Name), x.Addr.Compare(y.Addr))
	})
	return held
}

// limitWithoutGivenUp lets a claim at its size have a new address in place of an address that it
// gives up.
func (c *Candidates) limitWithoutGivenUp() {
	for i := range c.givenUp {
		if c.givenUp[i].Addr.Is4() {
			c.claimant.GivenUp4++
		} else {
			c.claimant.GivenUp6++
		}
	}
}

// GivenUp returns a text for the user about each kept address that the pod did not get, because the
// pod does not name its pool. The text says why the pod has another address, and what happens to
// the kept address.
func (c *Candidates) GivenUp() []string {
	var texts []string
	for at := range c.parts {
		if len(c.parts[at].kept) > 0 || len(texts) == len(c.givenUp) {
			continue
		}
		record := &c.givenUp[len(texts)]
		then := "frees it once it is surplus"
		if record.Policy == allocator.Never {
			then = "keeps it until kubectl delete floatingip " + v1alpha1.NameOf(record.Addr)
		}
		texts = append(texts, fmt.Sprintf("%s, and release policy %s %s.", c.notNamed(record), policyText(record.Policy), then))
	}
	return texts
}

// notNamed says that an address is kept for the pod's owner, but that the pod does not ask for it.
func (c *Candidates) notNamed(record *allocator.Record) string {
	return fmt.Sprintf("%s of pool %q is kept for %s %s/%s, but the pod does not ask for it any more",
		record.Addr, record.Pool, record.Owner.Kind, record.Owner.Namespace, record.Owner.Name)
}

// assign distributes the owner's addresses, in order of preference, to the parts.
func (c *Candidates) assign(held []allocator.Record) {
	c.parts = make([]candidate, len(c.request.Parts))
	var options [][]allocator.Record
	for i := range c.request.Parts {
		part := &c.request.Parts[i]
		fitting := make([]allocator.Record, 0, len(held))
		var others []allocator.Record
		for at := range held {
			switch record := &held[at]; {
			case !part.Fits(record.Addr):
			case c.isStale(record):
				c.parts[i].stale = append(c.parts[i].stale, *record)
			case int(record.Index) == i:
				fitting = append(fitting, *record)
			default:
				others = append(others, *record)
			}
		}
		options = append(options, append(fitting, others...))
	}
	// As many parts as possible get a kept address. A part prefers addresses that record its own
	// index.
	holder := map[netip.Addr]int{}
	for i := range options {
		matchKept(options, i, holder, map[int]bool{})
	}
	seen := map[netip.Addr]bool{}
	for _, i := range slices.Sorted(maps.Values(holder)) {
		c.parts[i].kept, c.parts[i].usable = options[i], map[int][]int{}
		for at := range options[i] {
			record := &options[i][at]
			if home, ok := c.state.snapshot.Home(record.Addr); ok && c.request.mayUseKept(record, c.pool(home)) {
				c.parts[i].usable[home] = append(c.parts[i].usable[home], at)
			}
			if !seen[record.Addr] {
				seen[record.Addr] = true
				c.kept = append(c.kept, record.Addr)
			}
		}
	}
}

// keptIn returns the kept addresses in the pools at these positions that the part may have,
// in order of preference.
func (p *candidate) keptIn(positions []int) []netip.Addr {
	var found []int
	for _, position := range positions {
		found = append(found, p.usable[position]...)
	}
	slices.Sort(found)
	addrs := make([]netip.Addr, len(found))
	for i, at := range found {
		addrs[i] = p.kept[at].Addr
	}
	return addrs
}

// isStale says whether an address was created for this pod. No pod ran with it, because this pod is
// not bound yet.
func (c *Candidates) isStale(record *allocator.Record) bool {
	return record.PodUID == c.request.UID && record.LastPod == ""
}

// matchKept gives a part one of its options, and moves other parts if necessary
// (Kuhn's matching).
func matchKept(options [][]allocator.Record, part int, holder map[netip.Addr]int, seen map[int]bool) bool {
	if seen[part] {
		return false
	}
	seen[part] = true
	for i := range options[part] {
		addr := options[part][i].Addr
		if _, taken := holder[addr]; !taken {
			holder[addr] = part
			return true
		}
	}
	for i := range options[part] {
		addr := options[part][i].Addr
		if matchKept(options, holder[addr], holder, seen) {
			holder[addr] = part
			return true
		}
	}
	return false
}
