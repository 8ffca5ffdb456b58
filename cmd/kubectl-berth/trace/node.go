// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// fromNodes returns the links that only the nodes know: agent, kernel and wire. An error says that the user may
// not ask. Blocking.
func fromNodes(ctx context.Context, s *audit.Subject, agents *node.Agents, namespace string) ([]Link, error) {
	spec := &s.IP.Spec
	show := "kubectl berth node " + spec.Node
	in, err := agents.Inspect(ctx, s.Agent, spec.Owner.Namespace, spec.Pod.Name)
	if apierrors.IsForbidden(err) {
		return nil, err
	}
	if err != nil {
		return []Link{{Name: "agent", State: Broken, Text: failure.Explain(err), Command: fmt.Sprintf("kubectl -n %s logs %s", namespace, s.Agent.Name)}}, nil
	}
	if len(in.Containers) == 0 {
		return []Link{
			{Name: "agent", State: OK, Text: fmt.Sprintf("agent %s answers", s.Agent.Name)},
			{Name: "kernel", State: Broken, Text: fmt.Sprintf("the agent has no container of pod %s/%s: its network was not made yet or is gone", spec.Owner.Namespace, spec.Pod.Name), Command: show},
		}, nil
	}
	agent := Link{Name: "agent", State: OK, Text: fmt.Sprintf("agent %s answers, and reaches the API server", s.Agent.Name)}
	if in.API.Error != "" || !in.API.Synced {
		agent = Link{Name: "agent", State: Broken, Text: fmt.Sprintf("agent %s does not reach the API server: %s", s.Agent.Name, in.API.Error), Command: show}
	}
	links := []Link{agent, ofKernel(s, in, show)}
	if firstBroken(links) != nil {
		return links, nil
	}
	return append(links, ofWire(ctx, s, agents)), nil
}

func ofKernel(s *audit.Subject, in *node.Inspection, show string) Link {
	address := s.IP.Spec.Address
	has := slices.IndexFunc(in.Containers, func(c node.Container) bool { return c.Has(address) })
	if has < 0 {
		return Link{Name: "kernel", State: Broken, Text: fmt.Sprintf("no container of the pod has %s on the node", address), Command: show}
	}
	c := &in.Containers[has]
	if ok, text := c.Wiring(); !ok {
		return Link{Name: "kernel", State: Broken, Text: fmt.Sprintf("container %s: %s", c.ContainerID, text), Command: show}
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
		return Link{Name: "wire", State: NotAsked, Text: failure.Explain(err)}
	}
	if spec.Network != nil && spec.Network.Mode == v1alpha1.NetworkRouted {
		return Link{Name: "wire", State: NotAsked, Text: "routers lead to the address, by the table that the node's routing daemon announces: nobody can be asked"}
	}
	if len(answer) == 0 {
		return Link{Name: "wire", State: NotAsked, Text: "the address is on no layer 2 network of the node: nobody can be asked"}
	}
	a := answer[0]
	if code, text := a.Judge(); code != "" {
		return Link{Name: "wire", State: Broken, Text: text, Code: string(code)}
	}
	return Link{Name: "wire", State: OK, Text: fmt.Sprintf("asked by %s, %s answers, as it should", a.AskedNode, strings.Join(a.MACs, ", "))}
}

// others are the agents that can ask.
func others(s *audit.Subject) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(s.Agents), func(agent *v1.Pod) bool {
		return agent.Spec.NodeName == s.IP.Spec.Node || !audit.IsReady(agent)
	})
}
