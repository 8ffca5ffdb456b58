// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Problem is a part of a policy that cannot be carried out as written.
type Problem struct {
	// Kind is NetworkPolicy or ClusterNetworkPolicy.
	Kind string
	types.NamespacedName
	Text string
}

// The kinds of policies.
const (
	KindNetworkPolicy        = "NetworkPolicy"
	KindClusterNetworkPolicy = "ClusterNetworkPolicy"
)

// intent is the parsed form of a policy of either kind. Nothing is looked up in the cluster.
type intent struct {
	kind string
	types.NamespacedName
	tier     string
	priority int32
	subject  podSelection
	// ingress and egress are nil in a direction to which the policy does not apply.
	ingress, egress *side
	problems        []string
}

// position is where the policy's tier comes: Admin, NetworkPolicies, Baseline.
func (i *intent) position() int {
	switch {
	case i.kind == KindNetworkPolicy:
		return 1
	case i.tier == string(policyv1alpha2.AdminTier):
		return 0
	}
	return 2
}

// side is the rules of a policy in one direction.
type side struct {
	clauses []clause
	// names are the named ports in these rules, each once, sorted.
	names []portName
	// revision differs between sides that differ.
	revision uint64
}

// clause is one rule of a policy.
type clause struct {
	number int
	name   string
	action action

	// anyPeer stands for all addresses; otherwise peers and blocks name them.
	anyPeer bool
	peers   []podSelection
	blocks  []netipx.IPRange

	// anyPort stands for all protocols and ports; otherwise ports and names list them.
	anyPort bool
	ports   []protocolPorts
	names   []portName
}

type action uint8

const (
	accept action = iota
	deny
	pass
)

// protocolPorts are ports of a protocol; without ranges, all ports.
type protocolPorts struct {
	protocol ruleset.Protocol
	ranges   []ruleset.PortRange
}

// portName is a named port; AnyProtocol matches it with any protocol.
type portName struct {
	protocol ruleset.Protocol
	name     string
}

func comparePortNames(a, b portName) int {
	return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.name, b.name))
}

func protocolOf(p corev1.Protocol) (ruleset.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return ruleset.TCP, true
	case corev1.ProtocolUDP:
		return ruleset.UDP, true
	case corev1.ProtocolSCTP:
		return ruleset.SCTP, true
	}
	return ruleset.AnyProtocol, false
}

// portsOf collects ports by protocol.
type portsOf map[ruleset.Protocol][]ruleset.PortRange

// add adds ports of a protocol, all if the range is nil.
func (p portsOf) add(protocol ruleset.Protocol, ports *ruleset.PortRange) {
	if ports == nil {
		ports = &ruleset.PortRange{First: 0, Last: 65535}
	}
	p[protocol] = append(p[protocol], *ports)
}

// list returns the ports, each once.
func (p portsOf) list() []protocolPorts {
	var list []protocolPorts
	for protocol, ranges := range p {
		slices.SortFunc(ranges, func(a, b ruleset.PortRange) int {
			return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
		})
		var joined []ruleset.PortRange
		for _, r := range ranges {
			if n := len(joined) - 1; n >= 0 && int(r.First) <= int(joined[n].Last)+1 {
				joined[n].Last = max(joined[n].Last, r.Last)
			} else {
				joined = append(joined, r)
			}
		}
		if len(joined) == 1 && joined[0] == (ruleset.PortRange{First: 0, Last: 65535}) {
			joined = nil
		}
		list = append(list, protocolPorts{protocol, joined})
	}
	slices.SortFunc(list, func(a, b protocolPorts) int { return cmp.Compare(a.protocol, b.protocol) })
	return list
}

// finish sorts the lists of a clause, so that equal meanings are equal values.
func (c *clause) finish() {
	slices.SortFunc(c.peers, func(a, b podSelection) int { return cmp.Compare(a.key(), b.key()) })
	c.peers = slices.CompactFunc(c.peers, func(a, b podSelection) bool { return a.key() == b.key() })
	slices.SortFunc(c.names, comparePortNames)
	c.names = slices.Compact(c.names)
}

// finish collects the port names of a side's clauses. The side may be nil.
func (s *side) finish() {
	if s == nil {
		return
	}
	for i := range s.clauses {
		s.clauses[i].finish()
		s.names = append(s.names, s.clauses[i].names...)
	}
	slices.SortFunc(s.names, comparePortNames)
	s.names = slices.Compact(s.names)
}

// report notes a problem of a field.
func (i *intent) report(field string, format string, args ...any) {
	i.problems = append(i.problems, field+": "+fmt.Sprintf(format, args...))
}

// selectionOf reads a pair of selectors. A nil selector of namespaces selects the policy's
// namespace, and a nil selector of pods every pod.
func selectionOf(namespace string, namespaces, pods *metav1.LabelSelector) (podSelection, error) {
	s := podSelection{scope: scope{namespace: namespace}}
	var err error
	if namespaces != nil {
		s.scope.namespace = ""
		if s.scope.selector, err = selectorOf(namespaces); err != nil {
			return s, err
		}
	}
	if pods != nil {
		s.pods, err = selectorOf(pods)
	}
	return s, err
}
