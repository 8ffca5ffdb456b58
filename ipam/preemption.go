// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/pools"
)

// Preemption has the changes that a preemption would make for a request.
type Preemption = allocator.Preemption

// Victim is a pod that could be preempted.
type Victim struct {
	Namespace, UID string
	Priority       int32
}

// RejectsAfter is Rejects after a preemption.
func (c *Candidates) RejectsAfter(reach *pools.Reach, preemption *Preemption) *Rejection {
	return c.rejection(reach.Positions(), preemption)
}

// wantsAfter returns the wants after a preemption (nil: none). Each part may also have fitting
// addresses that the owner would have after the preemption. wantsAfter uses the parts as asked,
// without default families, because the next attempt would choose families again.
func (c *Candidates) wantsAfter(nodePools []int, preemption *Preemption) []allocator.Want {
	wants := c.wants(nodePools)
	if preemption == nil {
		return wants
	}
	for _, addr := range preemption.Held {
		if record, ok := c.book.Stored(addr); !ok || !c.isHomedIn(&record, nodePools) {
			continue
		}
		for i := range wants {
			switch {
			case !c.asked[i].Fits(addr):
			case len(wants[i].Held) > 0:
				wants[i].Held = append(wants[i].Held, addr)
			default:
				wants[i].Preferred = append(wants[i].Preferred, addr)
			}
		}
	}
	return wants
}

// AddVictim adds to a preemption the changes for this request if a pod ended.
func (c *Candidates) AddVictim(preemption *Preemption, namespace, podUID string) {
	for _, record := range c.book.OfPod(namespace, podUID) {
		c.addEnd(preemption, &record)
	}
}

// AddEnd adds to a preemption the changes for this request if the holder of an address ended.
func (c *Candidates) AddEnd(preemption *Preemption, addr netip.Addr) {
	if record, ok := c.book.Stored(addr); ok && !record.Reserved && !record.Cooling {
		c.addEnd(preemption, &record)
	}
}

func (c *Candidates) addEnd(preemption *Preemption, record *allocator.Record) {
	addr := record.Addr
	ours := record.Owner.SameWorkload(c.claimant.Owner)
	pool := c.poolOf(record)
	if record.Policy != allocator.PodDeleted {
		// The address stays with its owner, which may be the owner of this request.
		if ours && record.Owner.UID == c.claimant.Owner.UID && (pool == nil || !c.request.givesUp(record, pool)) {
			preemption.Held = append(preemption.Held, addr)
		}
		return
	}
	if record.Owner.Namespace == c.request.Namespace {
		preemption.Left = append(preemption.Left, addr)
	}
	if pool != nil && pool.Cooldown == 0 {
		preemption.Freed = append(preemption.Freed, addr)
	}
	if ours && addr.Is4() {
		preemption.Owned4++
	} else if ours {
		preemption.Owned6++
	}
}
