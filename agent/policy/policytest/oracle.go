// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// World has the objects of a cluster that decide about connections, as one node sees them.
type World struct {
	// Namespaces are their labels by name. Each pod's namespace is there.
	Namespaces map[string]map[string]string
	Pods       []*policy.Pod
	// Nodes have labels and addresses.
	Nodes   []*policy.Pod
	Network []*networkingv1.NetworkPolicy
	Cluster []*policyv1alpha2.ClusterNetworkPolicy
	// Node is the node's own addresses. No policy stops connections from them to its pods. DNS is the
	// addresses of a DNS cache.
	Node, DNS []netip.Addr
	// Outside says that packets come from other hosts, whatever their source: no pod calls itself.
	Outside bool
}

// Connection has the fields of a connection's first packet that policies match.
type Connection struct {
	Source, Destination netip.Addr
	Protocol            ruleset.Protocol
	// Port is the destination's, 0 where the protocol has none.
	Port uint16
}

// String is the connection for messages.
func (c Connection) String() string {
	return fmt.Sprintf("%s -> %s %s/%d", c.Source, c.Destination, c.Protocol, c.Port)
}

// Verdict is the oracle's decision on one end of a connection.
type Verdict struct {
	Allowed bool
	// Kind is the kind of the policy which decided, empty if none did.
	Kind string
	// Policies has the ClusterNetworkPolicy that decided, or all NetworkPolicies that allow the
	// connection, each with namespace, name and the number of the rule.
	Policies []string
}

// direction is a connection as the policies of the pod at one of its ends see it.
type direction struct {
	egress bool
	Connection
}

// peer is the address at the other end.
func (d direction) peer() netip.Addr {
	if d.egress {
		return d.Destination
	}
	return d.Source
}

// Egress returns the verdict of the policies of the source pod.
func (w *World) Egress(pod *policy.Pod, c Connection) Verdict {
	return w.decide(pod, direction{true, c})
}

// Ingress returns the verdict of the policies of the destination pod.
func (w *World) Ingress(pod *policy.Pod, c Connection) Verdict {
	return w.decide(pod, direction{false, c})
}

// decide goes through the tiers.
func (w *World) decide(pod *policy.Pod, d direction) Verdict {
	// "Traffic is allowed to a pod […] if the traffic source is the pod's local node"
	// (NetworkPolicySpec.Ingress); of egress the API says nothing like it.
	if !w.Outside && slices.Contains(pod.Addresses, d.peer()) || !d.egress && slices.Contains(w.Node, d.peer()) {
		return Verdict{Allowed: true}
	}
	if v, decided := w.tier(policyv1alpha2.AdminTier, pod, d); decided {
		return v
	}
	// "v1.NetworkPolicy always makes a final decision for selected pods."
	isolated := false
	var allowing []string
	for _, p := range w.Network {
		if p.Namespace != pod.Namespace || !matches(p.Spec.PodSelector, pod.Labels) || !affects(p, d.egress) {
			continue
		}
		isolated = true
		for i := range rules(p, d.egress) {
			if w.allows(p, i, pod, d) {
				allowing = append(allowing, fmt.Sprintf("%s/%s %d", p.Namespace, p.Name, i))
			}
		}
	}
	if isolated && len(allowing) == 0 && d.egress && d.Port == 53 && (d.Protocol == ruleset.TCP || d.Protocol == ruleset.UDP) && slices.Contains(w.DNS, d.Destination) {
		return Verdict{Allowed: true}
	}
	if isolated {
		return Verdict{Allowed: len(allowing) > 0, Kind: "NetworkPolicy", Policies: allowing}
	}
	if v, decided := w.tier(policyv1alpha2.BaselineTier, pod, d); decided {
		return v
	}
	// "If a given connection wasn't allowed or denied by any of the tiers, the default kubernetes
	// policy is applied, which says that all pods can communicate with each other."
	return Verdict{Allowed: true}
}

// Selecting returns the policies that select a pod and say something in a direction: kind,
// namespace and name, sorted.
func (w *World) Selecting(pod *policy.Pod, egress bool) []string {
	var all []string
	for _, p := range w.Network {
		if p.Namespace == pod.Namespace && matches(p.Spec.PodSelector, pod.Labels) && affects(p, egress) {
			all = append(all, fmt.Sprintf("NetworkPolicy %s/%s", p.Namespace, p.Name))
		}
	}
	for _, p := range w.Cluster {
		// "CNPs with no ingress rules do not affect ingress traffic", and no egress rules likewise.
		if w.selects(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, pod) && len(clusterRules(p, egress)) > 0 {
			all = append(all, fmt.Sprintf("ClusterNetworkPolicy /%s", p.Name))
		}
	}
	slices.Sort(all)
	return all
}

// affects returns whether a NetworkPolicy isolates the pods that it selects.
func affects(p *networkingv1.NetworkPolicy, egress bool) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		// "policies that contain an egress section are assumed to affect egress, and all
		// policies (whether or not they contain an ingress section) are assumed to affect ingress"
		return !egress || len(p.Spec.Egress) > 0
	}
	want := networkingv1.PolicyTypeIngress
	if egress {
		want = networkingv1.PolicyTypeEgress
	}
	return slices.Contains(p.Spec.PolicyTypes, want)
}

// rule is a NetworkPolicy's rule of either direction.
type rule struct {
	ports []networkingv1.NetworkPolicyPort
	peers []networkingv1.NetworkPolicyPeer
}

func rules(p *networkingv1.NetworkPolicy, egress bool) []rule {
	var all []rule
	if egress {
		for _, r := range p.Spec.Egress {
			all = append(all, rule{r.Ports, r.To})
		}
	} else {
		for _, r := range p.Spec.Ingress {
			all = append(all, rule{r.Ports, r.From})
		}
	}
	return all
}

// owners returns nil, for a host that is no pod, and the pods of an address. For a moment an
// address may have two pods; then it counts as either.
func (w *World) owners(a netip.Addr) []*policy.Pod {
	all := []*policy.Pod{nil}
	for _, p := range w.Pods {
		if slices.Contains(p.Addresses, a) {
			all = append(all, p)
		}
	}
	return all
}

// allows returns whether a rule matches "both ports and from", or "both ports and to".
func (w *World) allows(p *networkingv1.NetworkPolicy, i int, subject *policy.Pod, d direction) bool {
	r := rules(p, d.egress)[i]
	for _, other := range w.owners(d.peer()) {
		target := subject
		if d.egress {
			target = other
		}
		port := len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(port networkingv1.NetworkPolicyPort) bool { return matchesPort(port, target, d) })
		peer := len(r.peers) == 0 || slices.ContainsFunc(r.peers, func(peer networkingv1.NetworkPolicyPeer) bool {
			return w.matchesPeer(peer, p.Namespace, other, d.peer())
		})
		if port && peer {
			return true
		}
	}
	return false
}

// matchesPeer returns whether a peer selects a pod, or nil and its address.
func (w *World) matchesPeer(peer networkingv1.NetworkPolicyPeer, namespace string, pod *policy.Pod, a netip.Addr) bool {
	if peer.IPBlock != nil {
		return contains(peer.IPBlock.CIDR, a) && !slices.ContainsFunc(peer.IPBlock.Except, func(except string) bool { return contains(except, a) })
	}
	if pod == nil || peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return false
	}
	if peer.NamespaceSelector == nil {
		// "selects the pods matching podSelector in the policy's own namespace"
		return pod.Namespace == namespace && matches(*peer.PodSelector, pod.Labels)
	}
	return matches(*peer.NamespaceSelector, w.Namespaces[pod.Namespace]) && (peer.PodSelector == nil || matches(*peer.PodSelector, pod.Labels))
}

// matchesPort returns whether a connection to a pod, which may be none, is to a port.
func matchesPort(port networkingv1.NetworkPolicyPort, target *policy.Pod, d direction) bool {
	// "If not specified, this field defaults to TCP."
	protocol := corev1.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	if numberOf(protocol) != d.Protocol {
		return false
	}
	switch {
	case port.Port == nil:
		return true
	case port.Port.Type == intstr.Int:
		last := port.Port.IntVal
		if port.EndPort != nil {
			last = *port.EndPort
		}
		return port.Port.IntVal <= int32(d.Port) && int32(d.Port) <= last
	default:
		return target != nil && slices.Contains(target.Ports, policy.NamedPort{Name: port.Port.StrVal, Protocol: protocol, Port: d.Port})
	}
}

func numberOf(p corev1.Protocol) ruleset.Protocol {
	return map[corev1.Protocol]ruleset.Protocol{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}[p]
}

// clusterRule is a ClusterNetworkPolicy's rule of either direction.
type clusterRule struct {
	action    policyv1alpha2.ClusterNetworkPolicyRuleAction
	peers     []policyv1alpha2.ClusterNetworkPolicyEgressPeer
	protocols []policyv1alpha2.ClusterNetworkPolicyProtocol
}

func clusterRules(p *policyv1alpha2.ClusterNetworkPolicy, egress bool) []clusterRule {
	var all []clusterRule
	if egress {
		for _, r := range p.Spec.Egress {
			all = append(all, clusterRule{r.Action, r.To, r.Protocols})
		}
		return all
	}
	for _, r := range p.Spec.Ingress {
		var peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer
		for _, peer := range r.From {
			peers = append(peers, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods})
		}
		all = append(all, clusterRule{r.Action, peers, r.Protocols})
	}
	return all
}

// tier goes through the policies of a tier and returns whether one decided.
func (w *World) tier(tier policyv1alpha2.Tier, subject *policy.Pod, d direction) (v Verdict, decided bool) {
	// "Policies with lower priority values have higher precedence." Of equal priorities the
	// documents allow any order; ours is by name.
	inOrder := slices.SortedFunc(slices.Values(w.Cluster), func(a, b *policyv1alpha2.ClusterNetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), strings.Compare(a.Name, b.Name))
	})
	for _, p := range inOrder {
		if p.Spec.Tier != tier || !w.selects(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, subject) {
			continue
		}
		for i, r := range clusterRules(p, d.egress) {
			action := r.action
			if slices.ContainsFunc(r.peers, unknownPeer) || slices.ContainsFunc(r.protocols, unknownProtocol) {
				// "it should fail closed. For Accept rules: treat the rule as matching no
				// traffic. For Deny and Pass rules: treat the rule as a Deny all rule."
				if action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept {
					continue
				}
				action = policyv1alpha2.ClusterNetworkPolicyRuleActionDeny
			} else if !w.matchesRule(r, subject, d) {
				continue
			}
			v := Verdict{Kind: "ClusterNetworkPolicy", Policies: []string{fmt.Sprintf("/%s %d", p.Name, i)}}
			switch action {
			case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
				v.Allowed = true
				return v, true
			case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
				return v, true
			case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
				// "Skips all further ClusterNetworkPolicy rules in the current tier"
				return Verdict{}, false
			}
		}
	}
	return Verdict{}, false
}

// unknownPeer reports whether a peer has no supported field. Domain names are experimental and not
// supported.
func unknownPeer(p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
	return p.Namespaces == nil && p.Pods == nil && p.Nodes == nil && len(p.Networks) == 0
}

// unknownProtocol reports whether a protocol has no field. The document requires a field ("Exactly
// one field must be set", MinProperties=1), also below TCP, UDP and SCTP. It names the consequence
// of a missing field only for peers, but nothing else is possible here.
func unknownProtocol(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
	none := func(p *policyv1alpha2.Port) bool { return p == nil || p.Number == 0 && p.Range == nil }
	switch {
	case p.TCP != nil:
		return none(p.TCP.DestinationPort)
	case p.UDP != nil:
		return none(p.UDP.DestinationPort)
	case p.SCTP != nil:
		return none(p.SCTP.DestinationPort)
	}
	return p.DestinationNamedPort == ""
}

func (w *World) matchesRule(r clusterRule, subject *policy.Pod, d direction) bool {
	for _, other := range w.owners(d.peer()) {
		target := subject
		if d.egress {
			target = other
		}
		protocol := len(r.protocols) == 0 || slices.ContainsFunc(r.protocols, func(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool { return matchesProtocol(p, target, d) })
		peer := slices.ContainsFunc(r.peers, func(p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
			return other != nil && w.selects(p.Namespaces, p.Pods, other) ||
				p.Nodes != nil && slices.ContainsFunc(w.Nodes, func(n *policy.Pod) bool {
					return matches(*p.Nodes, n.Labels) && slices.Contains(n.Addresses, d.peer())
				}) ||
				slices.ContainsFunc(p.Networks, func(c policyv1alpha2.CIDR) bool { return contains(string(c), d.peer()) })
		})
		if protocol && peer {
			return true
		}
	}
	return false
}

// selects reports whether namespaces or pods, the two ways of ClusterNetworkPolicies to select
// pods, select a pod.
func (w *World) selects(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod, pod *policy.Pod) bool {
	labels := w.Namespaces[pod.Namespace]
	switch {
	case namespaces != nil:
		return matches(*namespaces, labels)
	case pods != nil:
		return matches(pods.NamespaceSelector, labels) && matches(pods.PodSelector, pod.Labels)
	}
	return false
}

func matchesProtocol(p policyv1alpha2.ClusterNetworkPolicyProtocol, target *policy.Pod, d direction) bool {
	switch {
	case p.TCP != nil:
		return d.Protocol == 6 && matchesNumber(p.TCP.DestinationPort, d.Port)
	case p.UDP != nil:
		return d.Protocol == 17 && matchesNumber(p.UDP.DestinationPort, d.Port)
	case p.SCTP != nil:
		return d.Protocol == 132 && matchesNumber(p.SCTP.DestinationPort, d.Port)
	}
	return target != nil && slices.ContainsFunc(target.Ports, func(port policy.NamedPort) bool {
		return port.Name == p.DestinationNamedPort && numberOf(port.Protocol) == d.Protocol && port.Port == d.Port
	})
}

func matchesNumber(p *policyv1alpha2.Port, number uint16) bool {
	if p.Range != nil {
		return p.Range.Start <= int32(number) && int32(number) <= p.Range.End
	}
	return p.Number == int32(number)
}

// matches returns whether a selector selects labels: all of its requirements hold.
func matches(s metav1.LabelSelector, labels map[string]string) bool {
	for key, want := range s.MatchLabels {
		if have, ok := labels[key]; !ok || have != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, ok := labels[e.Key]
		in := ok && slices.Contains(e.Values, have)
		holds := map[metav1.LabelSelectorOperator]bool{
			metav1.LabelSelectorOpIn: in, metav1.LabelSelectorOpNotIn: !in,
			metav1.LabelSelectorOpExists: ok, metav1.LabelSelectorOpDoesNotExist: !ok,
		}[e.Operator]
		if !holds {
			return false
		}
	}
	return true
}

// contains returns whether an address is in a CIDR, whose address may have bits behind the prefix.
func contains(cidr string, a netip.Addr) bool {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return len(network.IP) == len(a.AsSlice()) && network.Contains(a.AsSlice())
}
