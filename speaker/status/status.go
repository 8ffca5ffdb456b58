// SPDX-License-Identifier: Apache-2.0

// Package status is the protocol by which users ask the berth-speaker of a node about its sessions,
// at its port through the API server's proxy to its pod. It owns no behaviour and does no I/O.
//
// A token for [Audience] of the ServiceAccount berth-diagnosis opens it, in the header of agents'
// tokens.
package status

import (
	"net/netip"
	"time"
)

const (
	// Name is the name of the program, its DaemonSet and its ServiceAccount.
	Name = "berth-speaker"
	// Selector selects its pods in Berth's namespace.
	Selector = "app.kubernetes.io/name=" + Name
	// Path answers GET with a Status.
	Path = "/v1/bgp"
)

// Audience returns whom tokens for the speaker of a node must be for.
func Audience(node string) string { return "speaker.berth.dev/" + node }

// Status is the state of a node's speaker.
type Status struct {
	Node string `json:"node"`
	// Read is when it last read table 98; zero if it never could.
	Read time.Time `json:"read,omitzero"`
	// Carried is table 98: the addresses that the node carries, in order.
	Carried []Carried `json:"carried"`
	// Peers are the BGPPeers that select the node, by name.
	Peers []Peer `json:"peers"`
}

// Carried is an address in table 98.
type Carried struct {
	Address netip.Addr `json:"address"`
	// Metric is the lower the later the address came to the node.
	Metric uint32 `json:"metric"`
}

// Peer is a session with a router, or the reason why there is none.
type Peer struct {
	// Name is the BGPPeer's.
	Name     string     `json:"name"`
	LocalASN uint32     `json:"localASN,omitempty"`
	Address  netip.Addr `json:"address,omitzero"`
	ASN      uint32     `json:"asn,omitempty"`
	// Established: the session is up.
	Established bool `json:"established"`
	// Since is when it came up, or went down, or was first tried.
	Since time.Time `json:"since,omitzero"`
	// Error says why the session is down, or why some addresses are not announced.
	Error string `json:"error,omitempty"`
	// BFD is the state of BFD with the router, nil without.
	BFD *BFD `json:"bfd,omitempty"`
	// Exported are the addresses that the session announces while it is up, in order.
	Exported []Exported `json:"exported"`
	// Received counts the routes that the router sends. None is used.
	Received int `json:"received"`
}

// BFD is how the node and a router watch each other.
type BFD struct {
	// State is Down, Init or Up.
	State string `json:"state"`
	// Since is when it came to be so.
	Since time.Time `json:"since,omitzero"`
	// Error says why it is not Up.
	Error string `json:"error,omitempty"`
}

// Exported is an announcement.
type Exported struct {
	Address     netip.Addr `json:"address"`
	Communities []string   `json:"communities,omitempty"`
	MED         *uint32    `json:"med,omitempty"`
	LocalPref   *uint32    `json:"localPref,omitempty"`
}
