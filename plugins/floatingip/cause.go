// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-dev/berth/ipam"
)

// cause says why a pod waits, for operators. Several at once are bits.
type cause uint8

const (
	// causeAddress: the pools that it may use have no address for it.
	causeAddress cause = 1 << iota
	// causeOwner: its workload or claim may have no more, or keeps addresses for it elsewhere.
	causeOwner
	// causeAgent: nodes of its pools have no ready agent.
	causeAgent
	// causeSession: nodes of its pools have no established BGP session, and a pool requires one.
	causeSession
	// causePool: no pool that it may use serves the nodes.
	causePool
)

// causeOf is the cause of a lack on one node.
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

// String is the first cause of several: nodes differ, and what the pools lack concerns most of
// them.
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

// why says why a pod waits: the causes, and the only pool that can serve it; empty: several or
// none.
type why struct {
	causes cause
	pool   string
}

// group is the waiting pods that are counted together.
type group struct{ namespace, pool, cause string }

// mostGroups bounds the series of a metric: users make namespaces.
const mostGroups = 100

// bounded puts the pods of small groups together, without namespace and pool, where there are too
// many. Pure.
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
