// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"time"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
)

// preallocate takes the missing addresses.
func (c *controller) preallocate(ctx context.Context, key preallocation.Key, claim *v1alpha1.IPClaim, p *preallocation.Progress, t *tally) (*preallocation.Problem, time.Duration, error) {
	namespace, err := c.loop.Namespace(claim.Namespace)
	if err != nil {
		return nil, 0, err
	}
	goal, err := goalOf(claim, t)
	if err != nil {
		return invalid(err), 0, nil
	}
	goal.Confirm = func(ctx context.Context) error { return c.stillThere(ctx, claim) }
	for i := range goal.Wants {
		goal.Wants[i].Request.NamespaceMeta = namespace
	}
	return c.loop.Take(ctx, key, p, goal, preallocation.CountOf(t.own))
}

// goalOf returns the addresses that a claim preallocates. The error is for its author.
func goalOf(claim *v1alpha1.IPClaim, t *tally) (preallocation.Goal, error) {
	goal := preallocation.Goal{Generation: claim.Generation}
	for _, family := range families(claim) {
		request, err := ipam.RequestOf(claim, family)
		if err != nil {
			return goal, err
		}
		goal.Wants = append(goal.Wants, preallocation.Want{Request: request, Size: int(claim.Spec.Size), Has: t.of(family)})
	}
	return goal, nil
}

func invalid(err error) *preallocation.Problem {
	return &preallocation.Problem{Reason: preallocation.ReasonInvalid, Message: err.Error()}
}

// shortfall returns the problem to report while no attempt is made; nil if nothing is
// missing.
func shortfall(claim *v1alpha1.IPClaim, p *preallocation.Progress, t *tally) *preallocation.Problem {
	if !claim.Spec.Preallocate {
		return nil
	}
	goal, err := goalOf(claim, t)
	if err != nil {
		return invalid(err)
	}
	return p.Shortfall(goal)
}
