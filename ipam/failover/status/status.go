// SPDX-License-Identifier: Apache-2.0

// Package status is the protocol by which users ask berth-failover about lost nodes, and end its
// brake, at its port through the API server's proxy to its pods. It owns no behaviour and does no
// I/O.
//
// A token for [Audience] opens it, in the header of agents' tokens: one of the ServiceAccount
// berth-diagnosis may get [PathStatus], and one of berth-failover-operator may post [PathResume],
// too. The replica that leads acts and knows verdicts; the others say so in [Status].
package status

import (
	"net/netip"
	"time"
)

const (
	// Name is the name of the program, its Deployment and its ServiceAccount.
	Name = "berth-failover"
	// Selector selects its pods in Berth's namespace.
	Selector = "app.kubernetes.io/name=" + Name
	// Audience is whom tokens must be for.
	Audience = "failover.berth.dev"

	// PathStatus answers GET with a Status.
	PathStatus = "/v1/failover"
	// PathResume ends the brake by POST of a Resume, and answers with the Status then. A replica that
	// does not lead answers 409 Conflict.
	PathResume = "/v1/resume"
)

// Paths are all resources.
var Paths = []string{PathStatus, PathResume}

// Status is the state of a replica.
type Status struct {
	// Leads: this replica acts. The others have no verdicts.
	Leads bool `json:"leads"`
	// Watching: it sees renewals of Leases. Nodes are not suspected meanwhile.
	Watching bool `json:"watching"`
	// Known is how many nodes have a Lease.
	Known int `json:"nodesKnown"`
	// Brake is there while nothing moves, because too many nodes are suspect.
	Brake *Brake `json:"brake,omitempty"`
	// Nodes are those that are suspect, or have the taint berth.dev/lost, by name.
	Nodes []Node `json:"nodes"`
}

// Resume says which nodes are lost.
type Resume struct {
	// Nodes are the suspect nodes that the user was shown. Others that became suspect since stay under
	// the brake.
	Nodes []string `json:"nodes"`
}

// Brake says that nothing moves.
type Brake struct {
	Since time.Time `json:"since"`
	// Suspects is how many nodes are suspect now.
	Suspects int `json:"suspects"`
}

// Verdict is what the witnesses' testimonies say about a node, or the fencer.
type Verdict string

// Of verdicts, Off and Gone move all pods that asked for it, APILost the ones that Kubernetes has
// marked for deletion.
const (
	// Gone: nothing of the node answers anybody.
	Gone Verdict = "Gone"
	// APILost: its agent answers, so only the API server does not hear from it.
	APILost Verdict = "APILost"
	// Hung: its kernel answers, and its agent does not.
	Hung Verdict = "Hung"
	// Unclear: there is no testimony that counts.
	Unclear Verdict = "Unclear"
	// Off: the fencer has powered it off. Nobody is asked about it.
	Off Verdict = "Off"
)

// Node is a node that is suspect or tainted.
type Node struct {
	Name string `json:"name"`
	// Since is when its Lease was seen renewed last; zero if the node is not suspect.
	Since time.Time `json:"since,omitzero"`
	// Tainted: it has the taint berth.dev/lost.
	Tainted bool `json:"tainted"`
	// Verdict is empty before there is one, and where the node has no pods that may move.
	Verdict Verdict `json:"verdict,omitempty"`
	// Judged is when the verdict was reached last.
	Judged time.Time `json:"judged,omitzero"`
	// Testimonies are the verdict's.
	Testimonies []Testimony `json:"testimonies,omitempty"`
	// Pods are those that asked to be moved and hold addresses on the node.
	Pods []Pod `json:"pods,omitempty"`
	// Waits is a sentence: what is waited for, or is to be done by a person.
	Waits string `json:"waits,omitempty"`
}

// Testimony is what a witness found.
type Testimony struct {
	// Witness is its node.
	Witness string `json:"witness"`
	// Control: another host answered it, so that silence says something.
	Control bool `json:"control"`
	Host    bool `json:"host"`
	Agent   bool `json:"agent"`
	// Addresses are the floating IPs for which some host answered.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Error says why there is no testimony.
	Error string `json:"error,omitempty"`
}

// Pod is a pod that moves.
type Pod struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	Addresses   []netip.Addr `json:"addresses"`
	Terminating bool         `json:"terminating,omitempty"`
}
