// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"net/netip"
	"strings"
)

// Inquirer answers questions about its node, in parallel. All but TakeOver change nothing.
type Inquirer interface {
	// Inspect reports the state of the agent and of its containers; a pod, as namespace/name, limits
	// it to the pod's. check has each compared with the kernel.
	Inspect(ctx context.Context, pod string, check bool) (*Inspection, error)
	// Carried says what the node carries, and if asked whom it hears.
	Carried(ctx context.Context, hears bool) (*Carried, error)
	// Witness finds out what other hosts answer for. It blocks for about a second.
	Witness(ctx context.Context, q WitnessQuestion) (*Testimony, error)
	// TracePolicy says, in lines of text, which network policies decide on a connection.
	TracePolicy(ctx context.Context, q PolicyTrace) (string, error)
	// PreviewPolicies says what enforcement of network policies for all pods would change.
	PreviewPolicies(ctx context.Context) (*PolicyPreview, error)
	// TakeOver is a person's word that no other node answers for an address for which a pod of this
	// one waits, whatever is heard: the agent answers for it within a second. It returns an error
	// where no pod of the node waits for the address.
	TakeOver(ctx context.Context, addr netip.Addr) error
}

// The agent's resources. Questions are got, as JSON, and only PathTakeOver is posted to, which has
// a right of its own.
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

// Carried is what a node carries, and whom it hears.
type Carried struct {
	// Addresses are all that the node may answer for: of pods, also of those that come or go, and its
	// own.
	Addresses []CarriedAddress `json:"addresses"`
	// Hears are the links on which the agent hears those of other nodes, with the names of the nodes
	// that were heard within [HeardLately].
	Hears []Segment `json:"hears,omitempty"`
}

// CarriedAddress is an address of a node.
type CarriedAddress struct {
	Address netip.Addr `json:"address"`
	// Link is the node's to the network of the address, and MACs may answer for it there: the MAC of
	// the node's link, and of the pod's interface. There are none of an address that is on no layer 2
	// network, or not wired yet.
	Link string   `json:"link,omitempty"`
	MACs []string `json:"macs,omitempty"`
}

// The most of each kind in a WitnessQuestion: the answer has to come within a second or two.
const (
	MostHosts     = 16
	MostAddresses = 1024
)

// WitnessQuestion asks about another node, or about addresses alone.
type WitnessQuestion struct {
	// Node is the name of one that may be lost; empty: the network is asked for the addresses alone.
	Node string
	// Hosts are its InternalIPs.
	Hosts []netip.Addr
	// Controls are InternalIPs of nodes that live: a filter between nodes hides these, too. There may
	// be none.
	Controls []netip.Addr
	// VLAN is the network of the addresses on the uplink; 0 is untagged. Gateways are the network's.
	VLAN     int
	Gateways []netip.Addr
	// Addresses are floating IPs that the node may answer for.
	Addresses []netip.Addr
}

// Testimony is what a node found out about another one, or about addresses, within about a second.
type Testimony struct {
	// Control: in the network of the addresses the gateway, or a third node, answered meanwhile a
	// question of the same form; and so did one of the question's controls, if it has any. Without it
	// the silence of the other node says nothing.
	Control bool `json:"control"`
	// Host: an InternalIP answered, by ICMP, or at the kubelet's port, also by a refusal.
	Host bool `json:"host"`
	// Agent: the agent of the other node answered, at its port, or on a segment.
	Agent bool `json:"agent"`
	// Addresses are those of the question for which a host on a segment answered. It may be a proxy
	// for others.
	Addresses []AnsweredAddress `json:"addresses"`
}

// MACs returns those of the hosts that answered for an address.
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

// IsDropped says whether lines of TracePolicy say that policies refuse the connection.
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
