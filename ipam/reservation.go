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

// Reservation is addresses that this process promised to a pod, in memory. It ends with
// Commit or Unreserve. Not safe for concurrent use.
type Reservation struct {
	// Trial says that the caller only tries whether pods fit, and will give the addresses back.
	Trial bool

	request Request
	node    Node
	addrs   []*address
}

// address is one address of a reservation. It has the position of its part in the
// request.
type address struct {
	Addr netip.Addr
	Pool string
	part int
	// stored is the record of the object to update; nil: Commit creates an object.
	stored *allocator.Record
	// committed is the object that Commit wrote. created says that Commit created it. Abandon needs
	// both.
	committed *v1alpha1.FloatingIP
	created   bool
}

func (a *address) name() string { return v1alpha1.NameOf(a.Addr) }

// Names returns the names of the FloatingIPs in the order of the request, in the format
// of the bound pod's annotation.
func (r *Reservation) Names() string {
	return podrequest.FormatNames(r.Addrs())
}

// Addrs returns the addresses in the order of the request.
func (r *Reservation) Addrs() []netip.Addr {
	addrs := make([]netip.Addr, len(r.addrs))
	for i, a := range r.addrs {
		addrs[i] = a.Addr
	}
	return addrs
}

// Node returns the name of the node for which the addresses are reserved.
func (r *Reservation) Node() string { return r.node.Name }

// Kept says whether the owner had all addresses before.
func (r *Reservation) Kept() bool {
	return !slices.ContainsFunc(r.addrs, func(a *address) bool { return a.stored == nil })
}

// Pools returns the pools of the addresses, in their order, separated by commas.
func (r *Reservation) Pools() string {
	var names []string
	for _, a := range r.addrs {
		names = append(names, a.Pool)
	}
	return strings.Join(names, ",")
}

// Committed returns the FloatingIPs that Commit wrote.
func (r *Reservation) Committed() []*v1alpha1.FloatingIP {
	var ips []*v1alpha1.FloatingIP
	for _, a := range r.addrs {
		if a.committed != nil {
			ips = append(ips, a.committed)
		}
	}
	return ips
}

// Reserve takes addresses for the pod, from the pools within the node's reach, in
// memory, all or none. It fails with a *ShortageError if another pod has taken an
// address since Candidates. It does not block.
func (i *IPAM) Reserve(c *Candidates, node Node, reach *pools.Reach) (*Reservation, error) {
	if c.request.TwinOf != "" {
		return c.reserveTwin(node), nil
	}
	taken, err := i.book.Reserve(c.claimant, c.wants(reach.Positions()))
	var unmet *allocator.UnmetError
	if errors.As(err, &unmet) {
		return nil, &ShortageError{Reasons: []string{c.explain(err, reach.Positions())}, Cause: c.causeOf(err, reach.Positions()), Lacks: lackOf(err)}
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

// Unreserve gives back the addresses that Reserve took. It is idempotent, and does
// nothing to committed addresses. It does not block.
func (i *IPAM) Unreserve(r *Reservation) {
	owner := r.request.ownerKey()
	for _, a := range r.addrs {
		switch {
		case i.book.Release(a.Addr, r.request.UID):
			i.tell(Change{Pool: a.Pool, Addr: a.Addr, Trial: r.Trial})
			// The reservation counted against the limits of the namespace and the owner.
			i.tellShare(a.Addr, r.request.Namespace, r.Trial)
			i.tell(Change{Owner: &owner, More: 1, Trial: r.Trial})
		case a.stored != nil:
			// Another pod of the owner may wait for the address.
			i.tell(Change{Owner: &owner, Addr: a.Addr, More: 1, Trial: r.Trial})
		}
	}
}
