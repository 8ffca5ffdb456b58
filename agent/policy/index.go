// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"iter"
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
	// policies has the NetworkPolicies of each namespace by name, and below "" the
	// ClusterNetworkPolicies by priority and name.
	policies map[string][]*intent
	revision uint64

	locals map[types.UID]*local
	// arrivals counts locals, so that the newest is known.
	arrivals uint64

	peers     map[string]*peer
	directory *directory
	// unfilled are the collections that have to be read from the cluster.
	unfilled map[*collection]bool

	// stale says that chains and maps may have changed; otherwise only sets have changed.
	stale                bool
	nodeAddress, nodeDNS [2]*ruleset.Set
	// onNode has the contents of the node's ruleset, nil if no pod is governed; node is the last
	// ruleset.
	onNode *contents
	node   *ruleset.Ruleset

	// chains and ranges are the chains of policies and the sets of their blocks, as long as pods need
	// them.
	chains map[string]*chain
	ranges map[string]*ruleset.Set
	// sides has the chains of NetworkPolicies, if they were made; see policyChain.
	sides map[sideKey]*chain
	// combinations has the chains that the last reshape made for pods.
	combinations map[combinationKey][]combination
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

// selected has the policies that decide about a pod in one direction: of the tier Admin, then
// NetworkPolicies, then of the tier Baseline.
type selected struct {
	tiers [3][]*intent
	// made has the chains of the policies by family, if they were asked for. A chain is nil if no
	// policy has a rule.
	made [2]struct {
		done  bool
		chain *chain
	}
}

func (s *selected) policies() iter.Seq[*intent] {
	return func(yield func(*intent) bool) {
		for _, tier := range s.tiers {
			for _, i := range tier {
				if !yield(i) {
					return
				}
			}
		}
	}
}

func (s *selected) isEmpty() bool { return len(s.tiers[0])+len(s.tiers[1])+len(s.tiers[2]) == 0 }

// selected returns the policies that decide about the pod in a direction.
func (l *local) selected(d ruleset.Direction) *selected {
	if d == ruleset.Ingress {
		return &l.ingress
	}
	return &l.egress
}

// NewIndex returns an Index of a cluster, without policies.
func NewIndex(cluster Cluster) *Index {
	x := &Index{
		cluster:    cluster,
		namespaces: map[string]map[string]string{},
		policies:   map[string][]*intent{},
		locals:     map[types.UID]*local{},
		peers:      map[string]*peer{},
		directory:  newDirectory(),
		unfilled:   map[*collection]bool{},
		chains:     map[string]*chain{},
		ranges:     map[string]*ruleset.Set{},
		sides:      map[sideKey]*chain{},
		stale:      true,
	}
	maps.Insert(x.namespaces, cluster.Namespaces())
	x.SetNodeAddresses(nil, nil)
	return x
}

// Copy returns an Index of the same cluster and policies, without pods of the node, to try other
// pods of the node. It does not follow changes.
func (x *Index) Copy() *Index {
	copied := NewIndex(x.cluster)
	copied.namespaces, copied.nodeAddress, copied.nodeDNS, copied.revision = maps.Clone(x.namespaces), x.nodeAddress, x.nodeDNS, x.revision
	for namespace, list := range x.policies {
		copied.policies[namespace] = slices.Clone(list)
	}
	return copied
}

// HasPolicies reports whether there is any policy.
func (x *Index) HasPolicies() bool { return len(x.policies) > 0 }

// HasPolicy reports whether there is a policy of the name. ClusterNetworkPolicies have no
// namespace.
func (x *Index) HasPolicy(name types.NamespacedName) bool { return x.position(name) >= 0 }

// position returns the position of a policy in the list of its namespace, or -1.
func (x *Index) position(name types.NamespacedName) int {
	return slices.IndexFunc(x.policies[name.Namespace], func(i *intent) bool { return i.Name == name.Name })
}

// SetNetworkPolicy adds a policy, or replaces the policy of the same name.
func (x *Index) SetNetworkPolicy(p *networkingv1.NetworkPolicy) { x.setPolicy(readNetworkPolicy(p)) }

// SetClusterPolicy adds a policy, or replaces the policy of the same name.
func (x *Index) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	x.setPolicy(readClusterPolicy(p))
}

func (x *Index) setPolicy(next *intent) {
	last := x.takePolicy(next.NamespacedName)
	x.revise(last, next)
	list := x.policies[next.Namespace]
	at, _ := slices.BinarySearchFunc(list, next, func(a, b *intent) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.Name, b.Name))
	})
	x.policies[next.Namespace] = slices.Insert(list, at, next)
	x.reselect(last, next)
	x.tell(true)
}

// DeletePolicy removes a policy, if it is there. ClusterNetworkPolicies have no namespace.
func (x *Index) DeletePolicy(name types.NamespacedName) {
	if last := x.takePolicy(name); last != nil {
		x.reselect(last, nil)
		x.tell(true)
	}
}

// takePolicy removes a policy and returns it, nil if it is not there.
func (x *Index) takePolicy(name types.NamespacedName) *intent {
	at, list := x.position(name), x.policies[name.Namespace]
	if at < 0 {
		return nil
	}
	last := list[at]
	if x.policies[name.Namespace] = slices.Delete(list, at, at+1); len(list) == 1 {
		delete(x.policies, name.Namespace)
	}
	return last
}

func (x *Index) tell(ofPolicy bool) {
	if x.Told != nil {
		x.Told(ofPolicy)
	}
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
			l.stale, x.stale = true, true
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
	for _, list := range x.policies {
		for _, i := range list {
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

// SetPod replaces the earlier state of a pod in the cluster by the present state. Either may be
// nil.
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
	l.pod, l.present = pod, true
	if _, known := x.namespaces[pod.Namespace]; known && l.former != nil {
		l.former, l.stale, x.stale = nil, true, true
	}
	if last == nil || !maps.Equal(last.Labels, pod.Labels) || !slices.Equal(last.Ports, pod.Ports) || !slices.Equal(last.Addresses, pod.Addresses) {
		l.stale, x.stale = true, true
	}
}

// SetLocal adds a pod of this node, or replaces the pod of the same UID, and keeps its lists. If
// several pods have the same address, its packets belong to the pod that was added last.
func (x *Index) SetLocal(given Local) {
	l := x.locals[given.UID]
	if l == nil {
		x.arrivals++
		l = &local{arrival: x.arrivals}
		if pod := x.cluster.Pod(given.NamespacedName); pod != nil && pod.UID == given.UID {
			l.pod, l.present = pod, true
		}
	} else if reflect.DeepEqual(l.Local, given) {
		return
	}
	if l.present {
		x.member(l.pod, (*collection).remove)
	}
	l.Local = given
	l.stale, x.stale = true, true
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
	x.stale = true
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
		return len(x.policies[l.Namespace])+len(x.policies[""]) > 0
	}
	return !l.ingress.isEmpty() || !l.egress.isEmpty()
}

// Selecting returns the policies that apply to a pod of this node, by direction and in their order:
// each as the origin of its rules, without a rule. There are none for a pod that the cluster has
// not shown yet.
func (x *Index) Selecting(uid types.UID) map[ruleset.Direction][]ruleset.Origin {
	x.settle()
	all := map[ruleset.Direction][]ruleset.Origin{}
	if l := x.locals[uid]; l != nil {
		for _, d := range ruleset.Directions {
			for i := range l.selected(d).policies() {
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
			sets[n], x.stale = next, true
		}
	}
}
