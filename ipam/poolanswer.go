// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/pools"
)

// PoolAnswer says whether one pool has an address for a request.
type PoolAnswer struct {
	Pool *pools.Pool
	// Named says that the request may use the pool by its name and labels. Serves says that the
	// request could get an address of the pool if one became free.
	Named, Serves bool
	// Has says that the pool has an address for at least one part of the request.
	Has bool
	// Exact says that the request lists addresses, and that the pool lacks one of these.
	Exact bool
	// Reason is a text for the user; Remedy is empty if there is none.
	Reason, Remedy string
}

// PerPool returns each pool's answer to the request, in the words that Rejects uses for
// nodes.
func (c *Candidates) PerPool() []PoolAnswer {
	answers := make([]PoolAnswer, len(c.state.snapshot.Pools()))
	for position, pool := range c.state.snapshot.Pools() {
		answers[position] = c.ofPool(position, pool)
	}
	return answers
}

func (c *Candidates) ofPool(position int, pool *pools.Pool) PoolAnswer {
	answer := PoolAnswer{Pool: pool, Named: c.request.Names(pool)}
	for part := range c.parts {
		if kept := c.parts[part].keptIn([]int{position}); len(kept) > 0 {
			answer.Named, answer.Serves, answer.Has = true, true, true
			answer.Reason, answer.Remedy = fmt.Sprintf("%s has %s, which is retained for the %s", pool, kept[0], c.request.holder()), ""
			return answer
		}
		if len(c.parts[part].kept) > 0 {
			answer.Reason = fmt.Sprintf("%s does not have the address that is retained for the %s", pool, c.request.holder())
			continue
		}
		if !c.serves(part, position) {
			continue
		}
		answer.Serves = true
		if c.partHasRoom(part, position) {
			answer.Has, answer.Reason, answer.Remedy = true, fmt.Sprintf("%s has %d free", pool, c.free(position)), ""
			return answer
		}
		answer.Reason, answer.Remedy = c.shortOf(part, pool)
		answer.Exact = !c.request.Parts[part].Ranges.IsEmpty()
	}
	if answer.Reason != "" {
		return answer
	}
	answer.Reason = fmt.Sprintf("the %s does not ask for %s", c.request.holder(), pool)
	if answer.Named {
		answer.Reason = c.request.refusal(&c.request.Parts[0], pool)
	}
	return answer
}

// partHasRoom says whether the book would give one part alone an address of a pool.
func (c *Candidates) partHasRoom(part, position int) bool {
	if c.pool(position).Disabled || c.free(position) == 0 {
		return false
	}
	if c.request.Parts[part].Ranges.IsEmpty() {
		return true
	}
	wants := c.wants([]int{position})
	err := c.book.Feasible(c.claimant, wants[part:part+1], nil)
	return err == nil || !errors.Is(err, allocator.ErrExhausted)
}
