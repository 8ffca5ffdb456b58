// SPDX-License-Identifier: Apache-2.0

// Package carriers chooses the nodes that carry an address which is no node's own: of a Service, or
// of pods that leave by it. It decides without I/O, from what nodes and their agents say.
//
// # Standby
//
// Kubernetes finds after some 40 seconds that a node died. Of an address by which pods leave, which
// one node carries, another one is told by its NodeAssignment that it is the standby: the next by
// rank. Its agent asks for the address twice a second as the network's hosts do, by ARP or
// neighbour discovery ([Watch]). After four silences in a row it says so in its status, and the
// carrier is passed over ([Silences]): the next is chosen, and answers by the API's word, while it
// asserts the address. Nothing waits for the last carrier: they keep no state, so two that answer
// do no harm.
//
//   - Only silence counts. A carrier whose agent hangs or restarts is kept: its kernel leads answers.
//   - A silence counts if the pool's gateway answered the same round: a standby that is cut off says
//     nothing. No other host is enough: whom the gateway does not reach is to carry nothing.
//   - A standby that never heard the carrier says nothing: a network that keeps the two apart is not
//     the carrier's death. One that begins to do so moves the address once in ten minutes.
//   - After a silence all hosts are asked: the carrier's MAC may have changed.
//   - The word of a node counts for the address and the carrier that its spec names, which only
//     berth-controller writes.
//   - Who was passed over is neither carrier nor standby for ten minutes, also when it is back,
//     unless nobody else can.
//   - Where standby and carrier die within 40 seconds, Kubernetes' word is waited for.
//
// berth-failover has verdicts about nodes, too. They begin with a Lease that was not renewed for 15
// seconds, and are about the node's InternalIP, where a carrier may live that lost the network of
// the address. So its questions (agent/lifesign) are not used here.
package carriers

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/sorted"
)

// Settle is how long no node is assigned an address before its record says that nobody has it: the
// cache of NodeAssignments may be behind.
const Settle = time.Second

// IsAlive returns whether a node can be believed to carry what its agent said: it is Ready, and
// nobody says that it is off.
func IsAlive(node *v1.Node) bool {
	if node == nil || IsOff(node) {
		return false
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue })
}

// IsOff returns whether somebody said that a node is off.
func IsOff(node *v1.Node) bool {
	return node == nil || lastnode.IsOutOfService(node)
}

// CanCarry returns whether a node may get an address to carry: it is alive, and stays so as far as
// is known.
func CanCarry(node *v1.Node) bool {
	_, excluded := node.Labels[v1.LabelNodeExcludeBalancers]
	return IsAlive(node) && !excluded && !node.Spec.Unschedulable && node.DeletionTimestamp == nil
}

// MayCarry returns whether a node may get an address of a pool to carry; false if pool is nil.
func MayCarry(node *v1.Node, pool *pools.Pool) bool {
	return pool != nil && CanCarry(node) && pool.Serves(node)
}

// Plan is which nodes are to carry an address.
type Plan struct {
	// Nodes are to carry it now: the targets and, until these confirm, the nodes before.
	Nodes []string
	// Targets are the nodes that are to carry it for good; fewer than wanted if too few qualify.
	Targets []string
	// Standby is the next node where one alone is to carry it and does, empty if no other qualifies.
	Standby string
}

// Choose plans who carries an address. qualified are the nodes that may carry it, now the ones that
// do or are to, and alive tells which of these can be believed. Nodes that carry it and qualify
// stay; more come by rendezvous hash (Thaler and Ravishankar, 1998), so that addresses spread over
// the nodes. If none qualifies, the nodes before stay with keep, as long as they live. Pure.
func Choose(address string, most int, keep bool, qualified []string, now []v1alpha1.Carrier, alive func(node string) bool) Plan {
	rank := func(a, b string) int {
		return cmp.Or(cmp.Compare(weight(address, b), weight(address, a)), cmp.Compare(a, b))
	}
	var p Plan
	before := slices.DeleteFunc(slices.Clone(now), func(c v1alpha1.Carrier) bool { return !c.Assigned })
	slices.SortFunc(before, func(a, b v1alpha1.Carrier) int {
		return cmp.Or(sorted.TrueFirst(a.Carried, b.Carried), rank(a.Node, b.Node))
	})
	for _, carrier := range before {
		if len(p.Targets) < most && slices.Contains(qualified, carrier.Node) {
			p.Targets = append(p.Targets, carrier.Node)
		}
	}
	others := slices.DeleteFunc(slices.Clone(qualified), func(node string) bool { return slices.Contains(p.Targets, node) })
	slices.SortFunc(others, rank)
	more := min(len(others), most-len(p.Targets))
	p.Targets, others = append(p.Targets, others[:more]...), others[more:]
	p.Nodes = slices.Clone(p.Targets)
	moving := slices.ContainsFunc(p.Targets, func(node string) bool {
		return !slices.ContainsFunc(before, func(c v1alpha1.Carrier) bool { return c.Node == node && c.Carried })
	})
	for _, carrier := range before {
		if !slices.Contains(p.Nodes, carrier.Node) && alive(carrier.Node) && (moving || len(p.Targets) == 0 && keep) {
			p.Nodes = append(p.Nodes, carrier.Node)
		}
	}
	if len(p.Targets) == 1 && !moving && len(others) > 0 {
		p.Standby = others[0]
	}
	slices.Sort(p.Nodes)
	return p
}

// weight is the weight of a node for an address. It is the same in each process.
func weight(address, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(address + "\x00" + node)) // it returns no error
	// FNV leaves the upper bits of short texts much alike: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// AnsweredBy returns the record of an address with the node that is to answer for it on its link,
// and whether it differs from the present one. Where that node carries the address, no other one
// does any more, or two do no harm. now are the carriers. Pure.
func AnsweredBy(ip *v1alpha1.FloatingIP, p Plan, now []v1alpha1.Carrier, nodeOf func(name string) *v1.Node) (spec v1alpha1.FloatingIPSpec, changed bool) {
	spec = *ip.Spec.DeepCopy()
	next, before := *spec.Carrier(), *spec.Carrier()
	switch {
	case ip.Spec.IsRouted():
		next = ""
	case len(p.Targets) > 0:
		next = p.Targets[0]
	}
	switch {
	case next != before:
		*spec.Carrier() = next
		// One that is there still is of a node before, as that one has not said that it carries the
		// address.
		if spec.LastNode == nil {
			spec.LastNode = lastnode.After(nil, before, false, nodeOf)
		}
	case next != "" && slices.ContainsFunc(now, func(c v1alpha1.Carrier) bool { return c.Node == next && c.Assigned && c.Carried }):
		spec.LastNode = nil
	}
	return spec, next != before || spec.LastNode == nil && ip.Spec.LastNode != nil
}

// Last returns a node that may carry an address still although nobody can ask it, of the carriers
// of an address that nobody wants any more. waits says that a node is to confirm first that it
// carries the address no more. nodeOf returns a node, nil where there is none.
func Last(all []v1alpha1.Carrier, nodeOf func(name string) *v1.Node) (last *v1alpha1.NodeReference, waits bool) {
	for _, carrier := range all {
		switch node := nodeOf(carrier.Node); {
		case IsOff(node):
		case carrier.Assigned || IsAlive(node):
			waits = true
		default:
			last = &v1alpha1.NodeReference{Name: node.Name, UID: node.UID}
		}
	}
	return last, waits
}
