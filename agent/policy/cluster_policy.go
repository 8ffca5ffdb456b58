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

// readClusterPolicy reads a ClusterNetworkPolicy. A rule that this version cannot carry out fails
// closed as the API says: an Accept rule matches nothing, a Deny or Pass rule denies everything. If
// the policy's subject is not known, every pod is its subject and nothing is accepted.
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
	var ingress []policyv1alpha2.ClusterNetworkPolicyEgressRule
	for _, rule := range p.Spec.Ingress {
		one := policyv1alpha2.ClusterNetworkPolicyEgressRule{Name: rule.Name, Action: rule.Action, Protocols: rule.Protocols}
		for _, from := range rule.From {
			one.To = append(one.To, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: from.Namespaces, Pods: from.Pods})
		}
		ingress = append(ingress, one)
	}
	i.ingress, i.egress = i.readSide("ingress", "from", ingress, closed), i.readSide("egress", "to", p.Spec.Egress, closed)
	return i
}

// readSide reads the rules of one direction; peers is the name of their field of peers. closed says
// that the policy as a whole must not open anything.
func (i *intent) readSide(direction, peers string, rules []policyv1alpha2.ClusterNetworkPolicyEgressRule, closed bool) *side {
	if len(rules) == 0 {
		return nil
	}
	s := &side{}
	for n := range rules {
		r := clusterRule{i, fmt.Sprintf("spec.%s[%d]", direction, n), peers, &rules[n]}
		if c := r.read(closed); c != nil {
			c.number, c.name = n, rules[n].Name
			s.clauses = append(s.clauses, *c)
		}
	}
	s.finish()
	return s
}

var errUnknownPeer = errors.New("has none of the fields that are known")

// readNamespacesOrPods reads either way of selecting pods. Exactly one of them must be set.
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

// clusterRule is a rule of either direction.
type clusterRule struct {
	*intent
	field, peers string
	*policyv1alpha2.ClusterNetworkPolicyEgressRule
}

// read returns the meaning of the rule, nil if it does nothing.
func (r *clusterRule) read(closed bool) *clause {
	c := &clause{anyPort: len(r.Protocols) == 0}
	denyAll := &clause{action: deny, anyPeer: true, anyPort: true}
	switch r.Action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		c.action = accept
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		c.action = deny
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		c.action = pass
	default:
		r.report(r.field+".action", "%q is not known; the rule denies everything", r.Action)
		return denyAll
	}
	if err := errors.Join(r.readPeers(c), r.readProtocols(c)); err != nil {
		if c.action == accept {
			r.report(r.field, "%v; the rule accepts nothing", err)
			return nil
		}
		r.report(r.field, "%v; the rule denies everything", err)
		return denyAll
	}
	if closed {
		if c.action == accept {
			return nil
		}
		c.action = deny
	}
	return c
}

func (r *clusterRule) readPeers(c *clause) error {
	if len(r.To) == 0 {
		return fmt.Errorf("%s is empty", r.peers)
	}
	var blocks netipx.IPSetBuilder
	for n, peer := range r.To {
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
			if slices.ContainsFunc(r.Protocols, func(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool { return p.DestinationNamedPort != "" }) {
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

// readProtocols reads protocols. A protocol without a known port field has a field of a newer API,
// because the API requires a port.
func (r *clusterRule) readProtocols(c *clause) error {
	numbers := portsOf{}
	for n, written := range r.Protocols {
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
