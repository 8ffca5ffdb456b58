// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/carriers"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// EventEgressIncomplete (Warning on IPClaim): pods of some nodes cannot leave by the claim, or a
// node does not answer for one of its addresses; the note says why. Do: as the note says, see
// docs/how-to/egress.md#one-address-of-a-namespace.
const EventEgressIncomplete = "EgressIncomplete"

// look is how often nodes are looked at that are to stop, or to confirm.
const look = 2 * time.Second

// Nodes has the methods of assignments.Assignments that this package uses. No method blocks.
type Nodes interface {
	Follow(changed func(address string))
	Carry(address v1alpha1.AssignedAddress, nodes []string, standby string)
	Carriers(address string) []assignments.Carrier
	Leaving(namespace string) []*v1alpha1.IPClaim
	Seen(node string) *v1alpha1.NodeAssignment
}

// Parts has the dependencies of [Add]. The caller runs the view and the factory, whose informers
// should have the transform reclaim.Slim.
type Parts struct {
	API      *client.Client
	Recorder event.Recorder
	View     *view.View
	Factory  informers.SharedInformerFactory
	Nodes    Nodes
}

// controller reconciles the egress of IPClaims in a [preallocation.Loop].
type controller struct {
	preallocation.States[memory]

	loop     *preallocation.Loop
	api      *client.Client
	store    *store.Store
	recorder event.Recorder
	assigned Nodes
	claims   cache.Store
	nodes    corelisters.NodeLister
	pods     corelisters.PodLister
	// left has when the last pod of a namespace ended on a node.
	left locked.Map[[2]string, time.Time]
}

// memory is of one claim.
type memory struct {
	idle idle
	// has are the addresses about which the claim decided, with the nodes that do not confirm, and
	// freed since when no node has ports of an address that it gives up.
	has   map[string]carriers.Silences
	freed map[string]time.Time
	told  string
}

// Add has a loop reconcile the egress of IPClaims.
func Add(loop *preallocation.Loop, parts Parts) error {
	core := parts.Factory.Core().V1()
	c := &controller{
		loop: loop, api: parts.API, store: store.New(parts.API.FloatingIPs), recorder: parts.Recorder, assigned: parts.Nodes,
		claims: parts.View.IPClaims.GetStore(), nodes: core.Nodes().Lister(), pods: core.Pods().Lister(),
	}
	loop.Add(c, preallocation.KindEgress)
	parts.Nodes.Follow(func(address string) {
		if ip := loop.FloatingIP(address); ip != nil {
			c.addressChanged(nil, ip)
		}
	})
	return errors.Join(
		preallocation.Watch(loop, parts.View.IPClaims, c.claimChanged),
		preallocation.Watch(loop, parts.View.FloatingIPs, c.addressChanged),
		preallocation.Watch(loop, core.Pods().Informer(), c.podChanged),
		preallocation.Watch(loop, core.Nodes().Informer(), c.nodeChanged),
	)
}

func keyOf(namespace, claim string) preallocation.Key {
	return preallocation.Key{Kind: preallocation.KindEgress, Namespace: namespace, Name: claim}
}

func (c *controller) claimChanged(before, after *v1alpha1.IPClaim) {
	claim := cmp.Or(after, before)
	if claim.Spec.Egress != nil && (before == nil || after == nil || before.Generation != after.Generation || before.UID != after.UID) {
		c.namespaceChanged(claim.Namespace)
		c.loop.Enqueue(keyOf(claim.Namespace, claim.Name))
	}
}

func (c *controller) namespaceChanged(namespace string) {
	for _, claim := range c.assigned.Leaving(namespace) {
		c.loop.Enqueue(keyOf(claim.Namespace, claim.Name))
	}
}

func (c *controller) addressChanged(before, after *v1alpha1.FloatingIP) {
	for _, ip := range []*v1alpha1.FloatingIP{before, after} {
		switch {
		case ip == nil || ip.Spec.Owner == nil:
		case ip.Spec.Owner.IsClaim():
			c.loop.EnqueueAfter(keyOf(ip.Spec.Owner.Namespace, ip.Spec.Owner.Name), preallocation.Gather)
		case ip.Spec.Owner.IsNode():
			c.namespaceChanged("") // It may be the way to a node.
		}
	}
}

func (c *controller) podChanged(before, after *v1.Pod) {
	pod := cmp.Or(after, before)
	was, is := before != nil && leaves(before), after != nil && leaves(after)
	if was == is || len(c.assigned.Leaving(pod.Namespace)) == 0 {
		return
	}
	if was {
		now := time.Now()
		c.left.Do(func(all map[[2]string]time.Time) {
			maps.DeleteFunc(all, func(_ [2]string, at time.Time) bool { return now.After(at.Add(rest)) })
			all[[2]string{pod.Namespace, pod.Spec.NodeName}] = now
		})
	}
	c.namespaceChanged(pod.Namespace)
}

// leaves returns whether a pod may leave by a claim: it is on a node, has no floating IP, and has
// not ended.
func leaves(pod *v1.Pod) bool {
	wants, _ := podrequest.Reader{}.Requested(&pod.Spec) // without Galaxy's resource a node may have ports in vain
	return wants == 0 && pod.Spec.NodeName != "" && !pod.Spec.HostNetwork && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

func (c *controller) nodeChanged(before, after *v1.Node) {
	if before == nil || after == nil || before.UID != after.UID || carriers.CanCarry(before) != carriers.CanCarry(after) ||
		carriers.IsAlive(before) != carriers.IsAlive(after) || carriers.IsOff(before) != carriers.IsOff(after) || !maps.Equal(before.Labels, after.Labels) {
		c.namespaceChanged("")
	}
}

// Affected implements [preallocation.Owners].
func (c *controller) Affected(key preallocation.Key) []preallocation.Key {
	return []preallocation.Key{key}
}

// Keys implements [preallocation.Owners].
func (c *controller) Keys() (keys []preallocation.Key) {
	for _, claim := range c.assigned.Leaving("") {
		keys = append(keys, keyOf(claim.Namespace, claim.Name))
	}
	return keys
}

// nodeOf returns a node, nil where there is none.
func (c *controller) nodeOf(name string) *v1.Node { node, _ := c.nodes.Get(name); return node }

// Reconcile implements [preallocation.Owners].
func (c *controller) Reconcile(ctx context.Context, key preallocation.Key) (again time.Duration, err error) {
	claim := view.Get[v1alpha1.IPClaim](c.claims, key.Namespace+"/"+key.Name)
	all := c.loop.Addresses(preallocation.Key{Kind: preallocation.KindClaim, Namespace: key.Namespace, Name: key.Name})
	lives := slices.ContainsFunc(c.assigned.Leaving(key.Namespace), func(l *v1alpha1.IPClaim) bool { return l.Name == key.Name })
	if !lives {
		claim = nil
	}
	held := slices.DeleteFunc(slices.Clone(all), func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Egress == nil })
	m := c.Of(key, "")
	if claim == nil && len(held) == 0 {
		c.Forget(key)
		return 0, nil
	}
	if claim == nil {
		if err := c.isGone(ctx, key, held); err != nil {
			return 0, err
		}
	}
	var problems []string
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		of := slices.DeleteFunc(slices.Clone(all), func(ip *v1alpha1.FloatingIP) bool { return ip.Family() != family })
		slices.SortFunc(of, func(x, y *v1alpha1.FloatingIP) int { return x.CompareAge(y) })
		soon, problem, err := c.family(ctx, claim, &m.State, of, key.Namespace, family)
		if err != nil {
			return 0, err
		}
		again, problems = carriers.Sooner(again, soon), append(problems, problem...)
	}
	if note := strings.Join(problems, " "); note != m.State.told {
		if m.State.told = note; note != "" && claim != nil {
			event.Warning(EventEgressIncomplete, note).Record(c.recorder, claim, nil, "LeadPods")
		}
	}
	return again, nil
}

// isGone asks the API server whether there is no claim that has these addresses. It fails with
// store.ErrChanged if there is.
func (c *controller) isGone(ctx context.Context, key preallocation.Key, held []*v1alpha1.FloatingIP) error {
	live, err := c.api.IPClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get IPClaim %s/%s: %w", key.Namespace, key.Name, err)
	case live.DeletionTimestamp == nil && live.Spec.Egress != nil && live.UID == held[0].Spec.Owner.UID:
		return fmt.Errorf("check IPClaim %s: %w", klog.KObj(live), store.ErrChanged)
	}
	return nil
}

// family reconciles the addresses of one family, the oldest first. claim is nil where pods leave by
// it no more.
func (c *controller) family(ctx context.Context, claim *v1alpha1.IPClaim, m *memory, ips []*v1alpha1.FloatingIP, namespace string, family v1alpha1.IPFamily) (again time.Duration, problems []string, err error) {
	var shared []*v1alpha1.FloatingIP
	var all []address
	room := 0
	if claim != nil {
		room = int(claim.Spec.Size)
	}
	for _, ip := range ips {
		// It may be of a claim that had the name before: then it is given up, or package claims adopts
		// it.
		isOurs := claim != nil && ip.Spec.Owner.UID == claim.UID && len(shared) < room
		if ip.Spec.Egress != nil {
			isOurs = isOurs && ip.Spec.Egress.PortsPerNode == claim.Spec.Egress.PortsPerNode
			shared = append(shared, ip)
			all = append(all, address{ip.Spec.Address, slices.Clone(ip.Spec.Egress.Blocks), !isOurs})
			continue
		}
		if !isOurs || ip.Spec.IsHeld() || ip.Spec.Reserved {
			continue
		}
		if !c.canShare(ip) {
			problems = append(problems, fmt.Sprintf("Pods cannot leave with %s: IPPool %q needs mode Link, spec.nodeAddresses and spec.gateway.", ip.Spec.Address, ip.Spec.Pool))
			continue
		}
		spec := *ip.Spec.DeepCopy()
		spec.Egress, spec.Since = &v1alpha1.EgressHolder{PortsPerNode: claim.Spec.Egress.PortsPerNode}, ip.Spec.NextSince(time.Now())
		spec.Network = c.loop.Pools().PoolOf(ip.Addr()).Network()
		if _, err := c.store.Update(ctx, ip, spec); err != nil {
			return 0, nil, fmt.Errorf("have pods of namespace %s leave with %s: %w", namespace, ip.Name, err)
		}
		return preallocation.Gather, nil, nil
	}
	if len(shared) == 0 {
		return 0, problems, nil
	}
	lacking, again := c.assign(claim, m, all, shared, namespace, family)
	if len(lacking) > 0 {
		problems = append(problems, fmt.Sprintf("Pods on node %s and %d other nodes cannot leave by %s: no address has ports left in a pool that gives the node an address; raise spec.size.", lacking[0], len(lacking)-1, family))
	}
	changed := false
	for i, ip := range shared {
		spec := *ip.Spec.DeepCopy()
		if pool := c.loop.Pools().PoolOf(ip.Addr()); pool != nil && pool.Name == spec.Pool {
			spec.Network = pool.Network()
		}
		if spec.Egress.Blocks = all[i].blocks; !equality.Semantic.DeepEqual(spec, ip.Spec) {
			changed = true
			if _, err := c.store.Update(ctx, ip, spec); err != nil {
				return 0, nil, fmt.Errorf("give nodes ports of %s: %w", ip.Name, err)
			}
		}
	}
	if changed {
		return preallocation.Gather, problems, nil
	}
	for i, ip := range shared {
		soon, problem, err := c.settle(ctx, m, ip, all[i])
		if err != nil {
			return 0, nil, err
		}
		again = carriers.Sooner(again, soon)
		if problem != "" {
			problems = append(problems, problem)
		}
	}
	return again, problems, nil
}

// settle gives a closed address without blocks up, and has a node answer for another one.
func (c *controller) settle(ctx context.Context, m *memory, ip *v1alpha1.FloatingIP, a address) (again time.Duration, problem string, err error) {
	if a.closed && len(a.blocks) == 0 {
		again, err = c.giveUp(ctx, m, ip)
		return again, "", err
	}
	delete(m.freed, ip.Spec.Address)
	return c.carry(ctx, m, ip)
}

// canShare reports whether pods of several nodes can leave with an address, by its pool.
func (c *controller) canShare(ip *v1alpha1.FloatingIP) bool {
	pool := c.loop.Pools().PoolOf(ip.Addr())
	return pool != nil && !pool.Routed && pool.NodeAddresses != nil && pool.Gateway.IsValid()
}

// assign changes the blocks of addresses, shared, and returns the nodes without one.
func (c *controller) assign(claim *v1alpha1.IPClaim, m *memory, all []address, shared []*v1alpha1.FloatingIP, namespace string, family v1alpha1.IPFamily) (lacking []string, again time.Duration) {
	now, ports := time.Now(), shared[0].Spec.Egress.PortsPerNode
	if m.idle == nil {
		m.idle = idle{}
	}
	pools := map[string]string{}
	for _, ip := range shared {
		pools[ip.Spec.Address] = ip.Spec.Pool
	}
	n := nodes{
		rests: func(node string) bool { return claim != nil && m.idle.rests(node, now) },
		fits:  func(address, node string) bool { return c.via(node, pools[address]) != "" },
		stopped: func(address, node string) bool {
			return carriers.IsOff(c.nodeOf(node)) || hasStopped(c.assigned.Seen(node), address)
		},
	}
	if claim != nil && c.isOldest(claim, family) {
		n.wanting = c.withPods(namespace)
	}
	left := map[string]time.Time{}
	c.left.Do(func(ended map[[2]string]time.Time) {
		for at, when := range ended {
			if at[0] == namespace {
				left[at[1]] = when
			}
		}
	})
	again = m.idle.look(all, n.wanting, left, now)
	lacking = assign(all, ports, n)
	if slices.ContainsFunc(all, func(a address) bool {
		return slices.ContainsFunc(a.blocks, func(b v1alpha1.EgressBlock) bool { return b.Withdrawn })
	}) {
		again = carriers.Sooner(again, look)
	}
	return lacking, again
}

// isOldest returns whether no older claim of the namespace has the pods.
func (c *controller) isOldest(claim *v1alpha1.IPClaim, family v1alpha1.IPFamily) bool {
	for _, other := range c.assigned.Leaving(claim.Namespace) {
		if slices.Contains(other.EgressFamilies(), family) {
			return other.UID == claim.UID
		}
	}
	return false
}

// withPods returns the nodes with pods of a namespace that leave.
func (c *controller) withPods(namespace string) []string {
	pods, _ := c.pods.Pods(namespace).List(labels.Everything()) // a lister reads a cache and does not fail
	all := map[string]bool{}
	for _, pod := range pods {
		if leaves(pod) && c.nodeOf(pod.Spec.NodeName) != nil {
			all[pod.Spec.NodeName] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func (c *controller) via(node, pool string) string {
	return Via(c.loop.Addresses(preallocation.Key{Kind: preallocation.KindNode, Name: node}), node, pool)
}

// Via returns the address of a node in a pool by which it sends packets of pods, empty where it has
// none. ips has the addresses of the node, and may have others.
func Via(ips []*v1alpha1.FloatingIP, node, pool string) string {
	for _, ip := range ips {
		if ip.Spec.Pool == pool && ip.Spec.IsOfNode() && ip.Spec.Node == node {
			return ip.Spec.Address
		}
	}
	return ""
}

// carry has one node answer for an address, and lead packets to the nodes that send from it.
func (c *controller) carry(ctx context.Context, m *memory, ip *v1alpha1.FloatingIP) (again time.Duration, problem string, err error) {
	address := ip.Spec.Address
	if m.has == nil {
		m.has = map[string]carriers.Silences{}
	}
	if m.has[address] == nil {
		m.has[address] = carriers.Silences{}
	}
	now := c.assigned.Carriers(address)
	over, again := m.has[address].Look(now, time.Now())
	var qualified []string
	nodes, _ := c.nodes.List(labels.Everything()) // a lister reads a cache and does not fail
	for _, node := range nodes {
		if carriers.CanCarry(node) && c.via(node.Name, ip.Spec.Pool) != "" {
			qualified = append(qualified, node.Name)
		}
	}
	if others := slices.DeleteFunc(slices.Clone(qualified), func(node string) bool { return slices.Contains(over, node) }); len(others) > 0 {
		qualified = others
	}
	p := carriers.Choose(address, 1, true, qualified, now, func(node string) bool { return carriers.IsAlive(c.nodeOf(node)) })
	if problem = m.has[address].Problem(address, now, over); len(p.Nodes) == 0 {
		problem = fmt.Sprintf("No node answers for %s: none of pool %q is Ready and schedulable, and has an address of the pool.", address, ip.Spec.Pool)
	}
	if spec, changed := carriers.AnsweredBy(ip, p, now, c.nodeOf); changed {
		if _, err := c.store.Update(ctx, ip, spec); err != nil {
			return 0, "", fmt.Errorf("have node %q answer for %s: %w", spec.Egress.Node, ip.Name, err)
		}
		again = carriers.Sooner(again, preallocation.Gather)
	}
	assigned := v1alpha1.AssignedAddress{Address: address, Use: v1alpha1.UseEgress, Since: ip.Spec.Since, PortsPerNode: ip.Spec.Egress.PortsPerNode}
	if ip.Spec.Network != nil {
		assigned.Network = *ip.Spec.Network
	}
	for _, b := range ip.Spec.Egress.Blocks {
		// A node that lost its address keeps its block: it may send yet.
		if via := c.via(b.Node, ip.Spec.Pool); via != "" {
			assigned.Blocks = append(assigned.Blocks, v1alpha1.LedBlock{FirstPort: b.Index * assigned.PortsPerNode, Node: b.Node, Via: via})
		}
	}
	c.assigned.Carry(assigned, p.Nodes, p.Standby)
	return again, problem, nil
}

// giveUp takes an address from the claim, of which no node has ports any more: first from its
// carriers, then from the record.
func (c *controller) giveUp(ctx context.Context, m *memory, ip *v1alpha1.FloatingIP) (again time.Duration, err error) {
	c.assigned.Carry(v1alpha1.AssignedAddress{Address: ip.Spec.Address, Use: v1alpha1.UseEgress}, nil, "")
	delete(m.has, ip.Spec.Address)
	last, waits := carriers.Last(c.assigned.Carriers(ip.Spec.Address), c.nodeOf)
	if waits {
		delete(m.freed, ip.Spec.Address)
		return look, nil
	}
	if m.freed == nil {
		m.freed = map[string]time.Time{}
	}
	since, ok := m.freed[ip.Spec.Address]
	if !ok {
		since = time.Now()
		m.freed[ip.Spec.Address] = since
	}
	if left := time.Until(since.Add(carriers.Settle)); left > 0 {
		return left, nil
	}
	spec := *ip.Spec.DeepCopy()
	spec.LastPod, spec.Egress, spec.Since = ip.Spec.Owner.Name, nil, ip.Spec.NextSince(time.Now())
	if last != nil {
		spec.LastNode = last
	}
	if _, err := c.store.Update(ctx, ip, spec); err != nil {
		return 0, fmt.Errorf("take %s from the pods of namespace %s: %w", ip.Name, ip.Spec.Owner.Namespace, err)
	}
	klog.FromContext(ctx).V(2).Info("Pods leave with a floating IP no more", "ip", ip.Spec.Address, "claim", klog.KRef(ip.Spec.Owner.Namespace, ip.Spec.Owner.Name))
	return 0, nil
}
