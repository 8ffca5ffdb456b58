// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// preallocate takes what is missing.
func (c *Controller) preallocate(ctx context.Context, claim *v1alpha1.IPClaim, s *state, t *tally) (*problem, time.Duration, error) {
	now := c.clock.Now()
	if s.generation != claim.Generation {
		s.generation, s.shortage, s.failures = claim.Generation, nil, 0
	} else if soon := s.attempted.Add(Interval).Sub(now); s.failures > 0 && soon > 0 {
		return c.progress(claim, s, t), soon, nil
	}
	namespace, err := c.namespaces.Get(claim.Namespace)
	if err != nil {
		return nil, 0, fmt.Errorf("get namespace %s: %w", claim.Namespace, err)
	}
	// An address that comes free from here on has the claim tried again.
	s.wait(families(claim)...)
	a := attempt{taken: familyCount{}}
	for _, family := range families(claim) {
		if missing := int(claim.Spec.Size) - t.of(family); missing > 0 {
			a.missing += missing
			c.preallocateFamily(ctx, claim, namespace.Labels, family, t.of(family), &a)
		}
	}
	if n := a.taken.total(); n > 0 {
		c.expect(s, t, a.taken)
		s.failures = 0
		klog.FromContext(ctx).V(2).Info("Preallocated floating IPs", "claim", klog.KObj(claim), "count", n, "missing", a.missing-n)
	}
	s.attempted = now
	switch {
	case len(a.problems) > 0:
		s.failures++
		// The book of addresses may not know yet what this watch brought: the claim,
		// its size, or an address that came free. So the first failure is not yet
		// believed.
		if a.certain || s.failures > 1 || s.shortage != nil {
			p := joined(a.problems)
			s.shortage = &p
		}
		return c.progress(claim, s, t), min(patience, Interval<<min(s.failures-1, 10)), nil
	case a.missing > 0:
		s.shortage, s.failures = nil, 0
		return c.progress(claim, s, t), gather, nil
	}
	s.shortage, s.failures = nil, 0
	s.wait()
	return nil, 0, nil
}

// attempt is what came of an attempt to preallocate.
type attempt struct {
	// missing is how many addresses it was for, taken how many it got.
	missing int
	taken   familyCount
	// problems, one for each family that fell short; certain says that one does
	// not depend on what is free.
	problems []problem
	certain  bool
}

func (c *Controller) preallocateFamily(ctx context.Context, claim *v1alpha1.IPClaim, namespaceLabels labels.Set, family v1alpha1.IPFamily, has int, a *attempt) {
	if p := unserved(claim, c.snapshot.Load(), namespaceLabels, family); p != nil {
		a.problems = append(a.problems, problem{p.reason, have(claim, has, family) + ": " + p.message})
		a.certain = true
		return
	}
	made, err := c.preallocator.Preallocate(ctx, claim, namespaceLabels, family, min(int(claim.Spec.Size)-has, atOnce))
	a.taken[family] += made
	if err == nil || passing(err) || ctx.Err() != nil {
		return
	}
	p := problem{ReasonPoolsExhausted, have(claim, has+made, family) + ": " + err.Error()}
	switch shortage := new(ipam.ShortageError); {
	case errors.As(err, &shortage) && shortage.AtCap:
		p.reason = ReasonNamespaceAtCap
	case errors.As(err, &shortage):
	default:
		p.reason = ReasonPreallocationFailed
		klog.FromContext(ctx).Error(err, "Failed to preallocate addresses, will retry", "claim", klog.KObj(claim), "family", family)
	}
	a.problems = append(a.problems, p)
}

// passing says whether an error needs nobody's attention: the book is not read
// yet, or an address went to somebody else.
func passing(err error) bool {
	return errors.Is(err, ipam.ErrNotSynced) || errors.Is(err, ipam.ErrConflict)
}

// progress is what is missing while no attempt is made: what the last one said,
// or that it is under way.
func (c *Controller) progress(claim *v1alpha1.IPClaim, s *state, t *tally) *problem {
	if !claim.Spec.Preallocate {
		return nil
	}
	if s.shortage != nil && s.generation == claim.Generation {
		return s.shortage
	}
	var problems []problem
	for _, family := range families(claim) {
		if missing := int(claim.Spec.Size) - t.of(family); missing > 0 {
			problems = append(problems, problem{ReasonPreallocating, have(claim, t.of(family), family) + "."})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	p := joined(problems)
	return &p
}

func have(claim *v1alpha1.IPClaim, n int, family v1alpha1.IPFamily) string {
	return fmt.Sprintf("%d of %d %s addresses", n, claim.Spec.Size, family)
}
