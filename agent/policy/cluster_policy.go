// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// readClusterPolicy reads a ClusterNetworkPolicy. A rule that this version cannot carry out
// fails closed as the API says: an Accept rule matches nothing, a Deny or Pass rule denies
// everything. Where the policy's own subject is not known, every pod is its subject and nothing is accepted.
func readClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) *intent {
	i := &intent{
		kind:           KindClusterNetworkPolicy,
		NamespacedName: types.NamespacedName{Name: p.Name},
		tier:           string(p.Spec.Tier),
		priority:       p.Spec.Priority,
	}
	closed := false
	if p.Spec.Tier != policyv1alpha2.AdminTier && p.Spec.Tier != policyv1alpha2.BaselineTier {
		i.report("spec.tier", "%q is not known; the policy is taken for one of tier Admin that accepts nothing", p.Spec.Tier)
		i.tier, closed = string(policyv1alpha2.AdminTier), true
	}
	subject, err := readNamespacesOrPods(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods)
	if err != nil {
		i.report("spec.subject", "%v; the policy is applied to every pod, and accepts nothing", err)
		subject, closed = everyPod, true
	}
	i.subject = subject
	if len(p.Spec.Ingress) > 0 {
		i.ingress = &side{}
	}
	for n, rule := range p.Spec.Ingress {
		r := clusterRule{intent: i, field: fmt.Sprintf("spec.ingress[%d]", n), peers: "from", number: n, name: rule.Name,
			action: rule.Action, protocols: rule.Protocols, closed: closed}
		var peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer
		for _, from := range rule.From {
			peers = append(peers, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: from.Namespaces, Pods: from.Pods})
		}
		i.ingress.clauses = r.read(peers, i.ingress.clauses)
	}
	if len(p.Spec.Egress) > 0 {
		i.egress = &side{}
	}
	for n, rule := range p.Spec.Egress {
		r := clusterRule{intent: i, field: fmt.Sprintf("spec.egress[%d]", n), peers: "to", number: n, name: rule.Name,
			action: rule.Action, protocols: rule.Protocols, closed: closed}
		i.egress.clauses = r.read(rule.To, i.egress.clauses)
	}
	if i.ingress != nil {
		i.ingress.finish()
	}
	if i.egress != nil {
		i.egress.finish()
	}
	return i
}

var errUnknownPeer = errors.New("has none of the fields that are known")

// readNamespacesOrPods reads the two ways of selecting pods, of which one must be there.
func readNamespacesOrPods(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) (podSelection, error) {
	switch {
	case namespaces != nil && pods != nil:
		return podSelection{}, errors.New("has both namespaces and pods")
	case namespaces != nil:
		return selectionOf("", namespaces, nil)
	case pods != nil:
		return selectionOf("", &pods.NamespaceSelector, &pods.PodSelector)
	}
	return podSelection{}, errUnknownPeer
}

// clusterRule has the fields of a rule that both directions share.
type clusterRule struct {
	*intent
	field, peers string
	number       int
	name         string
	action       policyv1alpha2.ClusterNetworkPolicyRuleAction
	protocols    []policyv1alpha2.ClusterNetworkPolicyProtocol
	// closed says that the policy as a whole must not open anything.
	closed bool
}

// read adds the rule to the clauses before it.
func (r *clusterRule) read(peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer, before []clause) []clause {
	c := clause{number: r.number, name: r.name, anyPort: len(r.protocols) == 0}
	switch r.action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		c.action = accept
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		c.action = deny
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		c.action = pass
	default:
		r.report(r.field+".action", "%q is not known; the rule denies everything", r.action)
		return append(before, r.denyAll())
	}
	if err := errors.Join(r.readPeers(&c, peers), r.readProtocols(&c)); err != nil {
		if c.action == accept {
			r.report(r.field, "%v; the rule accepts nothing", err)
			return before
		}
		r.report(r.field, "%v; the rule denies everything", err)
		return append(before, r.denyAll())
	}
	if r.closed {
		if c.action == accept {
			return before
		}
		c.action = deny
	}
	return append(before, c)
}

func (r *clusterRule) denyAll() clause {
	return clause{number: r.number, name: r.name, action: deny, anyPeer: true, anyPort: true}
}

func (r *clusterRule) readPeers(c *clause, peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer) error {
	if len(peers) == 0 {
		return fmt.Errorf("%s is empty", r.peers)
	}
	var blocks netipx.IPSetBuilder
	for n, peer := range peers {
		at := fmt.Sprintf("%s[%d]", r.peers, n)
		fields := 0
		for _, has := range []bool{peer.Namespaces != nil, peer.Pods != nil, peer.Nodes != nil, len(peer.Networks) > 0, len(peer.DomainNames) > 0} {
			if has {
				fields++
			}
		}
		switch {
		case fields > 1:
			return fmt.Errorf("%s has more than one field", at)
		case peer.Nodes != nil:
			nodes, err := selectionOf(NodeNamespace, nil, peer.Nodes)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			c.peers = append(c.peers, nodes)
		case len(peer.DomainNames) > 0:
			return fmt.Errorf("%s.domainNames is experimental and not supported", at)
		case len(peer.Networks) > 0:
			for _, text := range peer.Networks {
				prefix, err := netip.ParsePrefix(string(text))
				if err != nil || prefix.Addr().Is4In6() {
					return fmt.Errorf("%s: %q is not a CIDR", at, text)
				}
				blocks.AddPrefix(prefix)
			}
			if slices.ContainsFunc(r.protocols, func(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool { return p.DestinationNamedPort != "" }) {
				r.report(r.field+"."+at, "networks have no named ports; of them only pods match that have")
			}
		default:
			pods, err := readNamespacesOrPods(peer.Namespaces, peer.Pods)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			c.peers = append(c.peers, pods)
		}
	}
	set, err := blocks.IPSet()
	c.blocks = set.Ranges()
	return err
}

// readProtocols reads protocols. One without a port has a field that is not known here: the API
// wants one at least.
func (r *clusterRule) readProtocols(c *clause) error {
	numbers := portsOf{}
	for n, written := range r.protocols {
		fields := 0
		var protocol ruleset.Protocol
		var port *policyv1alpha2.Port
		if written.TCP != nil {
			fields++
			protocol, port = ruleset.TCP, written.TCP.DestinationPort
		}
		if written.UDP != nil {
			fields++
			protocol, port = ruleset.UDP, written.UDP.DestinationPort
		}
		if written.SCTP != nil {
			fields++
			protocol, port = ruleset.SCTP, written.SCTP.DestinationPort
		}
		if written.DestinationNamedPort != "" {
			fields++
			c.names = append(c.names, portName{ruleset.AnyProtocol, written.DestinationNamedPort})
		}
		if fields != 1 {
			return fmt.Errorf("protocols[%d] has %d of the fields that are known", n, fields)
		}
		if written.DestinationNamedPort != "" {
			continue
		}
		var ports ruleset.PortRange
		var err error
		switch {
		case port == nil || port.Number == 0 && port.Range == nil:
			return fmt.Errorf("protocols[%d] names no port", n)
		case port.Number != 0 && port.Range != nil:
			return fmt.Errorf("protocols[%d] has both a number and a range", n)
		case port.Range != nil:
			ports, err = portRangeOf(port.Range.Start, port.Range.End)
		default:
			ports, err = portRangeOf(port.Number, port.Number)
		}
		if err != nil {
			return fmt.Errorf("protocols[%d]: %w", n, err)
		}
		numbers.add(protocol, &ports)
	}
	c.ports = numbers.list()
	return nil
}
