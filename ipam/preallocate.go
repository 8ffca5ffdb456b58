// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
)

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
	if err := c.check(); err != nil {
		return err
	}
	r, err := i.Reserve(c, Node{}, state.everywhere)
	if err != nil {
		return err
	}
	if err := i.Commit(ctx, r, nil); err != nil {
		i.Unreserve(r)
		return fmt.Errorf("preallocate an address for %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
	}
	return nil
}
