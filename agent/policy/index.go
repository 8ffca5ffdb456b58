// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Local is a pod of this node, from the agent's own record.
type Local struct {
	types.NamespacedName
	// UID is the UID of the pod in the API.
	UID types.UID
	// Addresses has the addresses of the record. Together with the pod's addresses in the cluster they
	// count for the pod itself and as a peer of others.
	Addresses []netip.Addr
	// Seen has further addresses of its interfaces on bridges of the node. The policies of the pod
	// hold for them, too. They do not make the pod a peer, because a pod can give itself any address.
	// If another pod has such an address in its record or in the cluster, the address belongs to this
	// other pod.
	Seen []netip.Addr
	// Direct are the interfaces of the pod whose packets do not pass the node, sorted.
	Direct []string
	// Ways are the node's links by which the packets of all other interfaces come, sorted. Shared says
	// that any of them leads to other pods, too, as a bridge does.
	Ways   []string
	Shared bool
	// ByWire are the addresses of Direct, sorted, that the node's own packets reach through the
	// network.
	ByWire []netip.Addr
	// Ungoverned says that no policy governs the pod, even if policies select it. It still is a peer
	// of other pods.
	Ungoverned bool
}

// Index keeps the rulesets of a node up to date while policies, pods and namespaces change.
// A change costs as much as it changes: a pod changes the sets to which it belongs.
//
// It reads pods from its Cluster when a set comes into use. It keeps no pods, only addresses in the
// sets that rules of the node's own pods name. Each change is reported to the Index after the
// Cluster has it; a repeated or late report does no harm.
//
// It is not safe for parallel use.
type Index struct {
	// Told, if given, is called after each reported change of the cluster; ofPolicy says that a policy
	// changed.
	Told func(ofPolicy bool)

	cluster    Cluster
	namespaces map[string]map[string]string

	network  map[types.NamespacedName]*intent
	clusters map[string]*intent
	// of has the NetworkPolicies of a namespace by name; admin and baseline have the
	// ClusterNetworkPolicies in their order.
	of              map[string][]*intent
	admin, baseline []*intent
	revision        uint64

	locals map[types.UID]*local
	// arrivals counts locals, so that the newest is known.
	arrivals uint64

	peers     map[string]*peer
	directory *directory
	// unfilled are the collections that have to be read from the cluster.
	unfilled map[*collection]struct{}

	compiler compiler
	// node is the ruleset of the node, made of its contents.
	node     *ruleset.Ruleset
	contents *contents
	// reshape says that chains and maps may have changed; otherwise only sets have changed.
	reshape              bool
	nodeAddress, nodeDNS [2]*ruleset.Set
}

// local is a pod of this node, joined with the cluster's pod.
type local struct {
	Local
	arrival uint64
	// pod is the last state of the pod in the cluster; nil before the first one. A pod that is gone
	// from the cluster keeps its labels until it is gone from the node.
	pod *Pod
	// present says that the pod is in the cluster.
	present bool
	// former has the last labels of its namespace if the namespace was deleted.
	former map[string]string

	// ingress and egress have the policies that select the pod; they are valid unless stale.
	stale           bool
	ingress, egress selected
	ruleset         *ruleset.Ruleset
}

// selected has the policies that decide about a pod in one direction, in their order: Admin,
// NetworkPolicies, Baseline.
type selected struct {
	policies []*intent
	// made has the chains of the policies by family, if they were asked for. A chain is nil if no
	// policy has a rule.
	made [2]struct {
		done  bool
		chain *chain
	}
}

// NewIndex returns an Index of a cluster, without policies.
func NewIndex(cluster Cluster) *Index {
	x := &Index{
		cluster:    cluster,
		namespaces: map[string]map[string]string{},
		network:    map[types.NamespacedName]*intent{},
		clusters:   map[string]*intent{},
		of:         map[string][]*intent{},
		locals:     map[types.UID]*local{},
		peers:      map[string]*peer{},
		directory:  newDirectory(),
		unfilled:   map[*collection]struct{}{},
		reshape:    true,
	}
	maps.Insert(x.namespaces, cluster.Namespaces())
	x.compiler = compiler{Index: x, chains: map[string]*chain{}, ranges: map[string]*rangeSet{}, sides: map[sideKey]*chain{}}
	x.SetNodeAddresses(nil, nil)
	return x
}

// HasPolicies reports whether there is any policy.
func (x *Index) HasPolicies() bool { return len(x.network)+len(x.clusters) > 0 }

// HasPolicy reports whether there is a policy of the name. ClusterNetworkPolicies have no
// namespace.
func (x *Index) HasPolicy(name types.NamespacedName) bool {
	if name.Namespace == "" {
		return x.clusters[name.Name] != nil
	}
	return x.network[name] != nil
}

// SetNetworkPolicy adds a policy, or replaces the policy of the same name.
func (x *Index) SetNetworkPolicy(p *networkingv1.NetworkPolicy) {
	next := readNetworkPolicy(p)
	last := x.network[next.NamespacedName]
	x.network[next.NamespacedName] = next
	x.revise(last, next)
	list := x.of[next.Namespace]
	at, found := slices.BinarySearchFunc(list, next, comparePolicies)
	if found {
		list[at] = next
	} else {
		list = slices.Insert(list, at, next)
	}
	x.of[next.Namespace] = list
	x.reselect(last, next)
	x.tell(true)
}

func (x *Index) tell(ofPolicy bool) {
	if x.Told != nil {
		x.Told(ofPolicy)
	}
}

// DeleteNetworkPolicy removes a policy, if it is there.
func (x *Index) DeleteNetworkPolicy(namespace, name string) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	last := x.network[key]
	if last == nil {
		return
	}
	delete(x.network, key)
	x.of[namespace] = slices.DeleteFunc(x.of[namespace], func(i *intent) bool { return i == last })
	if len(x.of[namespace]) == 0 {
		delete(x.of, namespace)
	}
	x.reselect(last, nil)
	x.tell(true)
}

// SetClusterPolicy adds a policy, or replaces the policy of the same name.
func (x *Index) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	next := readClusterPolicy(p)
	last := x.clusters[next.Name]
	x.clusters[next.Name] = next
	x.revise(last, next)
	x.sortClusterPolicies()
	x.reselect(last, next)
	x.tell(true)
}

// DeleteClusterPolicy removes a policy, if it is there.
func (x *Index) DeleteClusterPolicy(name string) {
	last := x.clusters[name]
	if last == nil {
		return
	}
	delete(x.clusters, name)
	x.sortClusterPolicies()
	x.reselect(last, nil)
	x.tell(true)
}

func (x *Index) sortClusterPolicies() {
	x.admin, x.baseline = nil, nil
	for _, i := range slices.SortedFunc(maps.Values(x.clusters), comparePolicies) {
		if i.tier == string(policyv1alpha2.AdminTier) {
			x.admin = append(x.admin, i)
		} else {
			x.baseline = append(x.baseline, i)
		}
	}
}

// comparePolicies orders policies of a tier, or NetworkPolicies of a namespace.
func comparePolicies(a, b *intent) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.Name, b.Name))
}

// revise numbers the sides of a policy; an unchanged side keeps its number.
func (x *Index) revise(last, next *intent) {
	side := func(last, next *side) {
		switch {
		case next == nil:
		case last != nil && reflect.DeepEqual(last.clauses, next.clauses):
			next.revision = last.revision
		default:
			x.revision++
			next.revision = x.revision
		}
	}
	if last == nil {
		last = &intent{}
	}
	side(last.ingress, next.ingress)
	side(last.egress, next.egress)
}

// reselect marks local pods stale that a policy selects, or selected before the change.
func (x *Index) reselect(last, next *intent) {
	for _, l := range x.locals {
		// Any policy may select a pod that is not known.
		if l.pod == nil || last != nil && x.selects(last, l) || next != nil && x.selects(next, l) {
			l.stale, x.reshape = true, true
		}
	}
}

// selects reports whether a policy has a local pod as its subject.
func (x *Index) selects(i *intent, l *local) bool {
	if i.subject.scope.namespace != "" && i.subject.scope.namespace != l.Namespace {
		return false
	}
	labels, known := x.labelsOver(l)
	return i.subject.scope.matches(l.Namespace, labels, known) && i.subject.pods.matches(l.pod.Labels)
}

// labelsOver returns the labels of a local pod's namespace. Namespace and pod may be gone from the
// cluster while the pod still runs.
func (x *Index) labelsOver(l *local) (labels map[string]string, known bool) {
	labels, known = x.namespaces[l.Namespace]
	if l.former != nil && !(known && l.present) {
		return l.former, true
	}
	return labels, known
}

// Problems returns the errors in policies, sorted by policy.
func (x *Index) Problems() []Problem {
	var problems []Problem
	for _, policies := range []([]*intent){slices.Collect(maps.Values(x.network)), slices.Collect(maps.Values(x.clusters))} {
		for _, i := range policies {
			for _, text := range i.problems {
				problems = append(problems, Problem{i.kind, i.NamespacedName, text})
			}
		}
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return problems
}

// SetNamespace adds a namespace or replaces its labels, which it keeps and does not change.
func (x *Index) SetNamespace(name string, labels map[string]string) {
	last, known := x.namespaces[name]
	x.namespaces[name] = labels
	if !known || !maps.Equal(last, labels) {
		x.relabeled(name, last, known, labels, true)
	}
	for _, l := range x.locals {
		if l.Namespace == name && l.present {
			l.former = nil
		}
	}
	x.tell(false)
}

// DeleteNamespace removes a namespace, which has no pods any more. Pods that were deleted by force
// may still run; they keep its last labels, which a new namespace of the name does not have.
func (x *Index) DeleteNamespace(name string) {
	if last, known := x.namespaces[name]; known {
		for _, l := range x.locals {
			if l.Namespace == name && l.former == nil {
				l.former = maps.Clone(last)
				if l.former == nil {
					l.former = map[string]string{}
				}
			}
		}
		delete(x.namespaces, name)
		x.relabeled(name, last, true, nil, false)
		x.tell(false)
	}
}

// relabeled adds the pods of a namespace to sets that now select the namespace, and removes them
// from sets that no longer do.
func (x *Index) relabeled(name string, last map[string]string, known bool, labels map[string]string, knows bool) {
	delete(x.directory.found, name)
	var came []*scopePeers
	for _, s := range x.directory.scopes {
		// A namespace that is not known does not count, even if its pods are known already.
		was, is := known && s.matches(name, last, true), knows && s.matches(name, labels, true)
		switch {
		case s.namespace != "" || was == is:
		case is:
			came = append(came, s)
		default:
			s.each(func(p *peer) {
				for _, c := range p.collections {
					c.removeNamespace(name)
				}
			})
		}
	}
	x.join(name, came)
	for _, l := range x.locals {
		if l.Namespace == name && len(x.clusters) > 0 {
			l.stale, x.reshape = true, true
		}
	}
}

// join puts the pods of a namespace into the sets of scopes.
func (x *Index) join(namespace string, scopes []*scopePeers) {
	if len(scopes) == 0 {
		return
	}
	more := map[*collection]bool{}
	for pod := range x.cluster.Pods(namespace) {
		extra := x.extra(pod)
		each(scopes, pod.Labels, func(p *peer) {
			for _, c := range p.collections {
				if c.filled {
					c.append(pod, extra)
					more[c] = true
				}
			}
		})
	}
	for c := range more {
		c.sort()
		c.dirty = true
	}
}

func (s *scopePeers) each(do func(*peer)) {
	for _, p := range s.others {
		do(p)
	}
	for _, list := range s.byLabel {
		for _, p := range list {
			do(p)
		}
	}
}

// SetPod replaces the earlier state of a pod in the cluster by the present state. Either may be
// nil. It keeps neither.
func (x *Index) SetPod(was, is *Pod) {
	defer x.tell(false)
	if was != nil {
		x.member(was, (*collection).remove)
	}
	if was != nil && (is == nil || is.UID != was.UID) {
		if l := x.locals[was.UID]; l != nil {
			l.present = false
		}
	}
	if is == nil {
		return
	}
	if l := x.locals[is.UID]; l != nil && l.NamespacedName == is.NamespacedName {
		x.shown(l, is)
	}
	x.member(is, (*collection).add)
}

// shown updates a local pod to the pod in the cluster.
func (x *Index) shown(l *local, pod *Pod) {
	last := l.pod
	l.pod, l.present = clonePod(pod), true
	if _, known := x.namespaces[pod.Namespace]; known && l.former != nil {
		l.former, l.stale, x.reshape = nil, true, true
	}
	if last == nil || !maps.Equal(last.Labels, pod.Labels) || !slices.Equal(last.Ports, pod.Ports) || !slices.Equal(last.Addresses, pod.Addresses) {
		l.stale, x.reshape = true, true
	}
}

// member calls do for all sets to which a pod belongs.
func (x *Index) member(pod *Pod, do func(*collection, *Pod, []netip.Addr)) {
	labels, known := x.namespaces[pod.Namespace]
	extra := x.extra(pod)
	each(x.directory.in(pod.Namespace, labels, known), pod.Labels, func(p *peer) {
		for _, c := range p.collections {
			if c.filled {
				do(c, pod, extra)
			}
		}
	})
}

// extra returns the addresses of a pod from the agent's record.
func (x *Index) extra(pod *Pod) []netip.Addr {
	if l := x.locals[pod.UID]; l != nil {
		return l.Addresses
	}
	return nil
}

func clonePod(pod *Pod) *Pod {
	clone := *pod
	clone.Labels = maps.Clone(pod.Labels)
	clone.Addresses = slices.Clone(pod.Addresses)
	clone.Ports = slices.Clone(pod.Ports)
	return &clone
}

// SetLocal adds a pod of this node, or replaces the pod of the same UID. If several pods have the
// same address, its packets belong to the pod that was added last.
func (x *Index) SetLocal(given Local) {
	l := x.locals[given.UID]
	if l == nil {
		x.arrivals++
		l = &local{arrival: x.arrivals}
		if pod := x.cluster.Pod(given.NamespacedName); pod != nil && pod.UID == given.UID {
			l.pod, l.present = pod, true
		}
	} else if l.NamespacedName == given.NamespacedName && slices.Equal(l.Addresses, given.Addresses) && slices.Equal(l.Seen, given.Seen) &&
		slices.Equal(l.Direct, given.Direct) && slices.Equal(l.ByWire, given.ByWire) && slices.Equal(l.Ways, given.Ways) && l.Shared == given.Shared && l.Ungoverned == given.Ungoverned {
		return
	}
	if l.present {
		x.member(l.pod, (*collection).remove)
	}
	l.Local = given
	l.Addresses, l.Seen = slices.Clone(given.Addresses), slices.Clone(given.Seen)
	l.Direct, l.ByWire, l.Ways = slices.Clone(given.Direct), slices.Clone(given.ByWire), slices.Clone(given.Ways)
	l.stale, x.reshape = true, true
	x.locals[given.UID] = l
	if l.present {
		x.member(l.pod, (*collection).add)
	}
}

// SetLocals replaces all pods of this node.
func (x *Index) SetLocals(all []Local) {
	now := map[types.UID]bool{}
	for _, l := range all {
		now[l.UID] = true
	}
	for uid := range x.locals {
		if !now[uid] {
			x.DeleteLocal(uid)
		}
	}
	for _, l := range all {
		x.SetLocal(l)
	}
}

// DeleteLocal removes a pod of this node, if it is there.
func (x *Index) DeleteLocal(uid types.UID) {
	l := x.locals[uid]
	if l == nil {
		return
	}
	x.reshape = true
	if l.present {
		x.member(l.pod, (*collection).remove)
	}
	delete(x.locals, uid)
	if l.present {
		x.member(l.pod, (*collection).add)
	}
}

// Governs reports whether any policy applies to a pod of this node, or may apply because the
// cluster has not shown the pod yet.
func (x *Index) Governs(uid types.UID) bool {
	x.settle()
	l := x.locals[uid]
	if l == nil || l.Ungoverned {
		return false
	}
	if l.pod == nil {
		return len(x.of[l.Namespace])+len(x.clusters) > 0
	}
	return len(l.ingress.policies)+len(l.egress.policies) > 0
}

// Selecting returns the policies that apply to a pod of this node, by direction and in their order:
// each as the origin of its rules, without a rule. There are none for a pod that the cluster has
// not shown yet.
func (x *Index) Selecting(uid types.UID) map[ruleset.Direction][]ruleset.Origin {
	x.settle()
	all := map[ruleset.Direction][]ruleset.Origin{}
	if l := x.locals[uid]; l != nil {
		for d, by := range map[ruleset.Direction]selected{ruleset.Ingress: l.ingress, ruleset.Egress: l.egress} {
			for _, i := range by.policies {
				all[d] = append(all[d], ruleset.Origin{Kind: i.kind, NamespacedName: i.NamespacedName, Direction: d, Tier: i.tier})
			}
		}
	}
	return all
}

// SetNodeAddresses sets the addresses of this node, which always reach its pods, and the addresses
// of its DNS cache, which its pods always reach at port 53.
func (x *Index) SetNodeAddresses(own, dns []netip.Addr) {
	x.setAddresses(&x.nodeAddress, ruleset.NodeAddresses, own)
	x.setAddresses(&x.nodeDNS, setNodeDNS, dns)
}

func (x *Index) setAddresses(sets *[2]*ruleset.Set, name string, addresses []netip.Addr) {
	for n, family := range ruleset.Families {
		next := &ruleset.Set{Name: family.Name(name), Family: family, Kind: ruleset.Addresses}
		for _, a := range addresses {
			if ruleset.FamilyOf(a) == family {
				next.Addresses = append(next.Addresses, a)
			}
		}
		slices.SortFunc(next.Addresses, netip.Addr.Compare)
		next.Addresses = slices.Compact(next.Addresses)
		if sets[n] == nil || !slices.Equal(sets[n].Addresses, next.Addresses) {
			sets[n], x.reshape = next, true
		}
	}
}

// peer returns the peer of a selection, and makes it if necessary.
func (x *Index) peer(selection podSelection) *peer {
	key := selection.key()
	p := x.peers[key]
	if p == nil {
		p = &peer{podSelection: selection, name: key, collections: map[elementKind]*collection{}}
		x.peers[key] = p
		x.directory.add(p)
	}
	return p
}

// collection returns a set of a peer, and makes it if necessary.
func (x *Index) collection(selection podSelection, w elementKind) *collection {
	p := x.peer(selection)
	c := p.collections[w]
	if c == nil {
		prefix := "a"
		identity := p.name
		if w.port.name != "" {
			prefix = "n"
			identity += "|" + w.port.text()
		}
		c = &collection{elementKind: w, peer: p, name: w.family.Name(prefix) + "-" + hash(identity)}
		p.collections[w] = c
		x.unfilled[c] = struct{}{}
	}
	return c
}

// drop removes a collection that is not in use any more.
func (x *Index) drop(c *collection) {
	delete(x.unfilled, c)
	delete(c.peer.collections, c.elementKind)
	if len(c.peer.collections) == 0 {
		delete(x.peers, c.peer.name)
		x.directory.remove(c.peer)
	}
}

// fill reads new sets from the cluster, each namespace once.
func (x *Index) fill() {
	if len(x.unfilled) == 0 {
		return
	}
	wanted := newDirectory()
	seen := map[*peer]bool{}
	for c := range x.unfilled {
		c.members = nil
		if !seen[c.peer] {
			seen[c.peer] = true
			wanted.add(c.peer)
		}
	}
	read := func(namespace string, labels map[string]string, known bool) {
		scopes := wanted.in(namespace, labels, known)
		if len(scopes) == 0 {
			return
		}
		for pod := range x.cluster.Pods(namespace) {
			extra := x.extra(pod)
			each(scopes, pod.Labels, func(p *peer) {
				for _, c := range p.collections {
					if !c.filled {
						c.append(pod, extra)
					}
				}
			})
		}
	}
	for name, labels := range x.namespaces {
		read(name, labels, true)
	}
	for _, s := range wanted.scopes {
		if _, known := x.namespaces[s.namespace]; s.namespace != "" && !known {
			read(s.namespace, nil, false)
		}
	}
	for c := range x.unfilled {
		c.sort()
		c.filled, c.dirty = true, true
	}
	clear(x.unfilled)
}
