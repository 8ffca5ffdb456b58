// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-dev/berth/ipam"
)

// cause says why a pod waits, for operators. It is a set of bits, because a pod may have several
// causes.
type cause uint8

const (
	// causeAddress: the pools that the pod may use have no address for it.
	causeAddress cause = 1 << iota
	// causeOwner: the workload or claim may have no more addresses, or keeps addresses that these
	// nodes do not reach.
	causeOwner
	// causeAgent: nodes of the pod's pools have no ready agent.
	causeAgent
	// causeSession: nodes of the pod's pools have no established BGP session, and a pool requires a
	// session.
	causeSession
	// causePool: no pool that the pod may use serves the nodes.
	causePool
)

// causeOf returns the cause of a lack on one node.
func causeOf(lack ipam.Lack) cause {
	switch {
	case lack&ipam.LackAddress != 0:
		return causeAddress
	case lack&ipam.LackOwner != 0:
		return causeOwner
	case lack&ipam.LackAgent != 0:
		return causeAgent
	}
	return causePool
}

// String returns the first of several causes. The causes of nodes differ, and a lack of the pools
// concerns most nodes.
func (c cause) String() string {
	switch {
	case c&causeAddress != 0:
		return "address"
	case c&causeOwner != 0:
		return "owner"
	case c&causeAgent != 0:
		return "agent"
	case c&causeSession != 0:
		return "session"
	}
	return "pool"
}

// why says why a pod waits: the causes, and the only pool that can serve the pod. pool is empty if
// several pools or none can.
type why struct {
	causes cause
	pool   string
}

// group is the labels of waiting pods that are counted together.
type group struct{ namespace, pool, cause string }

// mostGroups limits the number of series of a metric, because users can create many namespaces.
const mostGroups = 100

// bounded adds the smallest groups together, without namespace and pool, if there are too many
// groups. It is pure.
func bounded(groups map[group]int) map[group]int {
	if len(groups) <= mostGroups {
		return groups
	}
	all := slices.SortedFunc(maps.Keys(groups), func(a, b group) int {
		return cmp.Or(cmp.Compare(groups[b], groups[a]), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pool, b.pool), cmp.Compare(a.cause, b.cause))
	})
	few := map[group]int{}
	for i, g := range all {
		n := groups[g]
		if i >= mostGroups {
			g = group{cause: g.cause}
		}
		few[g] += n
	}
	return few
}
