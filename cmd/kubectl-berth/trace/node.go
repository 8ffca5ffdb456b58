// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
)

// fromNodes returns the links that only the nodes know: agent, kernel and wire. Blocking.
func fromNodes(ctx context.Context, s *audit.Subject, agents *node.Agents) []Link {
	spec := &s.IP.Spec
	show := fmt.Sprintf("kubectl -n %s exec %s -- /berth-agent inspect %s/%s", agents.Namespace, s.Agent.Name, spec.Owner.Namespace, spec.Pod.Name)
	in, err := agents.Inspect(ctx, s.Agent.Name, spec.Owner.Namespace, spec.Pod.Name)
	if err != nil && strings.Contains(err.Error(), "the agent has no container of pod") {
		return []Link{
			{Name: "agent", State: OK, Text: fmt.Sprintf("agent %s answers", s.Agent.Name)},
			{Name: "kernel", State: Broken, Text: err.Error(), Command: show},
		}
	}
	if err != nil {
		return []Link{{Name: "agent", State: Broken, Text: err.Error(), Command: fmt.Sprintf("kubectl -n %s logs %s", agents.Namespace, s.Agent.Name)}}
	}
	agent := Link{Name: "agent", State: OK, Text: fmt.Sprintf("agent %s answers, and reaches the API server", s.Agent.Name)}
	if in.API.Error != "" || !in.API.Synced {
		agent = Link{Name: "agent", State: Broken, Text: fmt.Sprintf("agent %s does not reach the API server: %s", s.Agent.Name, in.API.Error), Command: show}
	}
	links := []Link{agent, ofKernel(s, in, show)}
	if firstBroken(links) != nil {
		return links
	}
	return append(links, ofWire(ctx, s, agents))
}

func ofKernel(s *audit.Subject, in *node.Inspection, show string) Link {
	address := s.IP.Spec.Address
	has := slices.IndexFunc(in.Containers, func(c node.Container) bool { return c.Has(address) })
	if has < 0 {
		return Link{Name: "kernel", State: Broken, Text: fmt.Sprintf("no container of the pod has %s on the node", address), Command: show}
	}
	c := &in.Containers[has]
	for _, wrong := range []struct{ what, text string }{{"the kernel lacks ", c.Missing}, {"the last try failed: ", c.Error}, {"withdrawn: ", c.Reason}} {
		if wrong.text != "" {
			return Link{Name: "kernel", State: Broken, Text: wrong.what + wrong.text, Command: show}
		}
	}
	if c.Phase != "added" {
		return Link{Name: "kernel", State: Broken, Text: fmt.Sprintf("the network of container %s is %s", c.ContainerID, c.Phase), Command: show}
	}
	return Link{Name: "kernel", State: OK, Text: "the node's kernel has all that the address needs"}
}

func ofWire(ctx context.Context, s *audit.Subject, agents *node.Agents) Link {
	spec := &s.IP.Spec
	if link, ok := found(s, "wire"); ok {
		return link
	}
	vlan := int32(0)
	if spec.Network != nil {
		vlan = spec.Network.VLAN
	}
	wire := node.Wire{Agents: agents}
	answer, err := wire.Ask(ctx, s.Agent, others(s), vlan, spec.Address)
	if err != nil {
		return Link{Name: "wire", State: NotAsked, Text: err.Error()}
	}
	if len(answer) == 0 {
		return Link{Name: "wire", State: NotAsked, Text: "the address is on no layer 2 network of the node: nobody can be asked"}
	}
	a := answer[0]
	if code, text := a.Judge(); code != "" {
		return Link{Name: "wire", State: Broken, Text: text, Code: string(code), Command: fmt.Sprintf("kubectl -n %s exec %s -- /berth-agent probe --vlan %d %s", agents.Namespace, a.Asked, vlan, spec.Address)}
	}
	return Link{Name: "wire", State: OK, Text: fmt.Sprintf("asked by %s, %s answers, as it should", a.AskedNode, strings.Join(a.MACs, ", "))}
}

// others are the agents that can ask.
func others(s *audit.Subject) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(s.Agents), func(agent *v1.Pod) bool {
		return agent.Spec.NodeName == s.IP.Spec.Node || !audit.IsReady(agent)
	})
}
