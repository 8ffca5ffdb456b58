// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"hash/fnv"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/sorted"
)

// Most nodes that carry an address of a Service with externalTrafficPolicy Cluster, by the mode of its pool. On a link one
// node answers; routers spread flows over several.
const (
	onLink = 1
	routed = 8
)

// isAlive returns whether a node can be believed to carry what its agent said: it is Ready, and nobody says that it is off.
func isAlive(node *v1.Node) bool {
	return !isOff(node) && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue })
}

// isOff returns whether somebody said that a node is off.
func isOff(node *v1.Node) bool {
	return node == nil || lastnode.IsOutOfService(node)
}

// takesServices returns whether a node may get an address of a Service: it is alive, and stays so as far as is known.
func takesServices(node *v1.Node) bool {
	_, excluded := node.Labels[v1.LabelNodeExcludeBalancers]
	return isAlive(node) && !excluded && !node.Spec.Unschedulable && node.DeletionTimestamp == nil
}

// withEndpoints returns the nodes on which kube-proxy has endpoints for traffic with the policy Local: ready ones, or, where
// no node has a ready one, those that still serve while they terminate (KEP-1669). Pure.
func withEndpoints(all []*discoveryv1.EndpointSlice) map[string]bool {
	ready, serving := map[string]bool{}, map[string]bool{}
	for _, slice := range all {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if endpoint.NodeName == nil {
				continue
			}
			switch c := endpoint.Conditions; {
			case c.Ready == nil || *c.Ready:
				ready[*endpoint.NodeName] = true
			case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
				serving[*endpoint.NodeName] = true
			}
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return serving
}

// plan is which nodes are to carry an address.
type plan struct {
	// nodes are to carry it now: the targets and, until these confirm, the nodes before.
	nodes []string
	// targets are the nodes that are to carry it for good; fewer than wanted if too few qualify.
	targets []string
}

// choose plans who carries an address. qualified are the nodes that may carry it, now the ones that do or are to, and alive
// tells which of these can be believed. Nodes that carry it and qualify stay; more come by rendezvous hash (Thaler and
// Ravishankar, 1998), so that addresses spread over the nodes. If none qualifies, the nodes before stay with keep, as long as
// they live. Pure.
func choose(address string, most int, keep bool, qualified []string, now []assignments.Carrier, alive func(node string) bool) plan {
	rank := func(a, b string) int {
		return cmp.Or(cmp.Compare(weight(address, b), weight(address, a)), cmp.Compare(a, b))
	}
	var p plan
	before := slices.DeleteFunc(slices.Clone(now), func(c assignments.Carrier) bool { return !c.Assigned })
	slices.SortFunc(before, func(a, b assignments.Carrier) int {
		return cmp.Or(sorted.TrueFirst(a.Carried, b.Carried), rank(a.Node, b.Node))
	})
	for _, carrier := range before {
		if len(p.targets) < most && slices.Contains(qualified, carrier.Node) {
			p.targets = append(p.targets, carrier.Node)
		}
	}
	if len(p.targets) < most {
		others := slices.DeleteFunc(slices.Clone(qualified), func(node string) bool { return slices.Contains(p.targets, node) })
		slices.SortFunc(others, rank)
		p.targets = append(p.targets, others[:min(len(others), most-len(p.targets))]...)
	}
	p.nodes = slices.Clone(p.targets)
	moving := slices.ContainsFunc(p.targets, func(node string) bool {
		return !slices.ContainsFunc(before, func(c assignments.Carrier) bool { return c.Node == node && c.Carried })
	})
	for _, carrier := range before {
		if !slices.Contains(p.nodes, carrier.Node) && alive(carrier.Node) && (moving || len(p.targets) == 0 && keep) {
			p.nodes = append(p.nodes, carrier.Node)
		}
	}
	slices.Sort(p.nodes)
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
