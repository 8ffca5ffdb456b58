// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Listing answers as the scheduler does, from objects that the caller listed. It watches nothing,
// promises addresses in memory only and writes nothing. It does not know the scheduler's promises
// to pods that are being bound at this moment, because they are in no object.
type Listing struct{ ipam *IPAM }

// NewListing returns a Listing of these pools and claims, without any FloatingIP. pods answers
// questions about the pods that the FloatingIPs record; nil: nothing is known of these pods.
func NewListing(all []*v1alpha1.IPPool, claims []*v1alpha1.IPClaim, pods KnownPods) *Listing {
	i := &IPAM{watch: listedClaims(claims)}
	i.book = allocator.New(recordedPods{&i.known})
	i.deletions = newDeletions(i.cooldown, i.rested)
	i.setPools(pools.Compile(all))
	if pods != nil {
		i.KnowPods(pods)
	}
	return &Listing{i}
}

// Observe adds a FloatingIP. Only FloatingIPs in the pools that a request may use, and of
// its owner, matter to its answer.
func (l *Listing) Observe(ip *v1alpha1.FloatingIP) { l.ipam.handler().Observed(ip) }

// Candidates is [IPAM.Candidates].
func (l *Listing) Candidates(request Request) (*Candidates, error) { return l.ipam.Candidates(request) }

// Snapshot returns the pools, which stay the same.
func (l *Listing) Snapshot() *pools.Snapshot { return l.ipam.state.Load().snapshot }

// Reserve is [IPAM.Reserve], for a node of this reach. The addresses are promised until the Listing
// is gone.
func (l *Listing) Reserve(c *Candidates, reach *pools.Reach) error {
	_, err := l.ipam.Reserve(c, Node{}, reach)
	return err
}

// Free returns how many addresses a pool can still give.
func (l *Listing) Free(pool string) uint64 { return l.ipam.book.Counts(pool).Free }

// Terms returns the request with the terms of the claim that it names, if any.
func (l *Listing) Terms(request Request) (Request, error) {
	if request.Claim == "" {
		return request, nil
	}
	return l.ipam.claimed(request)
}

// listedClaims is an ipWatch of a fixed list of claims.
type listedClaims []*v1alpha1.IPClaim

func (l listedClaims) WaitForSync(context.Context) bool { return true }

func (l listedClaims) Claim(namespace, name string) *v1alpha1.IPClaim {
	for _, claim := range l {
		if claim.Namespace == namespace && claim.Name == name {
			return claim
		}
	}
	return nil
}
