// SPDX-License-Identifier: Apache-2.0

// Package assignments gives nodes the addresses of pools with spec.nodeAddresses. A Node is an
// owner in a [preallocation.Loop], with one address of each such pool that it belongs to. The
// package writes one NodeAssignment for each node, by which the node's agent learns them: of
// FloatingIPs that say that the node has the address, and of no others. It takes no address from a
// node; package reclaim does, and the address leaves the NodeAssignment when its FloatingIP says
// so.
//
// It also writes which addresses of Services a node carries, as package services decides
// ([Assignments.Carry]), and on pods what they got, as their node's agent tells there.
package assignments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// EventNoNodeAddress (Warning on Node): a pool with spec.nodeAddresses has no address for the node;
// the note begins with the reason. Do: enlarge the pool, see docs/how-to/node-addresses.md.
const EventNoNodeAddress = "NoNodeAddress"

// Parts has the dependencies of Assignments. The caller runs the factory.
type Parts struct {
	API   *client.Client
	Nodes corev1client.NodeInterface
	// Pods has a rate limit of its own: agents decide how much is written.
	Pods     corev1client.PodsGetter
	Recorder event.Recorder
	View     *view.View
	Factory  informers.SharedInformerFactory
}

// Assignments reconciles Nodes in a [preallocation.Loop]. It is a collector of metrics, which the
// caller registers.
type Assignments struct {
	preallocation.States[said]
	metrics.BaseStableCollector

	loop      *preallocation.Loop
	api       *client.NodeAssignments
	store     *store.Store
	live      corev1client.NodeInterface
	annotated corev1client.PodsGetter
	recorder  event.Recorder
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
	written   cache.SharedIndexInformer
	claims    cache.Indexer

	decisions decisions
	// carrierChanged is called with an address of a Service when the nodes that carry it, or are to,
	// change.
	carrierChanged func(address string)
	// ignored has the last pod of another node that the agent of each node told of.
	ignored locked.Map[string, types.UID]
}

// said is the memory of a node's events: the last reason told.
type said struct{ reason string }

// New has a loop reconcile Nodes. The caller runs the result beside the loop.
func New(loop *preallocation.Loop, parts Parts) (*Assignments, error) {
	nodes, pods := parts.Factory.Core().V1().Nodes(), parts.Factory.Core().V1().Pods()
	a := &Assignments{
		loop: loop, api: parts.API.NodeAssignments, store: store.New(parts.API.FloatingIPs), live: parts.Nodes, annotated: parts.Pods, recorder: parts.Recorder,
		nodes: nodes.Lister(), pods: pods.Lister(), claims: parts.View.IPClaims.GetIndexer(),
		written: client.NewInformer[*v1alpha1.NodeAssignmentList](parts.API.NodeAssignments, &v1alpha1.NodeAssignment{}, 0, cache.Indexers{byAddress: serviceAddresses, byStandby: standbyAddresses}),

		decisions: decisions{of: map[string]decision{}, on: map[string]map[string]bool{}}, carrierChanged: func(string) {},
	}
	if err := a.written.SetTransform(view.DropManagedFields); err != nil {
		return nil, fmt.Errorf("set an informer's transform: %w", err)
	}
	loop.Add(a, preallocation.KindNode)
	return a, errors.Join(
		preallocation.Watch(loop, nodes.Informer(), a.nodeChanged),
		preallocation.Watch(loop, pods.Informer(), a.podChanged),
		preallocation.Watch(loop, a.written, a.assignmentChanged),
		parts.View.IPClaims.AddIndexers(cache.Indexers{byEgress: egressIndex}),
		preallocation.Watch(loop, parts.View.IPClaims, a.claimChanged),
		preallocation.Watch(loop, parts.View.FloatingIPs, a.blocksChanged),
	)
}

// Run follows the NodeAssignments until ctx ends. It blocks.
func (a *Assignments) Run(ctx context.Context) { a.written.RunWithContext(ctx) }

func keyOf(node string) preallocation.Key {
	return preallocation.Key{Kind: preallocation.KindNode, Name: node}
}

func (a *Assignments) nodeChanged(before, after *v1.Node) {
	if before != nil && after != nil && before.UID == after.UID && maps.Equal(before.Labels, after.Labels) &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) && slices.Equal(pools.InternalIPs(before), pools.InternalIPs(after)) {
		return
	}
	a.loop.Enqueue(keyOf(cmp.Or(after, before).Name))
}

func (a *Assignments) assignmentChanged(before, after *v1alpha1.NodeAssignment) {
	for _, address := range changedCarriers(before, after) {
		a.carrierChanged(address)
	}
	a.leadsChanged(before, after)
	if before != nil && after != nil && before.UID == after.UID && before.Generation == after.Generation && slices.Equal(before.Status.Pods, after.Status.Pods) {
		return
	}
	a.loop.Enqueue(keyOf(cmp.Or(after, before).Name))
}

// Affected implements [preallocation.Owners].
func (a *Assignments) Affected(key preallocation.Key) []preallocation.Key {
	return []preallocation.Key{key}
}

// Keys implements [preallocation.Owners]: any node may belong to a pool that changed.
func (a *Assignments) Keys() (keys []preallocation.Key) {
	nodes, _ := a.nodes.List(labels.Everything()) // a lister reads a cache and does not fail
	for _, node := range nodes {
		keys = append(keys, keyOf(node.Name))
	}
	return keys
}

// Reconcile implements [preallocation.Owners].
func (a *Assignments) Reconcile(ctx context.Context, key preallocation.Key) (again time.Duration, err error) {
	recorded := a.loop.Addresses(key)
	// Not found is nil: a lister reads a cache.
	node, _ := a.nodes.Get(key.Name)
	isReserved := func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Reserved }
	reserved := slices.DeleteFunc(slices.Clone(recorded), func(ip *v1alpha1.FloatingIP) bool { return !isReserved(ip) })
	look, refused := a.reserve(ctx, node, reserved)
	again, err = a.give(ctx, key, node, slices.DeleteFunc(recorded, isReserved))
	if again == 0 || look > 0 && look < again {
		again = look
	}
	return again, errors.Join(refused, err, a.annotate(ctx, key.Name))
}

// give gives a node its addresses; node is nil if there is no Node. recorded are the ones that it
// has.
func (a *Assignments) give(ctx context.Context, key preallocation.Key, node *v1.Node, recorded []*v1alpha1.FloatingIP) (again time.Duration, err error) {
	if node == nil {
		a.Forget(key)
		return 0, a.assign(ctx, key.Name, nil, v1alpha1.NodeAssignmentSpec{})
	}
	spec := v1alpha1.NodeAssignmentSpec{Claims: a.leaving(key.Name)}
	spec.Addresses, spec.Standby = a.ofServices(key.Name)
	wanted := poolsOf(node, a.loop.Pools())
	if len(recorded) == 0 && len(wanted) == 0 {
		a.Forget(key)
		return 0, a.assign(ctx, key.Name, node, spec)
	}
	m := a.Of(key, node.UID)
	left := following(node, wanted, recorded)
	for ip, spec := range left {
		if _, err := a.store.Update(ctx, ip, spec); err != nil {
			return 0, fmt.Errorf("give node %s its address %s: %w", node.Name, ip.Spec.Address, err)
		}
		klog.FromContext(ctx).V(2).Info("A node has an address that was recorded for it", "node", node.Name, "ip", ip.Spec.Address)
	}
	if len(left) > 0 {
		return preallocation.Gather, nil
	}
	spec.Addresses, spec.Egress = append(assigned(node, recorded), spec.Addresses...), egress(node, wanted, recorded)
	if err := a.assign(ctx, key.Name, node, spec); err != nil {
		return 0, err
	}
	goal, has := goalOf(node, wanted, recorded)
	if len(goal.Wants) == 0 {
		m.State.reason = ""
		return 0, nil
	}
	goal.Confirm = func(ctx context.Context) error { return a.stillServed(ctx, node, wanted) }
	wrong, again, err := a.loop.Take(ctx, key, &m.Progress, goal, has)
	if err != nil {
		return 0, err
	}
	a.tell(node, &m.State, wrong)
	return again, nil
}

// poolsOf returns the pools that give a node an address. A Node that is being deleted gets no new
// one.
func poolsOf(node *v1.Node, snapshot *pools.Snapshot) map[string]*pools.Pool {
	found := map[string]*pools.Pool{}
	for _, pool := range snapshot.Pools() {
		if pool.NodeAddresses != nil && !pool.ExternalAssigner && node.DeletionTimestamp == nil && pool.Serves(node) {
			found[pool.Name] = pool
		}
	}
	return found
}

// isTheNodes returns whether an address belongs to the Node, and not to one that had its name
// before.
func isTheNodes(ip *v1alpha1.FloatingIP, node *v1.Node) bool { return ip.Spec.Owner.UID == node.UID }

// following returns the records of addresses that wait for a node of this name, with this Node, and
// of addresses whose network is another than their pool's now. Pure.
func following(node *v1.Node, wanted map[string]*pools.Pool, recorded []*v1alpha1.FloatingIP) map[*v1alpha1.FloatingIP]v1alpha1.FloatingIPSpec {
	changed := map[*v1alpha1.FloatingIP]v1alpha1.FloatingIPSpec{}
	for name, ip := range first(recorded) {
		pool := wanted[name]
		if pool == nil || !isTheNodes(ip, node) && !ip.Spec.Owner.IsAwaited() && !pool.NodeAddresses.Keep {
			continue
		}
		spec := *ip.Spec.DeepCopy()
		spec.Owner.UID, spec.Node, spec.KeepUntil = node.UID, node.Name, nil
		spec.Network = pool.Network()
		if !isTheNodes(ip, node) || ip.Spec.Node != node.Name {
			spec.Since = ip.Spec.NextSince(time.Now())
		}
		if last := spec.LastNode; last != nil && last.Name == node.Name && last.UID == node.UID {
			spec.LastNode = nil
		}
		if !equality.Semantic.DeepEqual(spec, ip.Spec) {
			changed[ip] = spec
		}
	}
	return changed
}

// first returns the oldest of a node's addresses of each pool: package reclaim frees the others.
func first(recorded []*v1alpha1.FloatingIP) map[string]*v1alpha1.FloatingIP {
	oldest := map[string]*v1alpha1.FloatingIP{}
	for _, ip := range recorded {
		if was := oldest[ip.Spec.Pool]; was == nil || ip.CompareAge(was) < 0 {
			oldest[ip.Spec.Pool] = ip
		}
	}
	return oldest
}

// gives returns whether a record gives the node its address now.
func gives(node *v1.Node, ip *v1alpha1.FloatingIP) bool {
	return isTheNodes(ip, node) && ip.Spec.Node == node.Name && ip.Spec.Network != nil
}

// assigned returns the addresses that the records give the node. Pure.
func assigned(node *v1.Node, recorded []*v1alpha1.FloatingIP) []v1alpha1.AssignedAddress {
	var addresses []v1alpha1.AssignedAddress
	all := first(recorded)
	for _, pool := range slices.SortedFunc(maps.Keys(all), func(x, y string) int { return all[x].Addr().Compare(all[y].Addr()) }) {
		ip := all[pool]
		if !gives(node, ip) {
			continue
		}
		addresses = append(addresses, v1alpha1.AssignedAddress{
			Address: ip.Spec.Address, Use: v1alpha1.UseNode, Network: v1alpha1.Network{Subnet: ip.Spec.Network.Subnet, VLAN: ip.Spec.Network.VLAN},
		})
	}
	return addresses
}

// egress returns which pods leave with which addresses of the node. A pool is there also while the
// node has no address of it: its pods are not to leave with another one. Pure.
func egress(node *v1.Node, wanted map[string]*pools.Pool, recorded []*v1alpha1.FloatingIP) []v1alpha1.AssignedEgress {
	var of []v1alpha1.AssignedEgress
	all := first(recorded)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		pool := wanted[name]
		if pool.Egress == nil {
			continue
		}
		one := v1alpha1.AssignedEgress{Egress: *pool.Egress, Pool: name, Network: *pool.Network()}
		if ip := all[name]; ip != nil && gives(node, ip) {
			one.Address = ip.Spec.Address
		}
		of = append(of, one)
	}
	return of
}

// goalOf returns the addresses that a node lacks, and how many it has. An address of a pool that is
// not the node's any more counts until it is freed. Pure.
func goalOf(node *v1.Node, wanted map[string]*pools.Pool, recorded []*v1alpha1.FloatingIP) (preallocation.Goal, preallocation.Count) {
	goal, all := preallocation.Goal{}, first(recorded)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if all[name] == nil {
			goal.Wants = append(goal.Wants, preallocation.Want{Request: requestOf(node, wanted[name]), Size: 1})
		}
	}
	return goal, preallocation.CountOf(recorded)
}

// requestOf returns the request of a node for one address of a pool.
func requestOf(node *v1.Node, pool *pools.Pool) ipam.Request {
	return ipam.Request{
		Request: podrequest.Request{Policy: v1alpha1.ReleaseRetain, Pools: []string{pool.Name}, Parts: []ipam.Part{{Family: pool.Family()}}},
		Owner:   ipam.Owner{APIVersion: "v1", Kind: preallocation.KindNode, Name: node.Name, UID: string(node.UID)},
	}
}

// stillServed asks the API server whether the Node is there and belongs to the pools. It fails with
// store.ErrChanged if not.
func (a *Assignments) stillServed(ctx context.Context, seen *v1.Node, wanted map[string]*pools.Pool) error {
	live, err := a.live.Get(ctx, seen.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node %s: %w", seen.Name, err)
	}
	if live.UID != seen.UID || live.DeletionTimestamp != nil {
		return fmt.Errorf("node %s: %w", seen.Name, store.ErrChanged)
	}
	for _, pool := range wanted {
		if !pool.Serves(live) {
			return fmt.Errorf("node %s in IPPool %s: %w", seen.Name, pool.Name, store.ErrChanged)
		}
	}
	return nil
}

// assign writes the NodeAssignment of a node; node is nil if there is no Node.
func (a *Assignments) assign(ctx context.Context, name string, node *v1.Node, spec v1alpha1.NodeAssignmentSpec) error {
	seen, exists := a.assignment(name)
	if node == nil {
		if !exists {
			return nil
		}
		if err := a.api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion}}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete NodeAssignment %s: %w", name, err)
		}
		return nil
	}
	// The Node's deletion deletes it, should no controller run then.
	owners := []metav1.OwnerReference{{APIVersion: "v1", Kind: preallocation.KindNode, Name: node.Name, UID: node.UID}}
	want := &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}, Spec: spec}
	if !exists {
		_, err := a.api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create NodeAssignment %s: %w", name, store.ErrChanged)
		}
		if err != nil {
			return fmt.Errorf("create NodeAssignment %s: %w", name, err)
		}
		return nil
	}
	if equality.Semantic.DeepEqual(seen.Spec, want.Spec) && equality.Semantic.DeepEqual(seen.OwnerReferences, owners) {
		return nil
	}
	if err := a.mayTake(ctx, name, seen.Spec.Claims, spec.Claims); err != nil {
		return err
	}
	update := seen.DeepCopy()
	update.Spec, update.OwnerReferences = want.Spec, owners
	if _, err := a.api.Update(ctx, update, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update NodeAssignment %s: %w", name, err)
	}
	return nil
}

// tell emits an event about a new reason why the node lacks an address.
func (a *Assignments) tell(node *v1.Node, s *said, wrong *preallocation.Problem) {
	reason := ""
	if wrong != nil && preallocation.Failed(wrong.Reason) {
		reason = wrong.Reason
	}
	if reason != "" && reason != s.reason {
		event.Warning(EventNoNodeAddress, wrong.Reason+": "+wrong.Message).Record(a.recorder, node, nil, "GiveNodeAddress")
	}
	s.reason = reason
}
