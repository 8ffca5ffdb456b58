// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	request, err := request.under(claim)
	if err != nil {
		return request, &ShortageError{Reasons: []string{fmt.Sprintf("IPClaim %q: %v", request.Claim, err)}, Lacks: LackOwner}
	}
	return request, nil
}

// under returns the request with the terms of a claim in place of the pod's. The error
// is for the claim's author.
func (r *Request) under(claim *v1alpha1.IPClaim) (Request, error) {
	u := *r
	spec := &claim.Spec
	u.Owner = claimOwner(claim.Namespace, claim.Name, string(claim.UID))
	terms := TermsOf(claim)
	u.Policy, u.RetainFor = terms.Policy, terms.RetainFor
	u.Preallocate = spec.Preallocate
	u.MaxAddresses = int(spec.Size)
	u.Pools = spec.Pools
	u.PoolSelector = nil
	if spec.PoolSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(spec.PoolSelector)
		if err != nil {
			return u, fmt.Errorf("spec.poolSelector: %w", err)
		}
		u.PoolSelector = selector
	}
	if len(spec.Ranges) == 0 {
		return u, nil
	}
	var ranges []iprange.Range
	for i, text := range spec.Ranges {
		parsed, err := iprange.Parse(text)
		if err != nil {
			return u, fmt.Errorf("spec.ranges[%d]: %w", i, err)
		}
		ranges = append(ranges, parsed)
	}
	ranges, _ = iprange.Join(ranges, math.MaxInt)
	parts := make([]Part, len(u.Parts))
	for i, part := range u.Parts {
		if len(part.Ranges) > 0 {
			return u, errors.New("spec.ranges limits the addresses, but the pod also has annotation " + v1alpha1.AnnotationAddresses)
		}
		parts[i] = Part{Family: part.Family, Ranges: ranges}
	}
	u.Parts = parts
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
	return r.under(claim)
}
