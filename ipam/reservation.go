// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// Reservation is addresses taken for a pod in memory. It ends with Commit or
// Unreserve.
type Reservation struct {
	request Request
	node    Node
	addrs   []*address
}

// address is one address of a reservation, the one at the same position as the
// part of the request.
type address struct {
	Addr netip.Addr
	Pool string
	part int
	// stored is the object to update; nil: one is to be created.
	stored *allocator.Record
	// committed is what Commit wrote, and created says whether that made the
	// object, for Abandon.
	committed *v1alpha1.FloatingIP
	created   bool
}

func (a *address) name() string { return v1alpha1.NameOf(a.Addr) }

// Names of the reservation's FloatingIPs in the order of the request, as the annotation of
// the bound pod has them.
func (r *Reservation) Names() string {
	return podrequest.FormatNames(r.Addrs())
}

// Addrs are the addresses in the order of the request.
func (r *Reservation) Addrs() []netip.Addr {
	addrs := make([]netip.Addr, len(r.addrs))
	for i, a := range r.addrs {
		addrs[i] = a.Addr
	}
	return addrs
}

// Kept says whether all addresses were the owner's before.
func (r *Reservation) Kept() bool {
	return !slices.ContainsFunc(r.addrs, func(a *address) bool { return a.stored == nil })
}

// Pools of the addresses, in their order, separated by commas.
func (r *Reservation) Pools() string {
	var names []string
	for _, a := range r.addrs {
		names = append(names, a.Pool)
	}
	return strings.Join(names, ",")
}

// Reserve takes the addresses for the pod on a node from the pools within its
// reach, in memory, all or none. It fails with a *ShortageError if one went to
// another pod since Candidates.
func (i *IPAM) Reserve(c *Candidates, node Node, reach *pools.Reach) (*Reservation, error) {
	taken, err := i.book.Reserve(c.claimant, c.wants(reach.Positions()))
	var unmet *allocator.UnmetError
	if errors.As(err, &unmet) {
		return nil, &ShortageError{Reasons: []string{c.explain(err, reach.Positions())}, Cause: c.causeOf(err, reach.Positions())}
	}
	if err != nil {
		return nil, fmt.Errorf("reserve addresses: %w", err)
	}
	r := &Reservation{request: c.request, node: node}
	for part, t := range taken {
		r.addrs = append(r.addrs, &address{Addr: t.Addr, Pool: t.Pool, part: part, stored: t.Stored})
	}
	return r, nil
}

// Unreserve gives back what Reserve took. It is idempotent, and does nothing to
// an address that was committed.
func (i *IPAM) Unreserve(r *Reservation) {
	owner := r.request.OwnerKey()
	for _, a := range r.addrs {
		switch {
		case i.book.Release(a.Addr, r.request.UID):
			i.tell(Change{Pool: a.Pool, Addr: a.Addr})
			// It counted against what the namespace and the owner may have.
			i.tellShare(a.Addr, r.request.Namespace)
			i.tell(Change{Owner: &owner, More: 1})
		case a.stored != nil:
			// Another pod of the owner may have found it taken.
			i.tell(Change{Owner: &owner, Addr: a.Addr, More: 1})
		}
	}
}
