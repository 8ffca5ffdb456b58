// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

// caches have the nodes, the pools, the records of addresses and the agents, of each no more than
// is read here.
type caches struct {
	nodes, agents cache.SharedIndexInformer
	records       cache.SharedIndexInformer
	ipPools       cache.SharedIndexInformer
	pools         *pools.Source
	seen          []cache.DoneChecker
}

const byNode = "node"

func newCaches(config Config, put func(...failover.Input)) (*caches, error) {
	factory := informers.NewSharedInformerFactory(config.Kube, 0)
	ours := informers.NewSharedInformerFactoryWithOptions(config.Kube, 0, informers.WithNamespace(config.Namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = agentpod.Selector }))
	c := &caches{
		nodes: factory.Core().V1().Nodes().Informer(), agents: ours.Core().V1().Pods().Informer(),
		records: client.NewFloatingIPInformer(config.Berth.FloatingIPs, 0, cache.Indexers{byNode: func(object any) ([]string, error) {
			return []string{object.(*v1alpha1.FloatingIP).Spec.Node}, nil
		}}),
		ipPools: client.NewIPPoolInformer(config.Berth.IPPools, 0),
	}
	for informer, transform := range map[cache.SharedIndexInformer]cache.TransformFunc{
		c.nodes: slimNode, c.agents: slimAgent, c.records: slimRecord, c.ipPools: view.DropManagedFields,
	} {
		if err := informer.SetTransform(transform); err != nil {
			return nil, fmt.Errorf("set an informer's transform: %w", err)
		}
	}
	if err := c.agents.AddIndexers(cache.Indexers{byNode: func(object any) ([]string, error) {
		return []string{object.(*v1.Pod).Spec.NodeName}, nil
	}}); err != nil {
		return nil, fmt.Errorf("index the agents by node: %w", err)
	}
	nodes, err := c.nodes.AddEventHandler(tombstone.Handler(func(before, after *v1.Node) {
		switch {
		case after == nil:
			put(failover.Left{Node: before.Name})
		case before == nil || seen(before) != seen(after):
			put(seen(after))
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("follow nodes: %w", err)
	}
	compiled, synced, err := view.Compiled(c.ipPools)
	c.pools, c.seen = compiled, []cache.DoneChecker{nodes.HasSyncedChecker(), synced, c.records.HasSyncedChecker(), c.agents.HasSyncedChecker()}
	return c, err
}

// seen says of a node what the machine has to know.
func seen(n *v1.Node) failover.Seen {
	return failover.Seen{
		Node: n.Name, UID: string(n.UID), Tainted: hasTaint(n, v1alpha1.TaintLost), Unreachable: hasTaint(n, v1.TaintNodeUnreachable),
		OutOfService: slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.MatchTaint(&outOfService) && isOurs(t) }),
	}
}

func hasTaint(n *v1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == key })
}

func slimMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion}
}

// slimNode keeps UID, labels, InternalIPs, taints and provider's ID of a node.
func slimNode(object any) (any, error) {
	n, ok := object.(*v1.Node)
	if !ok {
		return object, nil
	}
	slim := &v1.Node{ObjectMeta: slimMeta(&n.ObjectMeta)}
	slim.Labels = maps.Clone(n.Labels)
	slim.Spec.Taints, slim.Spec.ProviderID = slices.Clone(n.Spec.Taints), n.Spec.ProviderID
	for _, addr := range n.Status.Addresses {
		if addr.Type == v1.NodeInternalIP {
			slim.Status.Addresses = append(slim.Status.Addresses, addr)
		}
	}
	return slim, nil
}

// slimAgent keeps by which node and whether ready an agent is.
func slimAgent(object any) (any, error) {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return object, nil
	}
	slim := &v1.Pod{ObjectMeta: slimMeta(&pod.ObjectMeta)}
	slim.DeletionTimestamp = pod.DeletionTimestamp
	slim.Spec.NodeName = pod.Spec.NodeName
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady {
			slim.Status.Conditions = []v1.PodCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return slim, nil
}

// slimRecord keeps who holds an address where, and in which network.
func slimRecord(object any) (any, error) {
	ip, ok := object.(*v1alpha1.FloatingIP)
	if !ok {
		return object, nil
	}
	slim := &v1alpha1.FloatingIP{ObjectMeta: slimMeta(&ip.ObjectMeta)}
	slim.Spec.Node, slim.Spec.Pool, slim.Spec.Pod = ip.Spec.Node, ip.Spec.Pool, ip.Spec.Pod
	if n := ip.Spec.Network; n != nil {
		slim.Spec.Network = &v1alpha1.Network{Gateway: n.Gateway, VLAN: n.VLAN}
	}
	return slim, nil
}

func (c *caches) run(ctx context.Context) {
	var group sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{c.nodes, c.agents, c.records, c.ipPools} {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	group.Wait()
}

// wait returns when all caches are filled; false, if ctx ended before.
func (c *caches) wait(ctx context.Context) bool {
	return cache.WaitFor(ctx, "the nodes, pools, records and agents", c.seen...)
}

// node returns a Node, nil where there is none.
func (c *caches) node(name string) *v1.Node { return view.Get[v1.Node](c.nodes.GetStore(), name) }

// holding has the addresses of a pod, and whether they say that it is moved.
type holding struct {
	addresses []netip.Addr
	automatic bool
}

// held returns what the pods of a node hold, by their UIDs, and the pools of it.
func (c *caches) held(name string) (held map[string]*holding, of map[string]bool) {
	held, of = map[string]*holding{}, map[string]bool{}
	for _, ip := range view.Indexed[*v1alpha1.FloatingIP](c.records.GetIndexer(), byNode, name) {
		addr, err := v1alpha1.AddrOf(ip.Name)
		if err != nil || ip.Spec.Pod == nil {
			continue
		}
		uid := string(ip.Spec.Pod.UID)
		if held[uid] == nil {
			held[uid] = &holding{automatic: true}
		}
		held[uid].addresses = append(held[uid].addresses, addr)
		held[uid].automatic = held[uid].automatic && ip.Spec.Pod.Failover
		of[ip.Spec.Pool] = true
	}
	for _, h := range held {
		slices.SortFunc(h.addresses, netip.Addr.Compare)
	}
	return held, of
}

// network returns the network of an address, nil where it is not known.
func (c *caches) network(addr netip.Addr) *v1alpha1.Network {
	if ip := view.Get[v1alpha1.FloatingIP](c.records.GetStore(), v1alpha1.NameOf(addr)); ip != nil {
		return ip.Spec.Network
	}
	return nil
}

// preferred is how many witnesses in the pools themselves do without others.
const preferred = 3

// witnesses returns the nodes with a ready agent that some pool serves; only the ones with an
// address of a pool where there are enough of these, as they hear the pool's network already.
func (c *caches) witnesses(of map[string]bool) []string {
	inPool := map[string]bool{}
	for _, ip := range view.All[v1alpha1.FloatingIP](c.records.GetStore()) {
		if ip.Spec.Pod != nil && of[ip.Spec.Pool] {
			inPool[ip.Spec.Node] = true
		}
	}
	snapshot := c.pools.Snapshot()
	var positions []int
	for name := range of {
		if position, ok := snapshot.Index(name); ok {
			positions = append(positions, position)
		}
	}
	var names, inside []string
	for _, n := range view.All[v1.Node](c.nodes.GetStore()) {
		reach := snapshot.Reach(pools.InternalIPs(n), n.Labels).Positions()
		if slices.ContainsFunc(positions, func(p int) bool { return slices.Contains(reach, p) }) && c.agent(n.Name) != nil {
			names = append(names, n.Name)
			if inPool[n.Name] {
				inside = append(inside, n.Name)
			}
		}
	}
	if len(inside) > preferred { // one of them may be the node itself
		return inside
	}
	return names
}

// agent returns the pod of a node's ready agent, nil where there is none.
func (c *caches) agent(node string) *v1.Pod {
	for _, pod := range view.Indexed[*v1.Pod](c.agents.GetIndexer(), byNode, node) {
		if agentpod.IsReady(pod) {
			return pod
		}
	}
	return nil
}
