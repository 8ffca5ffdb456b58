// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"errors"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Ruleset has the rules of one place: the node, for all of its pods, or the network namespace of a
// pod whose packets do not pass the node.
type Ruleset struct {
	// Sets, Maps and Chains are by name; names are at most MaxName bytes of letters, digits, '-', '_'.
	Sets   map[string]*Set
	Maps   map[string]*Map
	Chains map[string]*Chain
}

// NodeAddresses, with 4 or 6 appended, is the name of the set of the node's own addresses.
const NodeAddresses = "node"

// Own and SelfPairs, with 4 or 6 appended, are the names of the node's sets for pods that call
// themselves through a Service: Own has the addresses of pods with links of their own, SelfPairs
// has pairs of addresses of all other pods.
const (
	Own       = "own"
	SelfPairs = "self"
)

// IsSelf reports whether, by the ruleset of the node, source and destination are a pod that calls
// itself.
func (rs *Ruleset) IsSelf(source, destination netip.Addr) bool {
	family := FamilyOf(source)
	own, pairs := rs.Sets[family.Name(Own)], rs.Sets[family.Name(SelfPairs)]
	return own != nil && own.shareLink(source, destination) || pairs != nil && isIn(Pair{source, destination}, pairs.Pairs, Pair.Compare)
}

// IsNode reports whether the ruleset has an address as the node's own.
func (rs *Ruleset) IsNode(a netip.Addr) bool {
	set := rs.Sets[FamilyOf(a).Name(NodeAddresses)]
	return set != nil && set.has(a)
}

// HookTo is the hook of the node that a pod's packets to an address pass; rs may be nil.
func (rs *Ruleset) HookTo(a netip.Addr) Hook {
	if rs != nil && rs.IsNode(a) {
		return Input
	}
	return Forward
}

// MaxName is the longest name of a set, map or chain. Some kernels limit names of sets to 31 bytes;
// all other limits are higher.
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

// Name returns the name of an object of the family: with 4 or 6 appended.
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

// Set has the values for a condition of rules. Kind says which of the lists is in use. Lists are
// sorted and without repeats. A set without elements matches nothing.
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

// The hooks. A chain without a hook is run by rules that name it.
const (
	NoHook Hook = iota
	Forward
	Input
	Output
)

// Chain is rules in their order. A packet that reaches the end of a base chain is accepted; at the
// end of any other chain it returns as with Return.
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
	// NeighborDiscovery matches ICMPv6 messages of neighbour discovery (RFC 4861), which IPv6 needs on
	// each link, with the hop limit 255: no router forwarded them.
	NeighborDiscovery bool
	// MulticastListener matches ICMPv6 messages of multicast listeners (RFC 2710, 3810) with the hop
	// limit 1. A forwarded packet may have this hop limit, too: only the addresses show that a message
	// is from this link.
	MulticastListener bool
	// InInterface, OutInterface name a set of Interfaces.
	InInterface, OutInterface string
	// SourceIn, SourceOut name a set of Links: the packet came by a link of its source, or leaves by
	// such a link.
	SourceIn, SourceOut string
	// Loopback matches packets of the pod to itself by the interface lo, incoming or outgoing by the
	// hook.
	Loopback bool
	// LocalSource matches packets whose source is an address of the network namespace.
	LocalSource bool
	// Source and Destination name a set of Addresses or Ranges.
	Source, Destination string
	// Endpoint names a set of Endpoints to which the destination belongs.
	Endpoint string
	// Pair names a set of Pairs.
	Pair string
	// Protocol, and Ports of the destination. A rule with Ports has a protocol. There may be any
	// number of ranges, sorted, without overlapping or touching ranges.
	Protocol Protocol
	Ports    []PortRange

	// SourceMap and DestinationMap name a map with the chain where the packet continues (as with
	// Goto). A rule with a map has no verdict and no condition except the family.
	SourceMap, DestinationMap string
	Verdict                   Verdict
	// Target is the chain of Jump and Goto.
	Target string
	// Counter names the counter of the rule's packets, which several rules may share; empty is none.
	Counter string
	// Origin is the policy that made the rule; nil for rules that are always there.
	Origin *Origin
}

// Sets are the names of the sets in the rule's conditions, empty for absent conditions.
func (r *Rule) Sets() [8]string {
	return [...]string{r.InInterface, r.OutInterface, r.SourceIn, r.SourceOut, r.Source, r.Destination, r.Endpoint, r.Pair}
}

// Verdict decides about a packet that matched.
type Verdict uint8

// The verdicts, as nftables has them.
const (
	// Continue continues with the next rule.
	Continue Verdict = iota
	Accept
	Drop
	// Return continues after the Jump that led here; in a base chain it accepts.
	Return
	Jump
	// Goto is Jump, but after it a packet returns to where this chain would have returned.
	Goto
)

// Origin is the part of a policy that a rule implements.
type Origin struct {
	// Kind is NetworkPolicy or ClusterNetworkPolicy, or empty in the rule that drops packets that no
	// policy allows.
	Kind string
	types.NamespacedName
	// Direction of the rule, as seen from the pod that the policy selects.
	Direction Direction
	// Rule is the number of the policy's rule in this direction, from 0; RuleName is its name, if it
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

// Directions are both.
var Directions = [2]Direction{Ingress, Egress}

// Count is the number of packets that the rules of a counter matched, and their bytes.
type Count struct{ Packets, Bytes uint64 }

// Plus returns the sum.
func (c Count) Plus(d Count) Count { return Count{c.Packets + d.Packets, c.Bytes + d.Bytes} }

// ErrChanged says that the kernel no longer has the last applied ruleset: another program changed
// it.
var ErrChanged = errors.New("the kernel's rules of policies differ from the applied ones")
