// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Preallocate serves a request of an owner count times, before any pod asks: it creates FloatingIPs
// of free addresses for all parts of the request. The request has no pod. The request of a Service
// may also get addresses that its owner keeps; count is 1 then. Before each write, confirm checks
// that the owner has not changed. confirm may block, and after an error of confirm Preallocate
// creates nothing more. Preallocate makes one blocking write for each address. It returns how many
// addresses it created, also when it fails. It fails with a *ShortageError if no more addresses are
// free or the namespace is at its quota, with ErrNotSynced until the book is read, or with the
// error of confirm.
func (i *IPAM) Preallocate(ctx context.Context, request Request, count int, confirm func(context.Context) error) (made int, err error) {
	for ; made < count; made++ {
		if err := i.preallocate(ctx, request, made, confirm); err != nil {
			return made, err
		}
	}
	return made, nil
}

func (i *IPAM) preallocate(ctx context.Context, request Request, number int, confirm func(context.Context) error) error {
	state := i.state.Load()
	if state == nil {
		return ErrNotSynced
	}
	owner := request.Owner
	c, err := i.candidatesAhead(state, request, number)
	if err != nil {
		return err
	}
	var node Node
	if owner.IsNode() {
		node.Name = owner.Name
	}
	r, err := i.Reserve(c, node, state.everywhere)
	if err != nil {
		return err
	}
	// This check comes after Reserve, because Reserve counts the address: if two callers take the last
	// address of a quota at the same time, neither exceeds the quota.
	if has := i.book.InNamespace(owner.Namespace); request.Quota != nil && has > uint64(*request.Quota) {
		i.Unreserve(r)
		return &ShortageError{
			Reasons: []string{fmt.Sprintf("a ResourceQuota allows namespace %q %d addresses, and it has %d", owner.Namespace, *request.Quota, has-1)},
			Remedy:  "raise requests." + v1alpha1.ResourceIP + " of the ResourceQuota, or give addresses up",
			Cause:   AtQuota,
		}
	}
	if err := confirm(ctx); err != nil {
		i.Unreserve(r)
		return err
	}
	if err := i.Commit(ctx, r, ofService{confirm}); err != nil {
		i.Unreserve(r)
		return fmt.Errorf("preallocate an address for %s %s: %w", owner.Kind, klog.KRef(owner.Namespace, owner.Name), err)
	}
	return nil
}

func (i *IPAM) candidatesAhead(state *state, request Request, number int) (*Candidates, error) {
	if request.OfService {
		return i.Candidates(request)
	}
	// Not a pod's UID, but also unique: it marks the reservation.
	request.UID = fmt.Sprintf("%s/%s/%s/%d", request.Owner.UID, request.Owner.NodeName, request.Parts[0].Family, number)
	c := &Candidates{state: state, book: i.book, request: request, claimant: claimantOf(&request)}
	// None of the owner's own addresses: the owner needs a new one.
	c.assign(nil)
	return c, c.check()
}

// ofService answers Commit's questions about a Service instead of a pod. confirm asks the API
// server about the Service and its namespace.
type ofService struct{ confirm func(context.Context) error }

var _ Pods = ofService{}

// IsCurrent says whether the Service is unchanged.
func (s ofService) IsCurrent(ctx context.Context, _, _, _ string) (bool, error) {
	err := s.confirm(ctx)
	return err == nil, err
}

// IsGone is always false: a pod or another Service gives its address up in the record first.
func (s ofService) IsGone(context.Context, string, string, string) (bool, error) { return false, nil }

// IsNamespace says whether the namespace is unchanged.
func (s ofService) IsNamespace(ctx context.Context, _, _ string) (bool, error) {
	err := s.confirm(ctx)
	return err == nil, err
}
