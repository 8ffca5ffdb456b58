// SPDX-License-Identifier: Apache-2.0

// Package egress gives nodes blocks of the ports of addresses by which the ordinary pods of a
// namespace leave the cluster.
package egress

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/sorted"
)

// address is an address of a claim with its blocks, by index.
type address struct {
	name   string
	blocks []v1alpha1.EgressBlock
	// closed: no node gets a block of it that has none.
	closed bool
}

// rest is for how long at least a node keeps its block after its last pod: hosts outside may
// remember connections.
const rest = 10 * time.Minute

// nodes are the nodes of a cluster as far as blocks depend on them.
type nodes struct {
	// wanting have pods that leave.
	wanting []string
	// rests returns whether a node had such pods a short while ago.
	rests func(node string) bool
	// fits returns whether a node can send from an address.
	fits func(address, node string) bool
	// stopped returns whether a node sends nothing from its block of an address, and cannot begin to.
	stopped func(address, node string) bool
}

// idle has since when nodes with a block have no pods that leave. After a restart of the process
// they rest anew.
type idle map[string]time.Time

// look notes which nodes want a block, and returns when the rest of one ends; 0: none rests. left
// has when the last pod was seen to end that left by a node: it may have come and gone since the
// last look.
func (i idle) look(all []address, wanting []string, left map[string]time.Time, now time.Time) (again time.Duration) {
	before := maps.Clone(i)
	clear(i)
	for _, a := range all {
		for _, b := range a.blocks {
			if slices.Contains(wanting, b.Node) {
				continue
			}
			since, ok := before[b.Node]
			switch {
			case !ok:
				since = now
			case left[b.Node].After(since):
				since = left[b.Node]
			}
			i[b.Node] = since
			if left := since.Add(rest).Sub(now); left > 0 && (again == 0 || left < again) {
				again = left
			}
		}
	}
	return again
}

// rests returns whether a node keeps its block without pods.
func (i idle) rests(node string, now time.Time) bool {
	since, ok := i[node]
	return ok && now.Before(since.Add(rest))
}

// hasStopped returns whether a node, by its NodeAssignment, nil for none, sends nothing from an
// address: it is assigned no ports of it, and its agent says that the kernel follows.
func hasStopped(assignment *v1alpha1.NodeAssignment, address string) bool {
	return assignment == nil || assignment.Status.ObservedGeneration >= assignment.Generation &&
		!slices.ContainsFunc(assignment.Spec.Claims, func(c v1alpha1.AssignedClaim) bool { return c.Address == address })
}

// assign changes the blocks of the addresses of one family, the oldest address first: each node
// that wants one has one, and keeps it. No other node gets a block before the last one has stopped.
// It returns the nodes that get none, because all are taken. Pure.
func assign(all []address, ports int32, n nodes) (lacking []string) {
	type given struct {
		*v1alpha1.EgressBlock

		address string
	}
	var blocks []given
	for i := range all {
		for k := range all[i].blocks {
			blocks = append(blocks, given{&all[i].blocks[k], all[i].name})
		}
	}
	// A node with two blocks, as two controllers may have given them, keeps the one that it sends
	// from.
	slices.SortStableFunc(blocks, func(x, y given) int { return sorted.TrueFirst(!x.Withdrawn, !y.Withdrawn) })
	has := map[string]bool{}
	for _, b := range blocks {
		switch {
		case !has[b.Node] && (slices.Contains(n.wanting, b.Node) || !b.Withdrawn && n.rests(b.Node)):
			has[b.Node], b.Withdrawn = true, false
		case !b.Withdrawn:
			b.Withdrawn = true
		case n.stopped(b.address, b.Node):
			b.Node = ""
		}
	}
	for i := range all {
		all[i].blocks = slices.DeleteFunc(all[i].blocks, func(b v1alpha1.EgressBlock) bool { return b.Node == "" })
	}
	for _, node := range slices.Sorted(slices.Values(n.wanting)) {
		if !has[node] && !n.give(all, ports, node) {
			lacking = append(lacking, node)
		}
	}
	return lacking
}

// give gives a node the first free block of the address that has most of them.
func (n *nodes) give(all []address, ports int32, node string) bool {
	var most *address
	for i := range all {
		if a := &all[i]; !a.closed && n.fits(a.name, node) && len(a.blocks) < v1alpha1.EgressBlocks(ports) && (most == nil || len(a.blocks) < len(most.blocks)) {
			most = a
		}
	}
	if most == nil {
		return false
	}
	index := v1alpha1.FirstEgressBlock(ports)
	for _, b := range most.blocks {
		if b.Index == index {
			index++
		}
	}
	most.blocks = append(most.blocks, v1alpha1.EgressBlock{Index: index, Node: node})
	slices.SortFunc(most.blocks, func(x, y v1alpha1.EgressBlock) int { return cmp.Compare(x.Index, y.Index) })
	return true
}
