// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// fromClaim writes into a request what its claim says.
func fromClaim(r *Request, claim *v1alpha1.IPClaim) error {
	spec := &claim.Spec
	r.Owner = claimOwner(claim.Namespace, claim.Name, string(claim.UID))
	r.Policy = spec.ReleasePolicy
	if r.Policy == "" {
		r.Policy = v1alpha1.ReleaseRetain
	}
	r.RetainFor = 0
	if spec.RetainFor != nil {
		r.RetainFor = spec.RetainFor.Duration
	}
	r.MaxAddresses = int(spec.Size)
	r.Pools = spec.Pools
	r.PoolSelector = nil
	if spec.PoolSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(spec.PoolSelector)
		if err != nil {
			return fmt.Errorf("spec.poolSelector: %w", err)
		}
		r.PoolSelector = selector
	}
	if len(spec.Ranges) == 0 {
		return nil
	}
	var ranges []iprange.Range
	for i, text := range spec.Ranges {
		parsed, err := iprange.Parse(text)
		if err != nil {
			return fmt.Errorf("spec.ranges[%d]: %w", i, err)
		}
		ranges = append(ranges, parsed)
	}
	ranges, _ = iprange.Join(ranges, math.MaxInt)
	parts := make([]Part, len(r.Parts))
	for i, part := range r.Parts {
		if len(part.Ranges) > 0 {
			return errors.New("it says the addresses in spec.ranges, and so does the pod in its annotation " + v1alpha1.AnnotationAddresses)
		}
		parts[i] = Part{Family: part.Family, Ranges: ranges}
	}
	r.Parts = parts
	return nil
}

// RequestOf is what a claim asks for before any pod does: one address of a family. The
// caller fills in what follows from the namespace. The error is for the claim's author.
func RequestOf(claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) (Request, error) {
	r := Request{Request: podrequest.Request{Namespace: claim.Namespace, Claim: claim.Name, Parts: []Part{{Family: family}}}}
	err := fromClaim(&r, claim)
	return r, err
}

// Preallocate takes up to count free addresses for the owner of a request without a
// pod, which has one part, before any pod asks. It makes one write for each and says
// how many it made, also when it fails: with a *ShortageError if there are no more,
// with ErrNotSynced until the book is read.
func (i *IPAM) Preallocate(ctx context.Context, request Request, count int) (made int, err error) {
	for ; made < count; made++ {
		if err := i.preallocate(ctx, request, made); err != nil {
			return made, err
		}
	}
	return made, nil
}

func (i *IPAM) preallocate(ctx context.Context, request Request, number int) error {
	state := i.state.Load()
	if state == nil {
		return ErrNotSynced
	}
	owner := request.Owner
	// Not a pod's, but as unique: it marks the reservation.
	request.UID = fmt.Sprintf("%s/%s/%d", owner.UID, request.Parts[0].Family, number)
	c := &Candidates{state: state, book: i.book, request: request, claimant: claimantOf(&request)}
	// What the owner has already is not to be reserved: a new one is wanted.
	c.assign(nil)
	if err := c.impossible(); err != nil {
		return err
	}
	r, err := i.Reserve(c, Node{}, state.snapshot.Everywhere())
	if err != nil {
		return err
	}
	if err := i.Commit(ctx, r, nil); err != nil {
		i.Unreserve(r)
		return fmt.Errorf("preallocate an address for %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
	}
	return nil
}

// claimantOf is who asks the book for addresses.
func claimantOf(r *Request) allocator.Claimant {
	c := allocator.Claimant{Owner: r.Owner, PodUID: r.UID}
	switch {
	case r.Claim != "":
		c.Limited, c.Limit = true, r.MaxAddresses
	case r.FixedSet:
		c.FixedSet, c.MaxPods = true, r.MaxPods
	}
	return c
}
