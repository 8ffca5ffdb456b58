// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy"
)

// Cluster is a cluster that changes at random, with some of its nodes, each of which has an Index.
type Cluster struct {
	random     *Random
	namespaces map[string]map[string]string
	pods       map[types.NamespacedName]*policy.Pod
	network    map[types.NamespacedName]*networkingv1.NetworkPolicy
	cluster    map[string]*policyv1alpha2.ClusterNetworkPolicy
	Nodes      []*Node
	// nodes are the nodes as peers, and a further node.
	nodes map[string]*policy.Pod
	// History lists the changes, for people.
	History []string
}

// Node is a node with the Index that is told of each change.
type Node struct {
	cluster *Cluster
	Index   *policy.Index
	// Addresses are the node's own.
	Addresses []netip.Addr
	// Locals are its pods in the order in which they came.
	Locals []*Local
	// late are delayed calls to the Index, in order.
	late []func(*policy.Index)
}

// Local is a pod of a node.
type Local struct {
	policy.Local
	// Pod is the pod as the cluster last showed it, or will show it.
	Pod *policy.Pod
	// Unknown says that the cluster has never shown it.
	Unknown bool
}

// nodeDNS are the addresses of a node's DNS cache.
var nodeDNS = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fe80::53")}

// NewCluster returns an empty cluster with two nodes.
func NewCluster(random *Random) *Cluster {
	c := &Cluster{
		random:     random,
		namespaces: map[string]map[string]string{},
		pods:       map[types.NamespacedName]*policy.Pod{},
		network:    map[types.NamespacedName]*networkingv1.NetworkPolicy{},
		cluster:    map[string]*policyv1alpha2.ClusterNetworkPolicy{},
		nodes:      map[string]*policy.Pod{},
	}
	for i := range byte(2) {
		n := &Node{cluster: c, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 100 + i}), netip.AddrFrom16([16]byte{0: 0xfd, 15: 100 + i})}}
		n.Index = policy.NewIndex(c)
		n.Index.SetNodeAddresses(n.Addresses, nodeDNS)
		c.Nodes = append(c.Nodes, n)
	}
	return c
}

// Namespaces implements policy.Cluster.
func (c *Cluster) Namespaces() iter.Seq2[string, map[string]string] { return maps.All(c.namespaces) }

// Pods implements policy.Cluster. Each value is valid until the next iteration.
func (c *Cluster) Pods(namespace string) iter.Seq[*policy.Pod] {
	return func(yield func(*policy.Pod) bool) {
		all := maps.Values(c.pods)
		if namespace == policy.NodeNamespace {
			all = maps.Values(c.nodes)
		}
		for p := range all {
			if p.Namespace != namespace {
				continue
			}
			lent := policy.Pod{NamespacedName: p.NamespacedName, UID: p.UID, Labels: maps.Clone(p.Labels), Addresses: slices.Clone(p.Addresses), Ports: slices.Clone(p.Ports)}
			if !yield(&lent) {
				return
			}
			clear(lent.Labels)
			clear(lent.Addresses)
			clear(lent.Ports)
			lent = policy.Pod{}
		}
	}
}

// Pod implements policy.Cluster.
func (c *Cluster) Pod(name types.NamespacedName) *policy.Pod {
	p, ok := c.pods[name]
	if !ok {
		return nil
	}
	return &policy.Pod{NamespacedName: p.NamespacedName, UID: p.UID, Labels: maps.Clone(p.Labels), Addresses: slices.Clone(p.Addresses), Ports: slices.Clone(p.Ports)}
}

// Policies returns all policies.
func (c *Cluster) Policies() Policies {
	return Policies{Network: slices.Collect(maps.Values(c.network)), Cluster: slices.Collect(maps.Values(c.cluster))}
}

// Policies are all policies of a cluster.
type Policies struct {
	Network []*networkingv1.NetworkPolicy
	Cluster []*policyv1alpha2.ClusterNetworkPolicy
}

// Tell tells an Index of the policies.
func (p Policies) Tell(x *policy.Index) {
	for _, one := range p.Network {
		x.SetNetworkPolicy(one)
	}
	for _, one := range p.Cluster {
		x.SetClusterPolicy(one)
	}
}

// note writes into the history.
func (c *Cluster) note(format string, args ...any) {
	c.History = append(c.History, fmt.Sprintf(format, args...))
}

// tell reports a change to each node's Index, now or later.
func (c *Cluster) tell(call func(*policy.Index)) {
	for _, n := range c.Nodes {
		n.late = append(n.late, call)
		if c.random.often(80) {
			n.Catch()
		}
	}
}

// Catch makes all late calls of the Index.
func (n *Node) Catch() {
	for _, call := range n.late {
		call(n.Index)
	}
	n.late = nil
}

// fromMap draws a value of a map, the same each time for the same seed.
func fromMap[K comparable, V any](r *Random, m map[K]V, text func(K) string) (key K, ok bool) {
	if len(m) == 0 {
		return key, false
	}
	sorted := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return strings.Compare(text(a), text(b)) })
	return one(r, sorted...), true
}

// Change changes something, and sometimes reads an Index before everything is reported.
func (c *Cluster) Change() {
	c.ChangeUnseen()
	if !c.random.often(10) {
		return
	}
	for _, node := range c.Nodes {
		node.Index.Node()
		for _, l := range node.Locals {
			node.Index.Pod(l.UID)
		}
	}
}

// ChangeUnseen changes something, and reads no Index before everything is reported.
func (c *Cluster) ChangeUnseen() {
	r := c.random
	switch n := r.IntN(100); {
	case n < 8:
		c.setNamespace(one(r, namespaces...))
	case n < 10:
		c.deleteNamespace(one(r, namespaces...))
	case n < 30:
		c.SetPod(r.Pod())
	case n < 40:
		c.changePod()
	case n < 45:
		if name, ok := fromMap(r, c.pods, types.NamespacedName.String); ok {
			c.deletePod(name)
		}
	case n < 47:
		c.moveAddress()
	case n < 49:
		c.addUnknown()
	case n < 51:
		c.showUnknown()
	case n < 62:
		c.addLocal()
	case n < 65:
		c.changeLocal()
	case n < 69:
		c.deleteLocal()
	case n < 79:
		c.setNetworkPolicy()
	case n < 82:
		if name, ok := fromMap(r, c.network, types.NamespacedName.String); ok {
			c.note("NetworkPolicy %s deleted", name)
			delete(c.network, name)
			c.tell(func(x *policy.Index) { x.DeletePolicy(name) })
		}
	case n < 93:
		c.setClusterPolicy()
	case n < 96:
		if name, ok := fromMap(r, c.cluster, func(name string) string { return name }); ok {
			c.note("ClusterNetworkPolicy %s deleted", name)
			delete(c.cluster, name)
			c.tell(func(x *policy.Index) { x.DeletePolicy(types.NamespacedName{Name: name}) })
		}
	case n < 97:
		c.setNode(r.IntN(3))
	case n < 98:
		c.tell(c.Policies().Tell)
	default:
		if name, ok := fromMap(r, c.pods, types.NamespacedName.String); ok {
			p := c.pods[name]
			c.tell(func(x *policy.Index) { x.SetPod(p, p) })
		}
	}
}

// ChangePolicies changes a policy or the labels of a namespace or of a pod, and no address.
func (c *Cluster) ChangePolicies() {
	switch n := c.random.IntN(10); {
	case n < 4:
		c.setNetworkPolicy()
	case n < 7:
		c.setClusterPolicy()
	case n < 8:
		c.setNamespace(one(c.random, namespaces...))
	default:
		if name, ok := fromMap(c.random, c.pods, types.NamespacedName.String); ok {
			is := *c.pods[name]
			is.Labels = c.random.Labels()
			c.SetPod(&is)
		}
	}
}

// SetPolicies gives the cluster other policies.
func (c *Cluster) SetPolicies(policies Policies) {
	gone := c.Policies()
	c.tell(func(x *policy.Index) {
		for _, p := range gone.Network {
			x.DeletePolicy(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
		for _, p := range gone.Cluster {
			x.DeletePolicy(types.NamespacedName{Name: p.Name})
		}
		policies.Tell(x)
	})
	clear(c.network)
	clear(c.cluster)
	for _, p := range policies.Network {
		c.network[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	}
	for _, p := range policies.Cluster {
		c.cluster[p.Name] = p
	}
}

// setNode adds a node to the peers, gives it other labels or addresses, or removes it. The third
// node has random addresses.
func (c *Cluster) setNode(i int) {
	name := fmt.Sprintf("node-%d", i)
	was, is := c.nodes[name], &policy.Pod{NamespacedName: types.NamespacedName{Namespace: policy.NodeNamespace, Name: name}, UID: types.UID(name), Labels: c.random.Labels()}
	if i < len(c.Nodes) {
		is.Addresses = c.Nodes[i].Addresses
	} else {
		is.Addresses = c.random.Addresses()
	}
	if c.nodes[name] = is; c.random.often(20) {
		delete(c.nodes, name)
		is = nil
	}
	c.note("node %s %+v", name, is)
	if was != nil || is != nil {
		c.tell(func(x *policy.Index) { x.SetPod(was, is) })
	}
}

func (c *Cluster) setNetworkPolicy() {
	p := c.random.NetworkPolicy()
	c.note("NetworkPolicy %s/%s", p.Namespace, p.Name)
	c.network[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	c.tell(func(x *policy.Index) { x.SetNetworkPolicy(p) })
}

func (c *Cluster) setClusterPolicy() {
	p := c.random.ClusterNetworkPolicy()
	c.note("ClusterNetworkPolicy %s", p.Name)
	c.cluster[p.Name] = p
	c.tell(func(x *policy.Index) { x.SetClusterPolicy(p) })
}

func (c *Cluster) setNamespace(name string) { c.SetNamespace(name, c.random.NamespaceLabels(name)) }

// SetNamespace adds a namespace, or gives it other labels.
func (c *Cluster) SetNamespace(name string, labels map[string]string) {
	c.note("namespace %s %v", name, labels)
	c.namespaces[name] = labels
	c.tell(func(x *policy.Index) { x.SetNamespace(name, labels) })
}

// deleteNamespace deletes a namespace if it has no pods any more and no policies.
func (c *Cluster) deleteNamespace(name string) {
	for pod := range c.pods {
		if pod.Namespace == name {
			return
		}
	}
	for _, n := range c.Nodes {
		if slices.ContainsFunc(n.Locals, func(l *Local) bool { return l.Namespace == name }) {
			return
		}
	}
	for policy := range c.network {
		if policy.Namespace == name {
			return
		}
	}
	if _, ok := c.namespaces[name]; ok {
		c.note("namespace %s deleted", name)
		delete(c.namespaces, name)
		c.tell(func(x *policy.Index) { x.DeleteNamespace(name) })
	}
}

// SetPod adds a pod or replaces one, of another UID maybe.
func (c *Cluster) SetPod(p *policy.Pod) {
	if _, ok := c.namespaces[p.Namespace]; !ok {
		// The watches of pods and of namespaces do not wait for each other.
		if c.random.often(30) {
			defer c.setNamespace(p.Namespace)
		} else {
			c.setNamespace(p.Namespace)
		}
	}
	was := c.pods[p.NamespacedName]
	c.note("pod %s %s %v %v %v", p.NamespacedName, p.UID, p.Labels, p.Addresses, p.Ports)
	c.pods[p.NamespacedName] = p
	for _, n := range c.Nodes {
		for _, l := range n.Locals {
			if l.UID == p.UID {
				l.Pod, l.Unknown = p, false
			}
		}
	}
	c.tell(func(x *policy.Index) { x.SetPod(was, p) })
}

// changePod changes labels, addresses or ports of a pod.
func (c *Cluster) changePod() {
	name, ok := fromMap(c.random, c.pods, types.NamespacedName.String)
	if !ok {
		return
	}
	is := *c.pods[name]
	switch c.random.IntN(3) {
	case 0:
		is.Labels = c.random.Labels()
	case 1:
		is.Addresses = c.random.Addresses()
	default:
		is.Ports = c.random.NamedPorts()
	}
	c.SetPod(&is)
}

func (c *Cluster) deletePod(name types.NamespacedName) {
	was := c.pods[name]
	c.note("pod %s deleted", name)
	delete(c.pods, name)
	c.tell(func(x *policy.Index) { x.SetPod(was, nil) })
}

// moveAddress gives an address to another pod, and takes it from the first pod before, later or
// never.
func (c *Cluster) moveAddress() {
	from, _ := fromMap(c.random, c.pods, types.NamespacedName.String)
	to, ok := fromMap(c.random, c.pods, types.NamespacedName.String)
	if !ok || from == to || len(c.pods[from].Addresses) == 0 {
		return
	}
	address := one(c.random, c.pods[from].Addresses...)
	without, with := *c.pods[from], *c.pods[to]
	without.Addresses = slices.DeleteFunc(slices.Clone(without.Addresses), func(a netip.Addr) bool { return a == address })
	with.Addresses = append(slices.Clone(with.Addresses), address)
	slices.SortFunc(with.Addresses, netip.Addr.Compare)
	with.Addresses = slices.Compact(with.Addresses)
	changes := []*policy.Pod{&without, &with}
	switch c.random.IntN(3) {
	case 0:
		slices.Reverse(changes)
	case 1:
		changes = changes[1:]
	}
	for _, p := range changes {
		c.SetPod(p)
	}
}

// addLocal runs a pod on a node. The cluster shows the pod already, maybe still without addresses.
func (c *Cluster) addLocal() {
	name, ok := fromMap(c.random, c.pods, types.NamespacedName.String)
	if !ok {
		return
	}
	p := c.pods[name]
	for _, n := range c.Nodes {
		if slices.ContainsFunc(n.Locals, func(l *Local) bool { return l.UID == p.UID }) {
			return
		}
	}
	l := &Local{Pod: p, Local: policy.Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses}}
	if c.random.often(20) {
		l.Addresses = c.random.Addresses()
	}
	if c.random.often(30) {
		l.Direct = one(c.random, []string{"net1"}, []string{"eth0"}, []string{"eth0", "net1"})
		l.ByWire = one(c.random, nil, p.Addresses, l.Addresses, c.random.Addresses())
	}
	if c.random.often(20) {
		l.Seen = c.random.Addresses()
	}
	if l.Shared = len(l.Seen) > 0 || c.random.often(20); l.Shared {
		l.Ways = []string{"cni0"}
	} else if c.random.often(80) {
		l.Ways = []string{"veth-" + string(l.UID[:4])}
	}
	n := one(c.random, c.Nodes...)
	if len(n.Locals) > 0 && c.random.often(15) {
		// An address moves from one pod to another.
		l.Addresses = one(c.random, n.Locals...).Addresses
	}
	n.Locals = append(n.Locals, l)
	n.set(l)
}

// addUnknown runs a pod on a node before the cluster shows it.
func (c *Cluster) addUnknown() {
	p := c.random.Pod()
	n := one(c.random, c.Nodes...)
	l := &Local{Pod: p, Unknown: true, Local: policy.Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses}}
	l.Direct, l.ByWire = one(c.random, nil, []string{"eth0"}), one(c.random, nil, p.Addresses)
	n.Locals = append(n.Locals, l)
	n.set(l)
}

// showUnknown makes the cluster show such a pod.
func (c *Cluster) showUnknown() {
	for _, n := range c.Nodes {
		if i := slices.IndexFunc(n.Locals, func(l *Local) bool { return l.Unknown }); i >= 0 {
			c.SetPod(n.Locals[i].Pod)
			return
		}
	}
}

// set tells the Index of a local pod.
func (n *Node) set(l *Local) {
	n.cluster.note("local %s %s %v %v %v", l.NamespacedName, l.UID, l.Addresses, l.Direct, l.ByWire)
	local := l.Local
	n.late = append(n.late, func(x *policy.Index) { x.SetLocal(local) })
	n.Catch()
}

// drawLocal draws a node and the index of one of its pods, -1 if it has none.
func (c *Cluster) drawLocal() (*Node, int) {
	n := one(c.random, c.Nodes...)
	if len(n.Locals) == 0 {
		return n, -1
	}
	return n, c.random.IntN(len(n.Locals))
}

// changeLocal gives a local pod other addresses or interfaces.
func (c *Cluster) changeLocal() {
	n, i := c.drawLocal()
	if i < 0 {
		return
	}
	l := n.Locals[i]
	if c.random.often(50) {
		l.Addresses = c.random.Addresses()
	} else {
		l.Direct, l.ByWire = one(c.random, nil, []string{"eth0", "net1"}), one(c.random, nil, l.Addresses)
	}
	n.set(l)
}

func (c *Cluster) deleteLocal() {
	n, i := c.drawLocal()
	if i < 0 {
		return
	}
	if c.random.often(50) {
		i = len(n.Locals) - 1
	}
	n.stop(i)
}

// Run runs a pod on the node.
func (n *Node) Run(p *policy.Pod) {
	n.cluster.SetPod(p)
	l := &Local{Pod: p, Local: policy.Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses, Ways: []string{fmt.Sprintf("veth-%d", len(n.Locals))}}}
	n.Locals = append(n.Locals, l)
	n.set(l)
}

// Delete deletes a pod that runs on the node.
func (n *Node) Delete(name types.NamespacedName) {
	n.stop(slices.IndexFunc(n.Locals, func(l *Local) bool { return l.NamespacedName == name }))
	n.cluster.deletePod(name)
}

func (n *Node) stop(i int) {
	uid := n.Locals[i].UID
	n.cluster.note("local %s is gone", uid)
	n.Locals = slices.Delete(n.Locals, i, i+1)
	n.late = append(n.late, func(x *policy.Index) { x.DeleteLocal(uid) })
	n.Catch()
}

// shown returns whether the cluster shows a local pod.
func (n *Node) shown(l *Local) bool {
	p := n.cluster.pods[l.NamespacedName]
	return p != nil && p.UID == l.UID
}

// Subject returns the local pod as its own policies see it: with the addresses whose packets belong
// to it.
func (n *Node) Subject(l *Local) *policy.Pod {
	p := l.merged()
	p.Addresses = append(p.Addresses, l.Seen...)
	slices.SortFunc(p.Addresses, netip.Addr.Compare)
	p.Addresses = slices.Compact(p.Addresses)
	p.Addresses = slices.DeleteFunc(p.Addresses, func(a netip.Addr) bool { return n.Owner(a) != l })
	return p
}

// IngressByWire decides whether the policies of a local pod allow a connection that comes by an
// interface past the node. The node's own connections may come there to the pod's address in the
// cluster, or in the record while the cluster has none, if the node has no other way to it.
func (n *Node) IngressByWire(l *Local, c Connection) Verdict {
	world := n.World()
	of := l.Pod.Addresses
	if l.Unknown || len(of) == 0 {
		of = l.Addresses
	}
	node := world.Node
	world.Node = nil
	for _, a := range of {
		if slices.Contains(l.ByWire, a) && a.Is4() == c.Source.Is4() {
			world.Node = node
		}
	}
	return world.Ingress(n.Subject(l), c)
}

// CallsItself reports whether a connection between addresses of a local pod is a call of the pod to
// itself through a Service: by a link of its own, or by a shared link to its source address or an
// address in the cluster.
func (n *Node) CallsItself(l *Local, c Connection) bool {
	if l == nil || n.Owner(c.Source) != l || n.Owner(c.Destination) != l || len(l.Ways) == 0 {
		return false
	}
	return !l.Shared || c.Source == c.Destination || !l.Unknown && slices.Contains(l.Pod.Addresses, c.Destination)
}

// merged returns the pod with the addresses of the node's record and of the cluster or, if it is
// deleted, the cluster's last ones.
func (l *Local) merged() *policy.Pod {
	p := *l.Pod
	if p.Addresses = l.Addresses; !l.Unknown {
		p.Addresses = slices.Concat(l.Addresses, l.Pod.Addresses)
	}
	p.Addresses = slices.Clone(p.Addresses)
	slices.SortFunc(p.Addresses, netip.Addr.Compare)
	p.Addresses = slices.Compact(p.Addresses)
	return &p
}

// World returns the objects that decide on the node: the cluster's, joined with the node's own
// pods.
func (n *Node) World() *World {
	w := &World{Namespaces: n.cluster.namespaces, Nodes: slices.Collect(maps.Values(n.cluster.nodes)), Node: n.Addresses, DNS: nodeDNS}
	local := map[types.UID]bool{}
	for _, l := range n.Locals {
		// A pod that is deleted in the API is subject to policies as long as it runs, but is no peer.
		if local[l.UID] = true; n.shown(l) {
			w.Pods = append(w.Pods, l.merged())
		}
	}
	for _, p := range n.cluster.pods {
		if !local[p.UID] {
			w.Pods = append(w.Pods, p)
		}
	}
	all := n.cluster.Policies()
	w.Network, w.Cluster = all.Network, all.Cluster
	return w
}

// Owner returns the node's own pod that has an address: in its record, else in the cluster, else as
// a seen address; of several pods the last that came.
func (n *Node) Owner(a netip.Addr) *Local {
	for _, addresses := range []func(*Local) []netip.Addr{
		func(l *Local) []netip.Addr { return l.Addresses },
		func(l *Local) []netip.Addr { return l.merged().Addresses },
		func(l *Local) []netip.Addr { return l.Seen },
	} {
		for _, l := range slices.Backward(n.Locals) {
			if slices.Contains(addresses(l), a) {
				return l
			}
		}
	}
	return nil
}

// Fresh returns an Index that is told everything at once.
func (n *Node) Fresh() *policy.Index {
	x := policy.NewIndex(n.cluster)
	x.SetNodeAddresses(n.Addresses, nodeDNS)
	n.cluster.Policies().Tell(x)
	for _, l := range n.Locals {
		x.SetLocal(l.Local)
		if !n.shown(l) && !l.Unknown {
			x.SetPod(nil, l.Pod)
			x.SetPod(l.Pod, nil)
		}
	}
	return x
}

// String is everything that decides, for people.
func (c *Cluster) String() string {
	var b strings.Builder
	write := func(what string, object any) {
		text, err := yaml.Marshal(object)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, "--- %s\n%s", what, text)
	}
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		fmt.Fprintf(&b, "namespace %s %v\n", name, c.namespaces[name])
	}
	for _, p := range c.pods {
		fmt.Fprintf(&b, "pod %s %s %v %v %v\n", p.NamespacedName, p.UID, p.Labels, p.Addresses, p.Ports)
	}
	for i, n := range c.Nodes {
		for _, l := range n.Locals {
			fmt.Fprintf(&b, "local on node %d: %s %s %v %v by wire %v, last shown %v, shown: %t\n", i, l.NamespacedName, l.UID, l.Addresses, l.Direct, l.ByWire, l.Pod.Addresses, n.shown(l))
		}
	}
	for _, p := range c.network {
		write("NetworkPolicy "+p.Namespace+"/"+p.Name, p.Spec)
	}
	for _, p := range c.cluster {
		write("ClusterNetworkPolicy "+p.Name, p.Spec)
	}
	return b.String()
}
