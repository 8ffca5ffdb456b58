// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Random draws objects from few values, so that they often match.
type Random struct {
	*rand.Rand
}

// Seeded returns a Random that draws the same each time.
func Seeded(seed uint64) *Random {
	return &Random{rand.New(rand.NewPCG(seed, 0))}
}

// one draws one of the values.
func one[T any](r *Random, values ...T) T {
	return values[r.IntN(len(values))]
}

// often is true n of 100 times.
func (r *Random) often(n int) bool { return r.IntN(100) < n }

// few calls draw up to n times, fewer more often.
func few[T any](r *Random, n int, draw func() T) []T {
	var all []T
	for range r.IntN(r.IntN(n+1) + 1) {
		all = append(all, draw())
	}
	return all
}

// atLeastOne is few without none.
func atLeastOne[T any](r *Random, n int, draw func() T) []T {
	return append(few(r, n-1, draw), draw())
}

var (
	namespaces  = []string{"east", "west", "north"}
	keys        = []string{"app", "tier", "zone"}
	values      = []string{"", "a", "b"}
	portNames   = []string{"http", "dns", "admin"}
	portNumbers = []uint16{53, 79, 80, 81, 8080, 65535}
	protocols   = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	names       = []string{"red", "green", "blue", "grey", "pink", "cyan"}
)

// Labels draws up to three labels.
func (r *Random) Labels() map[string]string {
	labels := map[string]string{}
	for _, key := range keys {
		if r.often(50) {
			labels[key] = one(r, values...)
		}
	}
	return labels
}

// NamespaceLabels draws labels of a namespace, with the label that the API server sets.
func (r *Random) NamespaceLabels(name string) map[string]string {
	labels := r.Labels()
	labels[corev1.LabelMetadataName] = name
	return labels
}

// Selector draws a selector of labels, often an empty one.
func (r *Random) Selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if r.often(30) {
		return s
	}
	if r.often(60) {
		s.MatchLabels = map[string]string{one(r, keys...): one(r, values...)}
	}
	for range r.IntN(3) {
		e := metav1.LabelSelectorRequirement{Key: one(r, keys...), Operator: one(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = atLeastOne(r, 3, func() string { return one(r, values...) })
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// NamespaceSelector draws a selector of namespaces, sometimes by their names.
func (r *Random) NamespaceSelector() metav1.LabelSelector {
	if r.often(25) {
		return metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: one(r, namespaces...)}}
	}
	return r.Selector()
}

// optional returns nil or draws a value.
func optional[T any](r *Random, draw func() T) *T {
	if r.often(50) {
		return nil
	}
	return new(draw())
}

// Address draws an address of a host of one of two small networks.
func (r *Random) Address() netip.Addr {
	if r.often(50) {
		return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(32))})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(r.IntN(32))})
}

// AnyAddress draws an address of the networks, at their ends or elsewhere.
func (r *Random) AnyAddress() netip.Addr {
	if r.often(60) {
		return r.Address()
	}
	return netip.MustParseAddr(one(r, "10.0.0.0", "10.0.0.255", "10.0.1.0", "9.255.255.255", "10.255.255.255", "11.0.0.0", "0.0.0.0", "0.0.0.1", "127.255.255.255", "128.0.0.0", "255.255.255.255", "192.0.2.1",
		"fd00::", "fd00::ff", "fd00::100", "fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fd01::", "::", "::1", "7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "8000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8::1"))
}

// CIDR draws a network of one family or of either, sometimes with bits behind its prefix.
func (r *Random) CIDR(a netip.Addr) netip.Prefix {
	bits := one(r, 0, 1, 8, a.BitLen()-8, a.BitLen()-5, a.BitLen()-4, a.BitLen()-3, a.BitLen()-2, a.BitLen()-1, a.BitLen())
	p := netip.PrefixFrom(a, bits)
	if r.often(70) {
		p = p.Masked()
	}
	return p
}

// IPBlock draws a block with exceptions, which may overlap and leave nothing.
func (r *Random) IPBlock() *networkingv1.IPBlock {
	block := r.CIDR(r.AnyAddress())
	b := &networkingv1.IPBlock{CIDR: block.String()}
	if block.Bits() == 0 && r.often(10) {
		// The two halves.
		last := netip.MustParseAddr("128.0.0.0")
		if block.Addr().Is6() {
			last = netip.MustParseAddr("8000::")
		}
		first, _ := block.Addr().Prefix(1)
		second, _ := last.Prefix(1)
		if first != second {
			b.Except = []string{first.String(), second.String()}
		}
		return b
	}
	for range r.IntN(5) {
		// The API server wants exceptions that are smaller than the block and inside.
		if except := r.CIDR(r.AnyAddress()); except.Bits() > block.Bits() && block.Contains(except.Addr()) {
			b.Except = append(b.Except, except.String())
		}
	}
	return b
}

// Port draws a port of a NetworkPolicy.
func (r *Random) Port() networkingv1.NetworkPolicyPort {
	var p networkingv1.NetworkPolicyPort
	p.Protocol = optional(r, func() corev1.Protocol { return one(r, protocols...) })
	switch n := r.IntN(10); {
	case n < 2:
	case n < 5:
		p.Port = new(intstr.FromString(one(r, portNames...)))
	case n < 8:
		p.Port = new(intstr.FromInt32(int32(one(r, portNumbers...))))
	default:
		first := int32(one(r, portNumbers...))
		p.Port = new(intstr.FromInt32(first))
		p.EndPort = new(min(first+int32(one(r, 0, 1, 2, 9000)), 65535))
	}
	return p
}

// Ports draws ports of a rule of a NetworkPolicy, sometimes many.
func (r *Random) Ports() []networkingv1.NetworkPolicyPort {
	ports := few(r, 4, r.Port)
	if r.often(5) {
		for i := range int32(20) {
			ports = append(ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(60 + 2*i))})
		}
	}
	return ports
}

// Peer draws a peer of a NetworkPolicy.
func (r *Random) Peer() networkingv1.NetworkPolicyPeer {
	var p networkingv1.NetworkPolicyPeer
	switch r.IntN(4) {
	case 0:
		p.IPBlock = r.IPBlock()
	case 1:
		p.PodSelector = new(r.Selector())
	case 2:
		p.NamespaceSelector = new(r.NamespaceSelector())
	default:
		p.PodSelector, p.NamespaceSelector = new(r.Selector()), new(r.NamespaceSelector())
	}
	return p
}

// NetworkPolicy draws a policy, of one of few names.
func (r *Random) NetworkPolicy() *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: one(r, namespaces...), Name: one(r, names...)}}
	p.Spec.PodSelector = r.Selector()
	for range r.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: r.Ports(), From: few(r, 4, r.Peer)})
	}
	for range r.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{Ports: r.Ports(), To: few(r, 4, r.Peer)})
	}
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	p.Spec.PolicyTypes = one(r, nil, nil, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out}, []networkingv1.PolicyType{in, out})
	return p
}

// NamespacedPod draws the selectors of pods of a ClusterNetworkPolicy.
func (r *Random) NamespacedPod() *policyv1alpha2.NamespacedPod {
	return &policyv1alpha2.NamespacedPod{NamespaceSelector: r.NamespaceSelector(), PodSelector: r.Selector()}
}

// ClusterPort draws a port of a ClusterNetworkPolicy.
func (r *Random) ClusterPort() *policyv1alpha2.Port {
	first := int32(one(r, portNumbers...))
	if end := min(first+int32(one(r, 1, 2, 9000)), 65535); r.often(30) && first < end {
		return &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: first, End: end}}
	}
	return &policyv1alpha2.Port{Number: first}
}

// ClusterProtocol draws a protocol of a ClusterNetworkPolicy, with a named port only if named.
func (r *Random) ClusterProtocol(named bool) policyv1alpha2.ClusterNetworkPolicyProtocol {
	var port *policyv1alpha2.Port
	switch n := r.IntN(100); {
	case n < 96:
		port = r.ClusterPort()
	case n < 98:
		port = &policyv1alpha2.Port{}
	}
	switch n := r.IntN(4); {
	case n == 0 && named:
		return policyv1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: one(r, portNames...)}
	case n == 1:
		return policyv1alpha2.ClusterNetworkPolicyProtocol{UDP: &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}}
	case n == 2:
		return policyv1alpha2.ClusterNetworkPolicyProtocol{SCTP: &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}}
	}
	return policyv1alpha2.ClusterNetworkPolicyProtocol{TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}
}

// action draws an action.
func (r *Random) action() policyv1alpha2.ClusterNetworkPolicyRuleAction {
	return one(r, policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, policyv1alpha2.ClusterNetworkPolicyRuleActionPass)
}

// EgressPeer draws a peer, sometimes with domain names, which are not supported, or without a known
// field.
func (r *Random) EgressPeer() policyv1alpha2.ClusterNetworkPolicyEgressPeer {
	var p policyv1alpha2.ClusterNetworkPolicyEgressPeer
	switch n := r.IntN(100); {
	case n < 30:
		p.Namespaces = new(r.NamespaceSelector())
	case n < 65:
		p.Pods = r.NamespacedPod()
	case n < 90:
		for range 1 + r.IntN(3) {
			p.Networks = append(p.Networks, policyv1alpha2.CIDR(r.CIDR(r.AnyAddress()).String()))
		}
	case n < 98:
		p.Nodes = new(r.Selector())
	case n < 99:
		p.DomainNames = []policyv1alpha2.DomainName{"*.example.org"}
	}
	return p
}

// IngressPeer is EgressPeer for the other direction.
func (r *Random) IngressPeer() policyv1alpha2.ClusterNetworkPolicyIngressPeer {
	var p policyv1alpha2.ClusterNetworkPolicyIngressPeer
	switch n := r.IntN(100); {
	case n < 45:
		p.Namespaces = new(r.NamespaceSelector())
	case n < 98:
		p.Pods = r.NamespacedPod()
	}
	return p
}

// ClusterNetworkPolicy draws a policy, of one of few names.
func (r *Random) ClusterNetworkPolicy() *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: one(r, names...)}}
	p.Spec.Tier = one(r, policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier)
	p.Spec.Priority = int32(one(r, 0, 1, 1, 2, 10, 1000))
	if r.often(40) {
		p.Spec.Subject.Namespaces = new(r.NamespaceSelector())
	} else {
		p.Spec.Subject.Pods = r.NamespacedPod()
	}
	for range r.IntN(4) {
		rule := policyv1alpha2.ClusterNetworkPolicyIngressRule{Action: r.action(), From: atLeastOne(r, 3, r.IngressPeer)}
		rule.Name = one(r, "", "first", "second")
		rule.Protocols = few(r, 4, func() policyv1alpha2.ClusterNetworkPolicyProtocol { return r.ClusterProtocol(true) })
		p.Spec.Ingress = append(p.Spec.Ingress, rule)
	}
	for range r.IntN(4) {
		rule := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: r.action(), To: atLeastOne(r, 3, r.EgressPeer)}
		// The API server wants no named ports with peers that are no pods.
		named := true
		for _, peer := range rule.To {
			named = named && len(peer.Networks) == 0 && peer.Nodes == nil && len(peer.DomainNames) == 0
		}
		rule.Protocols = few(r, 4, func() policyv1alpha2.ClusterNetworkPolicyProtocol { return r.ClusterProtocol(named) })
		p.Spec.Egress = append(p.Spec.Egress, rule)
	}
	return p
}

// Pod draws a pod, of one of few names. Its UID is another each time.
func (r *Random) Pod() *policy.Pod {
	return &policy.Pod{
		NamespacedName: types.NamespacedName{Namespace: one(r, namespaces...), Name: one(r, names...)},
		UID:            types.UID(fmt.Sprintf("%016x", r.Uint64())),
		Labels:         r.Labels(),
		Addresses:      r.Addresses(),
		Ports:          r.NamedPorts(),
	}
}

// Addresses draws different addresses of a pod, of either family or of both, or none.
func (r *Random) Addresses() []netip.Addr {
	known := map[netip.Addr]bool{}
	var all []netip.Addr
	for range one(r, 0, 1, 1, 1, 2, 2, 3) {
		if a := r.Address(); !known[a] {
			known[a] = true
			all = append(all, a)
		}
	}
	return all
}

// NamedPorts draws ports. Two ports may have the same name, with different protocols or in two
// containers.
func (r *Random) NamedPorts() []policy.NamedPort {
	return few(r, 4, func() policy.NamedPort {
		return policy.NamedPort{Name: one(r, portNames...), Protocol: one(r, protocols...), Port: one(r, portNumbers...)}
	})
}

// Connection draws a connection between two addresses of one family.
func (r *Random) Connection() Connection {
	c := Connection{Source: r.AnyAddress()}
	for !c.Destination.IsValid() || c.Destination.Is4() != c.Source.Is4() {
		c.Destination = r.AnyAddress()
	}
	c.Protocol = one(r, ruleset.TCP, ruleset.TCP, ruleset.TCP, ruleset.UDP, ruleset.UDP, ruleset.SCTP, ruleset.Protocol(1))
	switch c.Protocol {
	case 1:
		if c.Source.Is6() {
			c.Protocol = 58
		}
	default:
		c.Port = one(r, one(r, portNumbers...), one(r, portNumbers...), one[uint16](r, 0, 1, 52, 54, 78, 82, 8079, 8081, 9080, 17080, 17081, 65534, 60, 62))
	}
	return c
}
