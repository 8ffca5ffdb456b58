// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

const (
	// Interval is the least time between two attempts that fail.
	Interval = time.Second
	// Gather is how long news of an owner's addresses is gathered: they come by the
	// hundred.
	Gather = 100 * time.Millisecond
	// AtOnce is how many addresses of a family are taken before another owner has its
	// turn.
	AtOnce = 64
	// settling is how long the watch is waited for after a write. It is the bound
	// for addresses that were freed again before it brought them.
	settling = 5 * time.Second
	// patience is the longest time between two attempts.
	patience = time.Minute
)

// Goal is what an owner is to have before any pod asks.
type Goal struct {
	// Generation of the object that says so: failures to reach the goal of another one
	// do not count.
	Generation int64
	Wants      []Want
}

// Want is addresses of one kind.
type Want struct {
	// Request is how one of them is asked for: without a pod, with one part, which
	// says the family.
	Request ipam.Request
	// Size is how many there are to be, Has how many there are.
	Size, Has int
}

func (w *Want) family() v1alpha1.IPFamily { return w.Request.Parts[0].Family }

func (w *Want) have() string { return fmt.Sprintf("%d of %d %s addresses", w.Has, w.Size, w.family()) }

// Count is a number of addresses of each family.
type Count map[v1alpha1.IPFamily]int

// Total of both families.
func (n Count) Total() int { return n[v1alpha1.IPv4] + n[v1alpha1.IPv6] }

// Preallocator takes addresses before any pod asks: up to count, as a request
// without a pod and with one part says. Blocking, safe in parallel; made may be more
// than 0 with an error.
type Preallocator interface {
	Preallocate(ctx context.Context, request ipam.Request, count int) (made int, err error)
}

// Taker is what addresses are taken with.
type Taker struct {
	Preallocator Preallocator
	// Pools as they were seen last.
	Pools func() *pools.Snapshot
	Clock clock.PassiveClock
}

// Progress is what is remembered of one owner between looks; losing it is harmless.
// It belongs to whoever looks at the owner, but for WaitsFor.
type Progress struct {
	// expected is how many addresses the watch has still to bring, until a time.
	expected Count
	until    time.Time
	// shortage is why the last attempts fell short, at which generation and time;
	// failures counts those since one brought something.
	shortage   *Problem
	generation int64
	attempted  time.Time
	failures   int

	waiting4, waiting6 atomic.Bool
}

// WaitsFor says whether a free address of the family may help.
func (p *Progress) WaitsFor(family v1alpha1.IPFamily) bool {
	if family == v1alpha1.IPv6 {
		return p.waiting6.Load()
	}
	return p.waiting4.Load()
}

// Wait says which free addresses may help from here on; none: none does.
func (p *Progress) Wait(families ...v1alpha1.IPFamily) {
	p.waiting4.Store(slices.Contains(families, v1alpha1.IPv4))
	p.waiting6.Store(slices.Contains(families, v1alpha1.IPv6))
}

// Unsettled is how long the watch is to be waited for, so that nothing is done
// twice, where the owner is seen to have so many addresses.
func (p *Progress) Unsettled(has Count, now time.Time) time.Duration {
	left := p.until.Sub(now)
	for family, n := range p.expected {
		if has[family] < n && left > 0 {
			return left
		}
	}
	clear(p.expected)
	return 0
}

// Expect notes that an owner that is seen to have so many addresses got more.
func (p *Progress) Expect(has, more Count, now time.Time) {
	if p.expected == nil {
		p.expected = Count{}
	}
	for family, n := range more {
		p.expected[family] = has[family] + n
	}
	p.until = now.Add(settling)
}

// Take takes what is missing. has is what the owner is seen to have, also besides
// what it wants. It says why not all is there (nil: it is), and when to try again;
// 0: when something changes.
func (p *Progress) Take(ctx context.Context, by Taker, goal Goal, has Count) (*Problem, time.Duration) {
	now := by.Clock.Now()
	if p.generation != goal.Generation {
		p.generation, p.shortage, p.failures = goal.Generation, nil, 0
	} else if soon := p.attempted.Add(Interval).Sub(now); p.failures > 0 && soon > 0 {
		return p.Shortfall(goal), soon
	}
	// An address that comes free from here on has the owner tried again.
	var families []v1alpha1.IPFamily
	for i := range goal.Wants {
		families = append(families, goal.Wants[i].family())
	}
	p.Wait(families...)
	a := attempt{taken: Count{}}
	for i := range goal.Wants {
		a.take(ctx, by, &goal.Wants[i])
	}
	if n := a.taken.Total(); n > 0 {
		p.Expect(has, a.taken, now)
		p.failures = 0
		owner := goal.Wants[0].Request.Owner
		klog.FromContext(ctx).V(2).Info("Preallocated floating IPs", "kind", owner.Kind, "owner", klog.KRef(owner.Namespace, owner.Name), "count", n, "missing", a.missing-n)
	}
	p.attempted = now
	switch {
	case len(a.problems) > 0:
		p.failures++
		// The book of addresses may not know yet what this watch brought: the claim,
		// its size, or an address that came free. So the first failure is not yet
		// believed.
		if a.certain || p.failures > 1 || p.shortage != nil {
			joined := Joined(a.problems)
			p.shortage = &joined
		}
		return p.Shortfall(goal), min(patience, Interval<<min(p.failures-1, 10))
	case a.missing > 0:
		p.shortage, p.failures = nil, 0
		return p.Shortfall(goal), Gather
	}
	p.shortage, p.failures = nil, 0
	p.Wait()
	return nil, 0
}

// attempt is what came of an attempt.
type attempt struct {
	// missing is how many addresses it was for, taken how many it got.
	missing int
	taken   Count
	// problems, one for each want that fell short; certain says that one does not
	// depend on what is free.
	problems []Problem
	certain  bool
}

func (a *attempt) take(ctx context.Context, by Taker, w *Want) {
	missing := w.Size - w.Has
	if missing <= 0 {
		return
	}
	a.missing += missing
	if p := NoPool(&w.Request, by.Pools()); p != nil {
		a.problems = append(a.problems, Problem{p.Reason, w.have() + ": " + p.Message})
		a.certain = true
		return
	}
	made, err := by.Preallocator.Preallocate(ctx, w.Request, min(missing, AtOnce))
	a.taken[w.family()] += made
	if err == nil || passing(err) || ctx.Err() != nil {
		return
	}
	now := *w
	now.Has += made
	p := Problem{ReasonPreallocationFailed, now.have() + ": " + err.Error()}
	if shortage := new(ipam.ShortageError); errors.As(err, &shortage) {
		p.Reason = reasons[shortage.Cause]
	} else {
		owner := w.Request.Owner
		klog.FromContext(ctx).Error(err, "Failed to preallocate addresses, will retry", "kind", owner.Kind, "owner", klog.KRef(owner.Namespace, owner.Name), "family", w.family())
	}
	a.problems = append(a.problems, p)
}

// passing says whether an error needs nobody's attention: the book is not read
// yet, or an address went to somebody else.
func passing(err error) bool {
	return errors.Is(err, ipam.ErrNotSynced) || errors.Is(err, ipam.ErrConflict)
}

// Shortfall is what is missing while no attempt is made: what the last one said, or
// that it is under way. Nil: nothing is.
func (p *Progress) Shortfall(goal Goal) *Problem {
	if p.shortage != nil && p.generation == goal.Generation {
		return p.shortage
	}
	var problems []Problem
	for i := range goal.Wants {
		if w := &goal.Wants[i]; w.Has < w.Size {
			problems = append(problems, Problem{ReasonPreallocating, w.have() + "."})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	joined := Joined(problems)
	return &joined
}
