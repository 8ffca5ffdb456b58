// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"github.com/berth-dev/berth/cni/api"
)

// Inspection reports the state of the agent and of its containers.
type Inspection struct {
	Time time.Time `json:"time"`
	// Started is the time of the agent's start.
	Started time.Time `json:"started"`
	// NotReady says why the agent is not ready; empty if it is ready, or if the query names a pod.
	NotReady string     `json:"notReady,omitempty"`
	API      Connection `json:"api"`
	// Records counts the containers by the phase of their network.
	Records map[string]int `json:"records"`
	// OldestCheck is the oldest of the records' last comparisons with the kernel; the zero Time
	// until each record was compared.
	OldestCheck time.Time `json:"oldestCheck,omitzero"`
	// Waiting counts the records that wait to be compared or finished.
	Waiting    int                  `json:"waiting"`
	Containers []InspectedContainer `json:"containers"`
	Orphans    []InspectedOrphan    `json:"orphans,omitempty"`
	// OrphanPorts are host ports that lead to running pods without a record.
	OrphanPorts []InspectedOrphanPort `json:"orphanPorts,omitempty"`
	// Conflicts lists the conflicts heard since the agent started, one for each address, until the
	// other host has given up the address.
	Conflicts []InspectedConflict `json:"conflicts,omitempty"`
	// Unanswered lists addresses of pods for which the node does not answer, because another host may.
	Unanswered []UnansweredAddress `json:"unanswered,omitempty"`
	// Segments are the networks of pools on which the agent hears others; none if the query names a
	// pod, or does not have check=true.
	Segments []Segment `json:"segments,omitempty"`
	Problems []string  `json:"problems,omitempty"`
	// Policies reports the enforcement of network policies; nil if the query names a pod.
	Policies *InspectedPolicies `json:"policies,omitempty"`
}

// InspectedPolicies reports how a node enforces network policies.
type InspectedPolicies struct {
	// Enforced names the pods of the node for which policies are enforced: FloatingIP, All or None.
	// With None all other fields are empty.
	Enforced string `json:"enforced"`
	// Backend brings policies into the kernel: nftables, iptables-nft or iptables-legacy.
	Backend string `json:"backend,omitempty"`
	// Governed counts the pods that policies govern; Ungoverned counts other pods with a network of
	// their own.
	Governed   int `json:"governed"`
	Ungoverned int `json:"ungoverned"`
	// Known is false until the agent has read the policies and the objects that they select.
	Known bool `json:"known"`
	// NetworkPolicies and ClusterNetworkPolicies count the policies of the cluster, and Pods the
	// pods that the agent holds for them.
	NetworkPolicies        int `json:"networkPolicies"`
	ClusterNetworkPolicies int `json:"clusterNetworkPolicies"`
	Pods                   int `json:"pods"`
	// Tables counts the tables in the kernel: the node's, and the tables in the namespaces of pods.
	Tables   int `json:"tables"`
	Rules    int `json:"rules"`
	Elements int `json:"elements"`
	// Compared is the oldest of the tables' last whole comparisons with the kernel.
	Compared time.Time `json:"compared"`
	// Failures are the tables that could not be written, and why.
	Failures []string `json:"failures,omitempty"`
	// Unenforced are the pods whose policies do not hold for all of their packets, and why.
	Unenforced []string `json:"unenforced,omitempty"`
	// Problems lists the policies that cannot be enforced as they are written.
	Problems []string `json:"problems,omitempty"`
}

// PolicyPreview says what would change on a node if its agent enforced network policies for all
// pods.
type PolicyPreview struct {
	// Enforced says for which pods the agent enforces policies now.
	Enforced string `json:"enforced"`
	// Ungoverned counts the running pods that the agent does not govern now.
	Ungoverned int `json:"ungoverned"`
	// Pods are the ungoverned pods that policies would govern.
	Pods []PreviewedPod `json:"pods"`
	// Denied are the open connections that would be denied.
	Denied []DeniedConnections `json:"denied"`
	// Unknown names objects that could not be read, so that connections may be missing.
	Unknown []string `json:"unknown,omitempty"`
}

// PreviewedPod is a pod that policies would govern.
type PreviewedPod struct {
	Pod api.Pod `json:"pod"`
	// Ingress and Egress name the policies that would apply in each direction, in their order.
	Ingress []string `json:"ingress,omitempty"`
	Egress  []string `json:"egress,omitempty"`
}

// DeniedConnections are the open connections of a pod with one peer and one port, which would be
// denied.
type DeniedConnections struct {
	Pod api.Pod `json:"pod"`
	// Direction is Ingress or Egress, from the pod's view.
	Direction string `json:"direction"`
	Protocol  string `json:"protocol"`
	// From began the connections, and Port is a port of To.
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
	Port uint16     `json:"port"`
	// Count is the number of connections.
	Count int `json:"count"`
	// Why names the rule that denies, and Policies the policies that leave the connection to it.
	Why      string   `json:"why"`
	Policies []string `json:"policies,omitempty"`
}

// Reason names the rule that denies, and the policies that leave the connection to it.
func (d DeniedConnections) Reason() string {
	if len(d.Policies) == 0 {
		return d.Why
	}
	return d.Why + " (" + strings.Join(d.Policies, "; ") + ")"
}

// Connection says whether the agent can follow the API server.
type Connection struct {
	// Synced is true once every pod of the node is known.
	Synced bool `json:"synced"`
	// Error is why the last list or watch of pods failed; empty while it works.
	Error string `json:"error,omitempty"`
	// Since is the time when this began.
	Since time.Time `json:"since,omitzero"`
}

// InspectedContainer is the network of a container.
type InspectedContainer struct {
	Pod         api.Pod `json:"pod"`
	ContainerID string  `json:"containerID"`
	NetNS       string  `json:"netns,omitempty"`
	Phase       string  `json:"phase"`
	// Reason says why addresses were withdrawn.
	Reason     string               `json:"reason,omitempty"`
	Interfaces []InspectedInterface `json:"interfaces"`
	// HostPorts are the ports of the node that lead to the pod.
	HostPorts []api.HostPort `json:"hostPorts,omitempty"`
	// Shaping is the pod's profile and its limits, if the kernel was asked.
	Shaping InspectedShaping `json:"shaping"`
	// Checked is the time of the last comparison of the record with the kernel, and Error the
	// failure since then, of a comparison or a DEL.
	Checked time.Time `json:"checked,omitzero"`
	Error   string    `json:"error,omitempty"`
	// Missing names a piece that the kernel lacks, if the query asked for it.
	Missing string `json:"missing,omitempty"`
	// Peers are the hosts with which the node tracks connections of the floating IPs, those with most
	// connections first, if the query has check=true and names a pod. MorePeers is not less than the
	// number of further ones. PeersUnknown says why they are not known.
	Peers        []InspectedPeer `json:"peers,omitempty"`
	MorePeers    int             `json:"morePeers,omitempty"`
	PeersUnknown string          `json:"peersUnknown,omitempty"`
}

// InspectedPeer is a host with which the node tracks connections of a floating IP: open ones, and
// for some minutes those that ended.
type InspectedPeer struct {
	Address netip.Addr `json:"address"`
	Peer    netip.Addr `json:"peer"`
	// Outgoing: the pod began them.
	Outgoing bool `json:"outgoing,omitempty"`
	// OwnNode: the peer is the pod's node, whose kubelet probes it.
	OwnNode     bool `json:"ownNode,omitempty"`
	Connections int  `json:"connections"`
}

// InspectedTraffic is what the kernel has counted on a link of a container, from the container's
// view. The addresses of a link are counted together.
type InspectedTraffic struct {
	Link      string       `json:"link"`
	Addresses []netip.Addr `json:"addresses"`
	Received  Counted      `json:"received"`
	Sent      Counted      `json:"sent"`
	// Since is when the agent first saw the link: of what was before it knows no times.
	Since time.Time `json:"since,omitzero"`
	// Error is why the link could not be read.
	Error string `json:"error,omitempty"`
}

// Counted is one direction of a link since the link was made.
type Counted struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Last is when the agent last saw that it was more than before, which is up to a minute after the
	// packet; zero: never.
	Last time.Time `json:"last,omitzero"`
}

// InspectedShaping is the bandwidth of a container.
type InspectedShaping struct {
	// Profile is the NetworkProfile; empty if the pod has none, or only annotations of Kubernetes.
	// Group is set if pods of the node share its limits.
	Profile string `json:"profile,omitempty"`
	Group   string `json:"group,omitempty"`
	// DSCP marks the pod's packets.
	DSCP *uint8 `json:"dscp,omitempty"`
	// Limits lists the limits in the kernel.
	Limits []InspectedLimit `json:"limits,omitempty"`
	// Problem says why the pod lacks a requested limit, and Error why the kernel could not be read.
	Problem string `json:"problem,omitempty"`
	Error   string `json:"error,omitempty"`
}

// InspectedLimit is a limit in the kernel, of one direction of one link.
type InspectedLimit struct {
	Link string `json:"link"`
	// Direction is ingress or egress, from the pod's view.
	Direction string `json:"direction"`
	// Device is the link that the packets pass.
	Device string `json:"device"`
	// Rate is the pod's limit, Shared the limit of its group together, in bits per second.
	Rate   uint64 `json:"rate"`
	Shared uint64 `json:"shared,omitempty"`
}

// InspectedConflict is an address of a pod that another host had.
type InspectedConflict struct {
	Address netip.Addr `json:"address"`
	Pod     api.Pod    `json:"pod"`
	// Heard names the host; Time is when it was heard.
	Heard string    `json:"heard"`
	Time  time.Time `json:"time"`
}

// Segment is a network of pools as the agent hears it by a link of the node.
type Segment struct {
	Link string `json:"link"`
	// Seconds is how long the agent has listened there.
	Seconds int64 `json:"seconds"`
	// Error says why the agent does not send there.
	Error string `json:"error,omitempty"`
	// Nodes are the other nodes that were heard, in the order of their names; in an Inspection, in the
	// last hour.
	Nodes []Neighbour `json:"nodes"`
}

// Neighbour is another node that was heard. In a Carried it has only its name: there may be
// thousands of neighbours, and each node is asked.
type Neighbour struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
	// MAC is the MAC by which the node answers.
	MAC   string    `json:"mac,omitempty"`
	Heard time.Time `json:"heard,omitzero"`
}

// HeardLately is the longest time since a healthy node was heard: each node says hello once a
// minute.
const HeardLately = 3 * time.Minute

// UnansweredAddress is an address of a running or starting pod for which the node does not answer.
type UnansweredAddress struct {
	Address netip.Addr `json:"address"`
	// Why is a sentence: why the node waits, and what a person can do.
	Why string `json:"why"`
	// LastNode carried the address last. Denied: its agent said that it no longer carries it.
	LastNode string `json:"lastNode,omitempty"`
	Denied   bool   `json:"denied,omitempty"`
	// MACs are the MACs of hosts that answered for the address last.
	MACs []string `json:"macs,omitempty"`
}

// InspectedInterface is one interface of a container.
type InspectedInterface struct {
	Name    string `json:"name"`
	Network string `json:"network"`
	// Definition is namespace/name of the NetworkAttachmentDefinition.
	Definition  string        `json:"definition,omitempty"`
	Driver      string        `json:"driver,omitempty"`
	Link        string        `json:"link,omitempty"`
	Uplink      string        `json:"uplink,omitempty"`
	MAC         string        `json:"mac,omitempty"`
	FloatingIPs []api.Address `json:"floatingIPs,omitempty"`
	// Traffic is of the links that carry the floating IPs, if the query has check=true.
	Traffic []InspectedTraffic `json:"traffic,omitempty"`
	// Result is the CNI result: addresses and routes of the interface.
	Result json.RawMessage `json:"result,omitempty"`
}

// InspectedOrphanPort is a host port of a running pod without a record.
type InspectedOrphanPort struct {
	api.HostPort
	// Pod is empty until the pods of the node are known.
	Pod     api.Pod    `json:"pod"`
	Address netip.Addr `json:"address"`
}

// InspectedOrphan is a link of Berth without a record.
type InspectedOrphan struct {
	Link      string       `json:"link"`
	Addresses []netip.Addr `json:"addresses"`
}
