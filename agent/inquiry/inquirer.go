// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"net/netip"
	"strings"
)

// Inquirer replies to questions about its node, in parallel. Only TakeOver changes something.
type Inquirer interface {
	// Inspect reports the state of the agent and of its containers; pod, as namespace/name, limits it
	// to containers of this pod. With check it compares each container with the kernel.
	Inspect(ctx context.Context, pod string, check bool) (*Inspection, error)
	// Carried returns the addresses that the node carries and, if hears, the nodes that it hears.
	Carried(ctx context.Context, hears bool) (*Carried, error)
	// Witness finds out for which addresses other hosts answer. It blocks for about a second.
	Witness(ctx context.Context, q WitnessQuestion) (*Testimony, error)
	// TracePolicy explains, in lines of text, which network policies decide on a connection.
	TracePolicy(ctx context.Context, q PolicyTrace) (string, error)
	// PreviewPolicies reports the changes if network policies were enforced for all pods.
	PreviewPolicies(ctx context.Context) (*PolicyPreview, error)
	// TakeOver is a person's statement that no other node answers for an address, whatever is heard.
	// The agent then answers for the address within a second. It returns an error if no pod of the
	// node waits for the address.
	TakeOver(ctx context.Context, addr netip.Addr) error
}

// The agent's resources. Questions use GET and return JSON. PathTakeOver uses POST, and has a right
// of its own.
const (
	PathInspect       = "/v1/inspect"
	PathCarried       = "/v1/carried"
	PathWitness       = "/v1/witness"
	PathPolicyTrace   = "/v1/policy/trace"
	PathPolicyPreview = "/v1/policy/preview"
	PathTakeOver      = "/v1/take-over"
)

// Paths are the resources for questions.
var Paths = []string{PathInspect, PathCarried, PathWitness, PathPolicyTrace, PathPolicyPreview}

// Carried is the addresses that a node carries, and the nodes that it hears.
type Carried struct {
	// Addresses are all addresses for which the node may answer: of pods, also of starting and ending
	// pods, and its own.
	Addresses []CarriedAddress `json:"addresses"`
	// Hears are the links on which the agent hears other agents, with the names of the nodes that were
	// heard within [HeardLately].
	Hears []Segment `json:"hears,omitempty"`
}

// CarriedAddress is an address of a node.
type CarriedAddress struct {
	Address netip.Addr `json:"address"`
	// Link is the node's link to the network of the address. MACs may answer for the address there:
	// the MAC of the node's link, and of the pod's interface. Both are empty for an address that is on
	// no layer 2 network, or not wired yet.
	Link string   `json:"link,omitempty"`
	MACs []string `json:"macs,omitempty"`
}

// The limits of a WitnessQuestion: its Testimony has to come within a second or two.
const (
	MostHosts     = 16
	MostAddresses = 1024
)

// WitnessQuestion asks about another node, or about addresses alone.
type WitnessQuestion struct {
	// Node is the name of a node that may be lost; without it the network is asked for the addresses
	// alone.
	Node string
	// Hosts are the InternalIPs of Node.
	Hosts []netip.Addr
	// Controls are InternalIPs of live nodes: a filter between nodes hides them, too. There may be
	// none.
	Controls []netip.Addr
	// VLAN is the network of the addresses on the uplink; 0 is untagged. Gateways are the gateways of
	// the network.
	VLAN     int
	Gateways []netip.Addr
	// Addresses are floating IPs that the node may answer for.
	Addresses []netip.Addr
}

// Testimony is the result of a WitnessQuestion, after about a second.
type Testimony struct {
	// Control: in the network of the addresses the gateway or a third node answered a question of the
	// same form meanwhile. If the question has Controls, one of them answered, too. Without Control
	// the silence of the other node says nothing.
	Control bool `json:"control"`
	// Host: an InternalIP answered, by ICMP, or at the kubelet's port, also by a refusal.
	Host bool `json:"host"`
	// Agent: the agent of the other node answered, at its port, or on a segment.
	Agent bool `json:"agent"`
	// Addresses are the addresses of the question for which a host on a segment answered. The host may
	// be a proxy.
	Addresses []AnsweredAddress `json:"addresses"`
}

// MACs returns the MACs of hosts that answered for an address.
func (t *Testimony) MACs(of netip.Addr) []string {
	for _, a := range t.Addresses {
		if a.Address == of {
			return a.MACs
		}
	}
	return nil
}

// AnsweredAddress is an address, and the MACs of the hosts that answered for it.
type AnsweredAddress struct {
	Address netip.Addr `json:"address"`
	MACs    []string   `json:"macs"`
}

// Dropped is the verdict, in the lines of TracePolicy, on a packet that policies refuse.
const Dropped = "dropped"

// IsDropped reports whether, by the lines of TracePolicy, policies refuse the connection.
func IsDropped(lines string) bool {
	for line := range strings.Lines(lines) {
		if where, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(where, " ") && strings.Contains(where, ": "+Dropped+": ") {
			return true
		}
	}
	return false
}

// PolicyTrace asks which policies decide on a connection.
type PolicyTrace struct {
	// From and To are pods, as namespace/name, or addresses.
	From, To string
	Port     uint16
	// Protocol is TCP, UDP or SCTP.
	Protocol string
}
