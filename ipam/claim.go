// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/podrequest"
)

func claimOwner(namespace, name, uid string) Owner {
	return Owner{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "IPClaim",
		Namespace: namespace, Name: name, UID: uid,
	}
}

// claimed returns the request with the terms of the IPClaim that it names. It fails
// with a *ShortageError if there is no such claim or it is invalid.
func (i *IPAM) claimed(request Request) (Request, error) {
	claim := i.watch.Claim(request.Namespace, request.Claim)
	if claim == nil || claim.DeletionTimestamp != nil {
		return request, &ShortageError{
			Reasons: []string{fmt.Sprintf("there is no IPClaim %q in namespace %q", request.Claim, request.Namespace)},
			Remedy:  "create it, or correct the pod's annotation " + v1alpha1.AnnotationClaim,
			Lacks:   LackOwner,
		}
	}
	terms, err := termsOf(claim)
	if err == nil && claim.Spec.Egress != nil {
		err = errors.New("spec.egress: pods without floating IPs leave by its addresses; name another one")
	}
	if err == nil {
		request, err = request.under(terms)
	}
	if err != nil {
		return request, &ShortageError{Reasons: []string{fmt.Sprintf("IPClaim %q: %v", request.Claim, err)}, Lacks: LackOwner}
	}
	return request, nil
}

// claimTerms are the terms of an IPClaim in place of a pod's.
type claimTerms struct {
	claim    *v1alpha1.IPClaim
	selector labels.Selector // nil: there is none
	ranges   iprange.List
}

// termsOf returns the terms of a claim. The error is for the claim's author.
func termsOf(claim *v1alpha1.IPClaim) (*claimTerms, error) {
	t := &claimTerms{claim: claim}
	var err error
	if selector := claim.Spec.PoolSelector; selector != nil {
		if t.selector, err = metav1.LabelSelectorAsSelector(selector); err != nil {
			return nil, fmt.Errorf("spec.poolSelector: %w", err)
		}
	}
	ranges := make([]iprange.Range, len(claim.Spec.Ranges))
	for i, text := range claim.Spec.Ranges {
		if ranges[i], err = iprange.Parse(text); err != nil {
			return nil, fmt.Errorf("spec.ranges[%d]: %w", i, err)
		}
	}
	t.ranges = iprange.ListOf(ranges...)
	return t, nil
}

// under returns the request with the terms of a claim in place of the pod's. The error
// is for the pod's author.
func (r *Request) under(t *claimTerms) (Request, error) {
	u := *r
	spec := &t.claim.Spec
	u.Owner = claimOwner(t.claim.Namespace, t.claim.Name, string(t.claim.UID))
	terms := TermsOf(t.claim)
	u.Policy, u.RetainFor = terms.Policy, terms.RetainFor
	u.Preallocate = spec.Preallocate
	u.MaxAddresses = int(spec.Size)
	u.Pools, u.PoolSelector = spec.Pools, t.selector
	if t.ranges.IsEmpty() {
		return u, nil
	}
	u.HasRanges, u.Parts = true, make([]Part, len(r.Parts))
	for i, part := range r.Parts {
		if !part.Ranges.IsEmpty() {
			return u, errors.New("spec.ranges limits the addresses, but the pod also has annotation " + v1alpha1.AnnotationAddresses)
		}
		u.Parts[i] = Part{Family: part.Family, Ranges: t.ranges}
	}
	return u, nil
}

// TermsOf returns a request with the release policy and retainFor of a claim, for no
// address.
func TermsOf(claim *v1alpha1.IPClaim) Request {
	r := Request{Request: podrequest.Request{
		Namespace: claim.Namespace, Claim: claim.Name, Policy: cmp.Or(claim.Spec.ReleasePolicy, v1alpha1.ReleaseRetain),
	}}
	if claim.Spec.RetainFor != nil {
		r.RetainFor = claim.Spec.RetainFor.Duration
	}
	return r
}

// RequestOf returns the request of a claim for itself, before any pod asks: one address
// of a family. The caller sets NamespaceMeta. The error is for the claim's author.
func RequestOf(claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) (Request, error) {
	r := Request{Request: podrequest.Request{Namespace: claim.Namespace, Claim: claim.Name, Parts: []Part{{Family: family}}}}
	terms, err := termsOf(claim)
	if err != nil {
		return r, err
	}
	return r.under(terms)
}
