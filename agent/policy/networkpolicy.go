// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// readNetworkPolicy reads a NetworkPolicy. An invalid part allows nothing: an invalid peer or port
// is left out; an invalid pod selector isolates all pods of the namespace; an invalid direction
// isolates both directions.
func readNetworkPolicy(p *networkingv1.NetworkPolicy) *intent {
	i := &intent{
		kind:           KindNetworkPolicy,
		NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
	}
	ingress, egress := directionsOf(i, &p.Spec)
	spec := p.Spec
	var err error
	if i.subject, err = selectionOf(p.Namespace, nil, &spec.PodSelector); err != nil {
		i.report("spec.podSelector", "%v; the policy isolates every pod of its namespace", err)
		i.subject = podSelection{scope: scope{namespace: p.Namespace}}
		spec.Ingress, spec.Egress = nil, nil
	}
	if ingress {
		i.ingress = &side{}
		for n, rule := range spec.Ingress {
			i.ingress.clauses = append(i.ingress.clauses,
				readNetworkRule(i, fmt.Sprintf("spec.ingress[%d]", n), n, rule.From, "from", rule.Ports))
		}
	}
	if egress {
		i.egress = &side{}
		for n, rule := range spec.Egress {
			i.egress.clauses = append(i.egress.clauses,
				readNetworkRule(i, fmt.Sprintf("spec.egress[%d]", n), n, rule.To, "to", rule.Ports))
		}
	}
	i.ingress.finish()
	i.egress.finish()
	return i
}

func directionsOf(i *intent, spec *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	for n, name := range spec.PolicyTypes {
		switch name {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			i.report(fmt.Sprintf("spec.policyTypes[%d]", n), "%q is not known; the policy isolates both directions", name)
			return true, true
		}
	}
	return ingress, egress
}

func readNetworkRule(i *intent, field string, number int, peers []networkingv1.NetworkPolicyPeer, peersField string, ports []networkingv1.NetworkPolicyPort) clause {
	c := clause{number: number, anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
	var blocks netipx.IPSetBuilder
	for n, peer := range peers {
		at := fmt.Sprintf("%s.%s[%d]", field, peersField, n)
		switch {
		case peer.IPBlock != nil && (peer.PodSelector != nil || peer.NamespaceSelector != nil):
			i.report(at, "has an ipBlock and another peer; it matches nothing")
		case peer.IPBlock != nil:
			set, err := readBlock(peer.IPBlock)
			if err != nil {
				i.report(at+".ipBlock", "%v; it matches nothing", err)
				continue
			}
			blocks.AddSet(set)
		case peer.PodSelector == nil && peer.NamespaceSelector == nil:
			i.report(at, "names no peer that is known; it matches nothing")
		default:
			pods, err := selectionOf(i.Namespace, peer.NamespaceSelector, peer.PodSelector)
			if err != nil {
				i.report(at, "%v; it matches nothing", err)
				continue
			}
			c.peers = append(c.peers, pods)
		}
	}
	// All its sets are valid.
	set, _ := blocks.IPSet()
	c.blocks = set.Ranges()

	numbers := portsOf{}
	for n, port := range ports {
		if err := readNetworkPort(port, numbers, &c.names); err != nil {
			i.report(fmt.Sprintf("%s.ports[%d]", field, n), "%v; it matches nothing", err)
		}
	}
	c.ports = numbers.list()
	return c
}

func readNetworkPort(port networkingv1.NetworkPolicyPort, numbers portsOf, names *[]portName) error {
	written := corev1.ProtocolTCP
	if port.Protocol != nil {
		written = *port.Protocol
	}
	protocol, ok := protocolOf(written)
	switch {
	case !ok:
		return fmt.Errorf("protocol %q is not known", written)
	case port.Port == nil && port.EndPort != nil:
		return errors.New("endPort without port")
	case port.Port == nil:
		numbers.add(protocol, nil)
		return nil
	case port.Port.Type == intstr.String && port.EndPort != nil:
		return errors.New("endPort with the name of a port")
	case port.Port.Type == intstr.String && port.Port.StrVal == "":
		return errors.New("the name of the port is empty")
	case port.Port.Type == intstr.String:
		*names = append(*names, portName{protocol, port.Port.StrVal})
		return nil
	}
	first, last := port.Port.IntVal, port.Port.IntVal
	if port.EndPort != nil {
		last = *port.EndPort
	}
	r, err := portRangeOf(first, last)
	if err != nil {
		return err
	}
	numbers.add(protocol, &r)
	return nil
}

func portRangeOf(first, last int32) (ruleset.PortRange, error) {
	if first < 1 || last > 65535 || first > last {
		return ruleset.PortRange{}, fmt.Errorf("ports %d to %d are none", first, last)
	}
	return ruleset.PortRange{First: uint16(first), Last: uint16(last)}, nil
}

// readBlock returns the addresses of a block without its exceptions.
func readBlock(block *networkingv1.IPBlock) (*netipx.IPSet, error) {
	cidr, err := parseCIDR(block.CIDR)
	if err != nil {
		return nil, err
	}
	var set netipx.IPSetBuilder
	set.AddPrefix(cidr)
	for _, text := range block.Except {
		prefix, err := parseCIDR(text)
		if err != nil {
			return nil, err
		}
		if prefix.Addr().BitLen() != cidr.Addr().BitLen() {
			return nil, fmt.Errorf("%s and %s are of two families", cidr, prefix)
		}
		set.RemovePrefix(prefix)
	}
	return set.IPSet()
}

// parseCIDR reads a CIDR like the API server, which accepts leading zeros and host bits in policies
// older than its stricter rules.
func parseCIDR(text string) (netip.Prefix, error) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", text)
	}
	addr, _ := netip.AddrFromSlice(network.IP)
	bits, size := network.Mask.Size()
	if addr.Is4In6() {
		if size == 128 {
			bits -= 96
		}
		if bits < 0 {
			return netip.Prefix{}, fmt.Errorf("%q is of both families", text)
		}
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, bits).Masked(), nil
}
