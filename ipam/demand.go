// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"slices"

	"github.com/berth-dev/berth/ipam/pools"
)

// Demand is the largest number of free addresses that pods may take of each pool of one snapshot.
// nil is no demand. Not safe for concurrent use.
type Demand struct {
	// of has, for each pool, the number of addresses of the pods that may take some from it. all is
	// the number of addresses of all pods.
	of  []int
	all int
}

// NewDemand returns the demand of no pod.
func NewDemand(snapshot *pools.Snapshot) *Demand {
	return &Demand{of: make([]int, len(snapshot.Pools()))}
}

// Add adds pods that may take n addresses from these pools, or removes them, if n is negative.
func (d *Demand) Add(from *pools.Reach, n int) {
	if len(from.Positions()) == 0 {
		return
	}
	d.all += n
	for _, position := range from.Positions() {
		d.of[position] += n
	}
}

// Clone copies a demand; nil if no pod has a demand.
func (d *Demand) Clone() *Demand {
	if d.all == 0 {
		return nil
	}
	return &Demand{of: slices.Clone(d.of), all: d.all}
}

// Sources returns the pools of a snapshot that may give a request an address at some time. It
// returns no pool if the request names a claim that does not exist. It does not block.
func (i *IPAM) Sources(request *Request, snapshot *pools.Snapshot) *pools.Reach {
	if request.Claim != "" {
		claimed, err := i.claimed(*request)
		if err != nil {
			return pools.NewReach()
		}
		request = &claimed
	}
	var positions []int
	for position, pool := range snapshot.Pools() {
		if request.mayUse(pool) && slices.ContainsFunc(request.Parts, func(p Part) bool { return fitsPool(&p, pool) }) {
			positions = append(positions, position)
		}
	}
	return pools.NewReach(positions...)
}
