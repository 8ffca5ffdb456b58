// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
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
	var ranges []pools.Range
	for i, text := range spec.Ranges {
		parsed, err := pools.ParseRange(text)
		if err != nil {
			return fmt.Errorf("spec.ranges[%d]: %w", i, err)
		}
		ranges = append(ranges, parsed)
	}
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

// Preallocate takes up to count free addresses of a family for a claim, before
// any pod asks. It makes one write for each and says how many it made, also when
// it fails: with a *ShortageError if there are no more, with ErrNotSynced until
// the book is read.
func (i *IPAM) Preallocate(ctx context.Context, claim *v1alpha1.IPClaim, namespaceLabels labels.Set, family v1alpha1.IPFamily, count int) (made int, err error) {
	for ; made < count; made++ {
		if err := i.preallocate(ctx, claim, namespaceLabels, family, made); err != nil {
			return made, err
		}
	}
	return made, nil
}

func (i *IPAM) preallocate(ctx context.Context, claim *v1alpha1.IPClaim, namespaceLabels labels.Set, family v1alpha1.IPFamily, number int) error {
	state := i.state.Load()
	if state == nil {
		return ErrNotSynced
	}
	c := &Candidates{state: state, book: i.book, request: Request{
		Namespace: claim.Namespace, Claim: claim.Name, NamespaceLabels: namespaceLabels,
		// Not a pod's, but as unique: it marks the reservation.
		UID:   fmt.Sprintf("%s/%s/%d", claim.UID, family, number),
		Parts: []Part{{Family: family}},
	}}
	if err := c.applyClaim(claim); err != nil {
		return err
	}
	// What the claim has already is not to be reserved: a new one is wanted.
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
		return fmt.Errorf("preallocate an address for IPClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
