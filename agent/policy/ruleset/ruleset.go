// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"errors"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Ruleset has the rules of one place: of the node for all of its pods, or of the network
// namespace of a pod whose packets do not pass the node.
type Ruleset struct {
	// Sets, Maps and Chains by their names, at most MaxName bytes of letters, digits, '-', '_'.
	Sets   map[string]*Set
	Maps   map[string]*Map
	Chains map[string]*Chain
}

// NodeAddresses is, with 4 or 6 behind it, the name of the set of the node's own addresses.
const NodeAddresses = "node"

// Own and SelfPairs are, with 4 or 6 behind them, the names of the sets by which pods call
// themselves through a Service, in the ruleset of the node: the addresses of pods with links of
// their own, and pairs of the others.
const (
	Own       = "own"
	SelfPairs = "self"
)

// IsSelf returns whether the ruleset of the node has a source and a destination as a pod that calls
// itself.
func (rs *Ruleset) IsSelf(source, destination netip.Addr) bool {
	family := FamilyOf(source)
	own, pairs := rs.Sets[family.Name(Own)], rs.Sets[family.Name(SelfPairs)]
	return own != nil && own.shareLink(source, destination) || pairs != nil && isIn(Pair{source, destination}, pairs.Pairs, Pair.Compare)
}

// IsNode returns whether the ruleset has an address as the node's own.
func (rs *Ruleset) IsNode(a netip.Addr) bool {
	set := rs.Sets[FamilyOf(a).Name(NodeAddresses)]
	return set != nil && set.has(a)
}

// MaxName is the longest name of a set, map or chain, which the kernel sets at 31 in sets of
// some versions and at more elsewhere.
const MaxName = 31

// Family is a family of addresses.
type Family uint8

// The families; AnyFamily in a rule matches both.
const (
	AnyFamily Family = iota
	IPv4
	IPv6
)

// Families are both.
var Families = [2]Family{IPv4, IPv6}

// Name returns the name of an object of the family: with 4 or 6 behind it.
func (f Family) Name(of string) string {
	if f == IPv4 {
		return of + "4"
	}
	return of + "6"
}

// FamilyOf returns the family of an address, which must not be an IPv4 address in IPv6 form.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Protocol is a transport protocol by its number at IANA.
type Protocol uint8

// The protocols of policies; AnyProtocol in a rule matches all.
const (
	AnyProtocol Protocol = 0
	TCP         Protocol = 6
	UDP         Protocol = 17
	SCTP        Protocol = 132
)

// PortRange is the ports from First to Last, both included.
type PortRange struct {
	First, Last uint16
}

// AddressRange is the addresses from First to Last, both included, of one family.
type AddressRange struct {
	First, Last netip.Addr
}

// Endpoint is a port of an address.
type Endpoint struct {
	Address  netip.Addr
	Protocol Protocol
	Port     uint16
}

// Pair is a source and a destination.
type Pair struct {
	Source, Destination netip.Addr
}

// Link is an address with a network interface that leads to its holder.
type Link struct {
	Address   netip.Addr
	Interface string
}

// Set has the values that a rule compares a packet with. Kind says which of the lists is in use;
// each is sorted and without repeats, and a set with none is empty and matches nothing.
type Set struct {
	Name   string
	Family Family
	Kind   Kind

	Addresses []netip.Addr
	// Ranges do not overlap or touch.
	Ranges     []AddressRange
	Endpoints  []Endpoint
	Pairs      []Pair
	Links      []Link
	Interfaces []string
}

// Kind is the type of a set's elements.
type Kind uint8

// The kinds of sets.
const (
	Addresses Kind = iota + 1
	Ranges
	// Endpoints are destinations: address, protocol and port.
	Endpoints
	// Pairs are sources with destinations.
	Pairs
	// Links are addresses with network interfaces.
	Links
	// Interfaces are names of network interfaces; their set has no family.
	Interfaces
)

// Map leads from an address to a chain.
type Map struct {
	Name   string
	Family Family
	Chains map[netip.Addr]string
}

// Hook is where the kernel runs a base chain.
type Hook uint8

// The hooks. A chain without one is run by a rule that names it.
const (
	NoHook Hook = iota
	Forward
	Input
	Output
)

// Chain is rules in their order. A packet that reaches the end of a base chain is accepted; at
// the end of another it returns as with Return.
type Chain struct {
	Name  string
	Hook  Hook
	Rules []Rule
}

// Rule is a verdict on packets that match all of its conditions; the zero value of a condition
// matches every packet. A rule with a condition on addresses has a family.
type Rule struct {
	Family Family
	// Established matches packets of connections that were accepted before, and related ones.
	Established bool
	// NeighborDiscovery matches ICMPv6 messages of neighbour discovery (RFC 4861), without which there
	// is no IPv6 on a link, with the hop limit 255: no router passed them on.
	NeighborDiscovery bool
	// MulticastListener matches ICMPv6 messages of multicast listeners (RFC 2710, 3810) with the hop
	// limit 1. That may be left of another after a router: only their addresses say that they are of
	// this link.
	MulticastListener bool
	// InInterface, OutInterface name a set of Interfaces.
	InInterface, OutInterface string
	// SourceIn, SourceOut name a set of Links: the packet came by a link of its source, or leaves by
	// one.
	SourceIn, SourceOut string
	// Loopback matches packets to the pod itself by the interface lo, in or out as the hook has it.
	Loopback bool
	// LocalSource matches packets whose source is an address of the network namespace.
	LocalSource bool
	// Source and Destination name a set of Addresses or Ranges.
	Source, Destination string
	// Endpoint names a set of Endpoints to which the destination belongs.
	Endpoint string
	// Pair names a set of Pairs.
	Pair string
	// Protocol, and Ports of the destination. A rule with Ports has a protocol. There
	// may be any number, sorted, none touching another.
	Protocol Protocol
	Ports    []PortRange

	// SourceMap and DestinationMap name a map that says where the packet goes on (as with
	// Goto). A rule with one of them has no verdict and no other condition than the family.
	SourceMap, DestinationMap string
	Verdict                   Verdict
	// Target is the chain of Jump and Goto.
	Target string
	// Counter names the counter of the rule's packets, which several rules may share; empty is none.
	Counter string
	// Origin is the policy that made the rule; nil for rules that are always there.
	Origin *Origin
}

// Verdict decides about a packet that matched.
type Verdict uint8

// The verdicts, as nftables has them.
const (
	// Continue goes on with the next rule.
	Continue Verdict = iota
	Accept
	Drop
	// Return goes on after the Jump that led here; in a base chain it accepts.
	Return
	Jump
	// Goto is Jump, but a packet that returns does so to where this chain would have returned.
	Goto
)

// Origin is the piece of a policy that a rule carries out.
type Origin struct {
	// Kind is NetworkPolicy or ClusterNetworkPolicy, or empty in the rule that drops packets which
	// no policy allows.
	Kind string
	types.NamespacedName
	// Direction of the rule, as seen from the pod that the policy selects.
	Direction Direction
	// Rule counts the policy's rules of this direction, from 0; RuleName is its name, if it
	// has one.
	Rule     int
	RuleName string
	// Tier is Admin or Baseline for a ClusterNetworkPolicy.
	Tier string
}

// Direction is as in Kubernetes: toward a pod or from it.
type Direction string

// The directions.
const (
	Ingress Direction = "Ingress"
	Egress  Direction = "Egress"
)

// Count is the packets that the rules with one counter matched, and their bytes.
type Count struct{ Packets, Bytes uint64 }

// ErrChanged says that the kernel does not have the ruleset that was brought there last: another
// program changed it.
var ErrChanged = errors.New("the kernel's rules of policies differ from the applied ones")
