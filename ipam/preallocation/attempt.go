// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
)

// take takes the missing addresses. has is the number of all the owner's addresses in the view,
// even if they count for no want. take returns the reason why addresses are still missing (nil if
// none are), and when to try again; 0 means at the next event. If goal.Confirm fails, take fails
// and takes nothing.
func (p *Progress) take(ctx context.Context, by taker, goal Goal, has Count) (*Problem, time.Duration, error) {
	now := time.Now()
	if p.generation != goal.Generation {
		p.generation, p.shortage, p.failures = goal.Generation, nil, 0
	} else if soon := p.attempted.Add(Interval).Sub(now); p.failures > 0 && soon > 0 {
		return p.Shortfall(goal), soon, nil
	}
	by.Begin(goal.lacking())
	a := attempt{taken: Count{}}
	for i := range goal.Wants {
		if err := a.take(ctx, by, &goal, &goal.Wants[i]); err != nil {
			by.End(nil, false) // It is retried, whether an address becomes free or not.
			return nil, 0, err
		}
	}
	by.End(a.lacking, a.taken.Total() > 0)
	if n := a.taken.Total(); n > 0 {
		p.Expect(has, a.taken, now)
		p.failures = 0
		owner := goal.Wants[0].Request.Owner
		klog.FromContext(ctx).V(2).Info("Preallocated floating IPs", "kind", owner.Kind, "owner", klog.KRef(owner.Namespace, owner.Name), "count", n)
	}
	p.attempted = now
	switch {
	case len(a.problems) > 0:
		p.failures++
		// The book may be behind this watch: it may not know the claim, its size, or a freed address yet.
		// So the first failure is not shown.
		if a.certain || p.failures > 1 || p.shortage != nil {
			shortage := joined(a.problems)
			p.shortage = &shortage
		}
		return p.Shortfall(goal), min(patience, Interval<<min(p.failures-1, 10)), nil
	case a.missing > 0:
		p.shortage, p.failures = nil, 0
		return p.Shortfall(goal), Gather, nil
	}
	p.shortage, p.failures = nil, 0
	return nil, 0, nil
}

type attempt struct {
	// asked says that the API server was asked whether the owner is unchanged. refused is the error if
	// the owner changed.
	asked   bool
	refused error
	// missing is the number of addresses that the attempt was for, taken the number that it got.
	missing int
	taken   Count
	// lacking are the requests that a freed address may help.
	lacking []ipam.Request
	// problems has one element for each failed want. certain says that one of the problems does not
	// depend on free addresses.
	problems []Problem
	certain  bool
}

func (a *attempt) take(ctx context.Context, by taker, goal *Goal, w *Want) error {
	missing := w.Size - w.Has
	if missing <= 0 {
		return nil
	}
	a.missing += missing
	if p := NoPool(&w.Request, by.Pools()); p != nil && !w.Request.OfService {
		a.problems = append(a.problems, Problem{p.Reason, w.have() + ": " + p.Message})
		a.certain = true
		return nil
	}
	made, err := by.Preallocator.Preallocate(ctx, w.Request, min(missing, AtOnce), func(ctx context.Context) error {
		if !a.asked {
			a.asked, a.refused = true, goal.Confirm(ctx)
		}
		return a.refused
	})
	if a.refused != nil {
		return a.refused
	}
	for i := range w.Request.Parts {
		a.taken[w.Request.Parts[i].Family] += made
	}
	if err == nil || passing(err) || ctx.Err() != nil {
		return nil //nolint:nilerr // a passing error is tried again, and is no problem to report
	}
	now := *w
	now.Has += made
	p := Problem{ReasonPreallocationFailed, now.have() + ": " + err.Error()}
	if shortage := new(ipam.ShortageError); errors.As(err, &shortage) {
		p.Reason = reasons[shortage.Cause]
		a.lacking = append(a.lacking, w.Request)
	} else {
		owner := w.Request.Owner
		klog.FromContext(ctx).Error(err, "Failed to preallocate addresses, will retry", "kind", owner.Kind, "owner", klog.KRef(owner.Namespace, owner.Name), "family", w.families())
	}
	a.problems = append(a.problems, p)
	return nil
}
