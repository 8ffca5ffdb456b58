// SPDX-License-Identifier: Apache-2.0

// Package node asks the agents of nodes about their nodes. It needs the Role berth-diagnosis of Berth's
// namespace: commands do it only when a flag says so, or where they can do without.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// asker gets a resource of the agent in a pod. Blocking.
type asker interface {
	Get(ctx context.Context, agent *v1.Pod, path string, query url.Values) ([]byte, error)
}

// Agents asks agents by their pods.
type Agents struct {
	Asker asker
}

// The agents' resources; agent/inquiry has their contents.
const (
	pathInspect = "/v1/inspect"
	pathProbe   = "/v1/probe"
	pathPreview = "/v1/policy/preview"
	pathTrace   = "/v1/policy/trace"
)

// Inspection is the part of an agent's answer about its node that is read.
type Inspection struct {
	// NotReady says why the agent is not ready.
	NotReady string    `json:"notReady"`
	Time     time.Time `json:"time"`
	API      struct {
		Synced bool   `json:"synced"`
		Error  string `json:"error"`
	} `json:"api"`
	Containers []Container `json:"containers"`
	Conflicts  []struct {
		Address string `json:"address"`
		Pod     Pod    `json:"pod"`
		Heard   string `json:"heard"`
	} `json:"conflicts"`
	Unanswered []Unanswered `json:"unanswered"`
	// Orphans are links without a record.
	Orphans []struct {
		Link      string   `json:"link"`
		Addresses []string `json:"addresses"`
	} `json:"orphans"`
	Segments []Segment `json:"segments"`
	Problems []string  `json:"problems"`
	Policies struct {
		Failures   []string `json:"failures"`
		Unenforced []string `json:"unenforced"`
	} `json:"policies"`
}

// Unanswered is an address of a pod for which the node does not answer.
type Unanswered struct {
	Address string `json:"address"`
	// Why is a sentence: what the node waits for, and what a person can do.
	Why string `json:"why"`
	// LastNode carried the address last, and Denied: its agent said that it does not any more.
	LastNode string `json:"lastNode,omitempty"`
	Denied   bool   `json:"denied,omitempty"`
	// MACs are those of the hosts that answered for it last.
	MACs []string `json:"macs,omitempty"`
}

// Segment is a network of pools on which the agent hears others.
type Segment struct {
	Link string `json:"link"`
	// Error says why it says nothing there itself.
	Error string      `json:"error,omitempty"`
	Nodes []Neighbour `json:"nodes"`
}

// Neighbour is another node that was heard in the last hour.
type Neighbour struct {
	Name  string    `json:"name"`
	MAC   string    `json:"mac,omitempty"`
	Heard time.Time `json:"heard"`
}

// Container is the network of a container of a pod.
type Container struct {
	Pod         Pod    `json:"pod"`
	ContainerID string `json:"containerID"`
	Phase       string `json:"phase"`
	Reason      string `json:"reason"`
	Error       string `json:"error"`
	// Missing names features that the kernel lacks.
	Missing    string      `json:"missing"`
	Interfaces []Interface `json:"interfaces"`
}

// Interface is one of a container.
type Interface struct {
	Name        string `json:"name"`
	Link        string `json:"link"`
	FloatingIPs []struct {
		Address string `json:"address"`
	} `json:"floatingIPs"`
}

// Wiring says in a word whether the node carries the container's addresses, and if not, why.
func (c *Container) Wiring() (ok bool, text string) {
	for _, wrong := range []struct{ what, text string }{{"the kernel lacks ", c.Missing}, {"the last try failed: ", c.Error}, {"withdrawn: ", c.Reason}} {
		if wrong.text != "" {
			return false, wrong.what + wrong.text
		}
	}
	return c.Phase == added, c.Phase
}

// added is the phase of a container whose network is complete.
const added = "added"

// Has says whether the container has an address.
func (c *Container) Has(address string) bool {
	for _, i := range c.Interfaces {
		for _, ip := range i.FloatingIPs {
			if ip.Address == address {
				return true
			}
		}
	}
	return false
}

// Inspect compares a pod with its node's kernel.
func (a *Agents) Inspect(ctx context.Context, agent *v1.Pod, namespace, pod string) (*Inspection, error) {
	var in Inspection
	return &in, a.ask(ctx, agent, &in, pathInspect, url.Values{"pod": {namespace + "/" + pod}, "check": {"true"}})
}

// InspectNode compares all pods of a node with its kernel.
func (a *Agents) InspectNode(ctx context.Context, agent *v1.Pod) (*Inspection, error) {
	var in Inspection
	return &in, a.ask(ctx, agent, &in, pathInspect, url.Values{"check": {"true"}})
}

// InspectAll compares all pods of a node with its kernel, and returns the agent's whole answer.
func (a *Agents) InspectAll(ctx context.Context, agent *v1.Pod) ([]byte, error) {
	return a.Asker.Get(ctx, agent, pathInspect, url.Values{"check": {"true"}})
}

// Unanswered lists the addresses for which a node does not answer.
func (a *Agents) Unanswered(ctx context.Context, agent *v1.Pod) ([]Unanswered, error) {
	var in Inspection
	err := a.ask(ctx, agent, &in, pathInspect, nil)
	return in.Unanswered, err
}

// Probed is the part of an agent's answer about the network that is read.
type Probed struct {
	Carried []MACs  `json:"carried"`
	Answers []MACs  `json:"answers"`
	Hears   []Hears `json:"hears"`
}

// Hears are the names of the nodes that a node hears on a link.
type Hears struct {
	Link string `json:"link"`
	// Seconds is for how long it has listened.
	Seconds int64 `json:"seconds"`
	// Error says why it says nothing there itself.
	Error string   `json:"error"`
	Nodes []string `json:"nodes"`
}

// MACs of an address.
type MACs struct {
	Address string   `json:"address"`
	MACs    []string `json:"macs"`
	// Link is the node's, of an address that it carries.
	Link string `json:"link"`
}

// Probe asks the network of a VLAN for the MACs of addresses, and the agent for the addresses
// that its node carries.
func (a *Agents) Probe(ctx context.Context, agent *v1.Pod, vlan int32, addresses ...string) (*Probed, error) {
	var probed Probed
	return &probed, a.ask(ctx, agent, &probed, pathProbe, url.Values{"vlan": {strconv.Itoa(int(vlan))}, "address": addresses})
}

// Preview is what enforcement of network policies for all pods would change on a node.
type Preview struct {
	// Enforced says for which pods of the node policies are enforced now.
	Enforced string `json:"enforced"`
	// Ungoverned counts the other running pods.
	Ungoverned int            `json:"ungoverned"`
	Pods       []PreviewedPod `json:"pods"`
	Denied     []Denied       `json:"denied"`
	Unknown    []string       `json:"unknown"`
}

// Pod names a pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// PreviewedPod is a pod that policies would govern, by direction.
type PreviewedPod struct {
	Pod     Pod      `json:"pod"`
	Ingress []string `json:"ingress"`
	Egress  []string `json:"egress"`
}

// Denied are open connections that would be denied, of one pod and peer and to one port.
type Denied struct {
	Pod       Pod    `json:"pod"`
	Direction string `json:"direction"`
	Protocol  string `json:"protocol"`
	From      string `json:"from"`
	To        string `json:"to"`
	Port      uint16 `json:"port"`
	Count     int    `json:"count"`
	// Why names the rule, and Policies the policies that leave the connection to it.
	Why      string   `json:"why"`
	Policies []string `json:"policies,omitempty"`
}

// Preview asks what enforcement of network policies for all pods would change on a node.
func (a *Agents) Preview(ctx context.Context, agent *v1.Pod) (*Preview, error) {
	var preview Preview
	return &preview, a.ask(ctx, agent, &preview, pathPreview, nil)
}

// TracePolicy asks which network policies decide on a connection, and returns the agent's text. The query has from, to,
// port and protocol.
func (a *Agents) TracePolicy(ctx context.Context, agent *v1.Pod, query url.Values) (string, error) {
	text, err := a.Asker.Get(ctx, agent, pathTrace, query)
	return string(text), err
}

func (a *Agents) ask(ctx context.Context, agent *v1.Pod, into any, path string, query url.Values) error {
	text, err := a.Asker.Get(ctx, agent, path, query)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the answer of the agent in pod %s: %w", agent.Name, err)
	}
	return nil
}
