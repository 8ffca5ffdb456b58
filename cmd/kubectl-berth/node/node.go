// SPDX-License-Identifier: Apache-2.0

// Package node asks the agents of nodes for their state, with the right pods/exec in Berth's
// namespace, which is root on the nodes: commands do it only when a flag says so.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// executor runs a command in a container. Blocking.
type executor interface {
	Exec(ctx context.Context, namespace, pod, container string, argv ...string) ([]byte, error)
}

// Agents asks agents by their pods.
type Agents struct {
	Executor  executor
	Namespace string
}

const (
	// ContainerName is the agent's in its pod.
	ContainerName = "agent"

	program = "/berth-agent"
)

// Inspection is the part of "berth-agent inspect" that is read.
type Inspection struct {
	API struct {
		Synced bool   `json:"synced"`
		Error  string `json:"error"`
	} `json:"api"`
	Containers []Container `json:"containers"`
}

// Container is the network of a container of a pod.
type Container struct {
	ContainerID string `json:"containerID"`
	Phase       string `json:"phase"`
	Reason      string `json:"reason"`
	Error       string `json:"error"`
	// Missing names features that the kernel lacks.
	Missing    string `json:"missing"`
	Interfaces []struct {
		FloatingIPs []struct {
			Address string `json:"address"`
		} `json:"floatingIPs"`
	} `json:"interfaces"`
}

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
func (a *Agents) Inspect(ctx context.Context, agent, namespace, pod string) (*Inspection, error) {
	var in Inspection
	return &in, a.ask(ctx, agent, &in, "inspect", namespace+"/"+pod, "-o", "json")
}

// Probed is the output of "berth-agent probe".
type Probed struct {
	Carried []MACs `json:"carried"`
	Answers []MACs `json:"answers"`
}

// MACs of an address.
type MACs struct {
	Address string   `json:"address"`
	MACs    []string `json:"macs"`
}

// Probe asks the network of a VLAN for the MACs of addresses, and the agent for the addresses
// that its node carries.
func (a *Agents) Probe(ctx context.Context, agent string, vlan int32, addresses ...string) (*Probed, error) {
	var probed Probed
	return &probed, a.ask(ctx, agent, &probed, append([]string{"probe", "-o", "json", "--vlan", strconv.Itoa(int(vlan))}, addresses...)...)
}

// Preview is the output of "berth-agent policy preview".
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
func (a *Agents) Preview(ctx context.Context, agent string) (*Preview, error) {
	var preview Preview
	return &preview, a.ask(ctx, agent, &preview, "policy", "preview", "-o", "json")
}

func (a *Agents) ask(ctx context.Context, agent string, into any, argv ...string) error {
	text, err := a.Executor.Exec(ctx, a.Namespace, agent, ContainerName, append([]string{program}, argv...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the answer of the agent in pod %s: %w", agent, err)
	}
	return nil
}
