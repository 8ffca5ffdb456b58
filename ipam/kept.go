// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/ipam/allocator"
)

// Kept returns the owner's addresses among which the pod must have some, each once.
func (c *Candidates) Kept() []netip.Addr {
	var kept []netip.Addr
	for _, part := range c.parts {
		for _, record := range part.kept {
			if !slices.Contains(kept, record.Addr) {
				kept = append(kept, record.Addr)
			}
		}
	}
	return kept
}

// assign distributes the owner's addresses, in order of preference, to the parts.
func (c *Candidates) assign(held []allocator.Record) {
	c.parts = make([]candidate, len(c.request.Parts))
	var options [][]allocator.Record
	for i := range c.request.Parts {
		part := &c.request.Parts[i]
		var fitting []allocator.Record
		for _, record := range held {
			switch {
			case !part.Fits(record.Addr):
			case c.isStale(&record):
				c.parts[i].stale = append(c.parts[i].stale, record)
			default:
				fitting = append(fitting, record)
			}
		}
		slices.SortStableFunc(fitting, func(x, y allocator.Record) int { return distance(x, i) - distance(y, i) })
		options = append(options, fitting)
	}
	// As many parts as possible have a kept address. A part prefers addresses that
	// record its own index.
	holder := map[netip.Addr]int{}
	for i := range options {
		matchKept(options, i, holder, map[int]bool{})
	}
	for _, i := range holder {
		c.parts[i].kept = options[i]
	}
}

// isStale says whether an address was created for this pod, which is not bound yet, so
// that no pod ran with it.
func (c *Candidates) isStale(record *allocator.Record) bool {
	return record.PodUID == c.request.UID && record.LastPod == ""
}

func distance(record allocator.Record, part int) int {
	if int(record.Index) == part {
		return 0
	}
	return 1
}

// matchKept gives a part one of its options, and moves other parts if necessary
// (Kuhn's matching).
func matchKept(options [][]allocator.Record, part int, holder map[netip.Addr]int, seen map[int]bool) bool {
	if seen[part] {
		return false
	}
	seen[part] = true
	for _, record := range options[part] {
		if _, taken := holder[record.Addr]; !taken {
			holder[record.Addr] = part
			return true
		}
	}
	for _, record := range options[part] {
		if matchKept(options, holder[record.Addr], holder, seen) {
			holder[record.Addr] = part
			return true
		}
	}
	return false
}
