// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Pool is a compiled IPPool. Immutable.
type Pool struct {
	Name    string
	Labels  labels.Set
	Subnet  netip.Prefix
	Gateway netip.Addr // zero if the pool has none
	// Routed says that routers lead the addresses to their nodes.
	Routed bool
	// RequireSession says that nodes without an established BGP session do not have the addresses.
	RequireSession bool
	VLAN           int32
	Disabled       bool
	// Cooldown is how long a freed address stays in cooldown.
	Cooldown time.Duration
	// MaxPerNamespace is the number of addresses that one namespace may have. 0 means
	// no cap.
	MaxPerNamespace uint64
	// ReleasePolicies that the pool allows. Empty means all.
	ReleasePolicies []v1alpha1.ReleasePolicy
	// MaxRetainFor limits how long the pool's addresses are kept without a pod. 0 means no
	// limit.
	MaxRetainFor time.Duration
	// ExactAddresses says that pods and claims may choose addresses.
	ExactAddresses bool
	// ExternalAssigner says that the external assigner must attach addresses to nodes.
	ExternalAssigner bool
	// ExcludeServices says that addresses of Services of other implementations are reserved.
	ExcludeServices bool
	// NodeAddresses says how the pool gives its nodes addresses; nil: nodes get no addresses.
	NodeAddresses *v1alpha1.NodeAddresses
	// Egress says which pods leave with the addresses of their nodes; nil: no pods.
	Egress *v1alpha1.Egress
	// Ranges hold the addresses that Berth may allocate: ascending, disjoint, without
	// excluded addresses, gateways of other pools and addresses of older pools.
	Ranges iprange.Set

	listed            string
	single            iprange.Set // the single addresses in spec.ranges
	nodeSubnets       []netip.Prefix
	nodeSelector      labels.Selector
	namespaceSelector labels.Selector
}

// Family returns the family of the pool's addresses.
func (p *Pool) Family() v1alpha1.IPFamily { return v1alpha1.FamilyOf(p.Subnet.Addr()) }

// String returns the pool's name and its ranges as written in the spec, for messages.
func (p *Pool) String() string {
	return fmt.Sprintf("pool %q (%s)", p.Name, p.listed)
}

// Network returns how a node wires an address of the pool.
func (p *Pool) Network() *v1alpha1.Network {
	n := &v1alpha1.Network{Subnet: p.Subnet.String(), VLAN: p.VLAN}
	if p.Gateway.IsValid() {
		n.Gateway = p.Gateway.String()
	}
	if p.Routed {
		n.Mode = v1alpha1.NetworkRouted
	}
	return n
}

// Serves reports whether a node belongs to the pool.
func (p *Pool) Serves(node *v1.Node) bool {
	addresses := InternalIPs(node)
	within := func(subnet netip.Prefix) bool { return slices.ContainsFunc(addresses, subnet.Contains) }
	return (len(p.nodeSubnets) == 0 || slices.ContainsFunc(p.nodeSubnets, within)) && p.selectsNode(node.Labels)
}

// InternalIPs returns the addresses by which a node belongs to nodeSubnets.
func InternalIPs(node *v1.Node) (addresses []netip.Addr) {
	for _, address := range node.Status.Addresses {
		if address.Type != v1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(address.Address); err == nil {
			addresses = append(addresses, addr.Unmap())
		}
	}
	return addresses
}

func (p *Pool) selectsNode(nodeLabels labels.Set) bool {
	return p.nodeSelector == nil || p.nodeSelector.Matches(nodeLabels)
}

// AdmitsNamespace reports whether pods of a namespace with these labels may use the
// pool.
func (p *Pool) AdmitsNamespace(namespaceLabels labels.Set) bool {
	return p.namespaceSelector == nil || p.namespaceSelector.Matches(namespaceLabels)
}

// NamespaceSelector returns the selector that AdmitsNamespace applies, for messages.
func (p *Pool) NamespaceSelector() string {
	if p.namespaceSelector == nil {
		return ""
	}
	return p.namespaceSelector.String()
}

// Alone compiles a pool regardless of other pools, so its Ranges include addresses of older pools.
// The error is for the pool's author.
func Alone(object *v1alpha1.IPPool) (*Pool, error) { return compile(object) }

func compile(object *v1alpha1.IPPool) (*Pool, error) {
	spec := &object.Spec
	pool := &Pool{
		Name:             object.Name,
		Labels:           object.Labels,
		VLAN:             spec.VLAN,
		Routed:           spec.Mode == v1alpha1.NetworkRouted,
		RequireSession:   spec.RequireSession,
		Disabled:         spec.Disabled,
		MaxPerNamespace:  uint64(max(0, spec.MaxPerNamespace)),
		ReleasePolicies:  spec.ReleasePolicies,
		ExactAddresses:   spec.ExactAddresses == nil || *spec.ExactAddresses,
		ExternalAssigner: spec.ExternalAssigner,
		ExcludeServices:  spec.ExcludeServices,
		NodeAddresses:    spec.NodeAddresses,
		Egress:           spec.Egress,
		listed:           listed(spec.Ranges),
	}
	if spec.Cooldown != nil {
		pool.Cooldown = max(0, spec.Cooldown.Duration)
	}
	if spec.MaxRetainFor != nil {
		pool.MaxRetainFor = max(0, spec.MaxRetainFor.Duration)
	}
	var err error
	if pool.Subnet, err = iprange.ParsePrefix(spec.Subnet); err != nil {
		return nil, fmt.Errorf("spec.subnet: %w", err)
	}
	if spec.Gateway != "" {
		if pool.Gateway, err = iprange.ParseAddr(spec.Gateway); err != nil {
			return nil, fmt.Errorf("spec.gateway: %w", err)
		}
	}
	if spec.VLAN < 0 || spec.VLAN > 4094 {
		return nil, fmt.Errorf("spec.vlan: %d is not a VLAN ID from 1 to 4094, nor 0 for untagged", spec.VLAN)
	}
	if err := errors.Join(pool.checkGateway(), pool.checkMode(), pool.checkEgress()); err != nil {
		return nil, err
	}
	if pool.Ranges, err = compileRanges(spec, pool); err != nil {
		return nil, err
	}
	return pool, pool.compileSelectors(spec)
}

// compileSelectors reads which nodes and namespaces the pool serves.
func (p *Pool) compileSelectors(spec *v1alpha1.IPPoolSpec) (err error) {
	for i, text := range spec.NodeSubnets {
		subnet, err := iprange.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("spec.nodeSubnets[%d]: %w", i, err)
		}
		p.nodeSubnets = append(p.nodeSubnets, subnet)
	}
	if spec.NodeSelector != nil {
		if p.nodeSelector, err = metav1.LabelSelectorAsSelector(spec.NodeSelector); err != nil {
			return fmt.Errorf("spec.nodeSelector: %w", err)
		}
	}
	if spec.NamespaceSelector != nil {
		if p.namespaceSelector, err = metav1.LabelSelectorAsSelector(spec.NamespaceSelector); err != nil {
			return fmt.Errorf("spec.namespaceSelector: %w", err)
		}
	}
	return nil
}

// checkGateway refuses a gateway that cannot be the address of a router on the subnet's link. The
// gateway may be outside of the subnet.
func (p *Pool) checkGateway() error {
	switch {
	case !p.Gateway.IsValid():
		return nil
	case p.Gateway.Is4() != p.Subnet.Addr().Is4():
		return fmt.Errorf("spec.gateway: %s is not of the family of the subnet %s", p.Gateway, p.Subnet)
	case !p.Gateway.IsGlobalUnicast() && !p.Gateway.IsLinkLocalUnicast():
		return fmt.Errorf("spec.gateway: %s is not the address of one router", p.Gateway)
	case p.Subnet.IsSingleIP() && p.Gateway == p.Subnet.Addr():
		return fmt.Errorf("spec.gateway: %s is the only address of the subnet: write the address of a router on its link", p.Gateway)
	case slices.Contains(namesNoHost(p.Subnet), p.Gateway):
		return fmt.Errorf("spec.gateway: %s is the network or the broadcast address of the subnet %s", p.Gateway, p.Subnet)
	}
	return nil
}

// namesNoHost returns an IPv4 subnet's network and broadcast addresses (RFC 1122 §3.2.1.3). A /31
// has neither (RFC 3021).
func namesNoHost(subnet netip.Prefix) []netip.Addr {
	if subnet.Addr().Is6() || subnet.Bits() >= 31 {
		return nil
	}
	return []netip.Addr{subnet.Addr(), iprange.OfPrefix(subnet).Last}
}

// checkMode refuses fields that a Routed pool cannot have.
func (p *Pool) checkMode() error {
	switch {
	case p.Routed && p.Gateway.IsValid():
		return errors.New("spec.gateway: a pool with mode Routed has none")
	case p.Routed && p.NodeAddresses != nil:
		return errors.New("spec.nodeAddresses: a pool with mode Routed has none")
	case p.Routed && p.VLAN != 0:
		return errors.New("spec.vlan: a pool with mode Routed has none")
	case p.RequireSession && !p.Routed:
		return errors.New("spec.requireSession: only a pool with mode Routed has sessions")
	}
	return nil
}

// checkEgress refuses an egress that no node can carry out.
func (p *Pool) checkEgress() error {
	switch {
	case p.Egress == nil:
		return nil
	case p.NodeAddresses == nil:
		return errors.New("spec.egress: the pool gives nodes no addresses: set spec.nodeAddresses")
	case !p.Gateway.IsValid():
		return errors.New("spec.egress: the pool has no gateway: set spec.gateway")
	}
	if _, err := metav1.LabelSelectorAsSelector(&p.Egress.Namespaces); err != nil {
		return fmt.Errorf("spec.egress.namespaces: %w", err)
	}
	for i, text := range p.Egress.Except {
		prefix, err := iprange.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("spec.egress.except[%d]: %w", i, err)
		}
		if prefix.Addr().Is4() != p.Subnet.Addr().Is4() {
			return fmt.Errorf("spec.egress.except[%d]: %s is not of the family of the subnet %s", i, prefix, p.Subnet)
		}
	}
	return nil
}

// compileRanges applies spec.ranges and spec.exclude. It also leaves out addresses that no pod may
// have, unless spec.ranges lists them as single addresses: the gateway, an IPv4 subnet's network
// and broadcast addresses, and an IPv6 subnet's router anycast address (RFC 4291 §2.6.1; a /127 has
// none, RFC 6164). The subnet of a Routed pool is on no link, so its network and broadcast
// addresses are not left out.
func compileRanges(spec *v1alpha1.IPPoolSpec, pool *Pool) (iprange.Set, error) {
	included, err := parseRanges("spec.ranges", spec.Ranges, pool.Subnet)
	if err != nil {
		return nil, err
	}
	excluded, err := parseRanges("spec.exclude", spec.Exclude, pool.Subnet)
	if err != nil {
		return nil, err
	}
	unusable := []netip.Addr{}
	if pool.Gateway.IsValid() {
		unusable = append(unusable, pool.Gateway)
	}
	if !pool.Routed {
		unusable = append(unusable, namesNoHost(pool.Subnet)...)
	}
	if pool.Subnet.Addr().Is6() && pool.Subnet.Bits() < 127 {
		unusable = append(unusable, pool.Subnet.Addr())
	}
	pool.single = iprange.SetOf(slices.DeleteFunc(slices.Clone(included), func(r iprange.Range) bool { return r.First != r.Last })...)
	for _, addr := range unusable {
		if !pool.single.Contains(addr) {
			excluded = append(excluded, iprange.Single(addr))
		}
	}
	ranges := iprange.SetOf(included...).Without(iprange.SetOf(excluded...))
	if len(ranges) == 0 {
		return nil, fmt.Errorf("spec.ranges: nothing is left after spec.exclude, the gateway and the subnet's first and last address")
	}
	return ranges, nil
}

func parseRanges(field string, texts []string, subnet netip.Prefix) ([]iprange.Range, error) {
	var ranges []iprange.Range
	for i, text := range texts {
		r, err := iprange.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		if !subnet.Contains(r.First) || !subnet.Contains(r.Last) {
			return nil, fmt.Errorf("%s[%d]: %s is not inside the subnet %s", field, i, r, subnet)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// listed joins ranges for messages. It shortens a long list.
func listed(ranges []string) string {
	const most = 4
	if len(ranges) <= most {
		return strings.Join(ranges, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ranges[:most], ", "), len(ranges)-most)
}
