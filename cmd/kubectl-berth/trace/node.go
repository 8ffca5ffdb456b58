// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/bgp"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/speaker/status"
)

// fromNodes returns the links that only the nodes know: agent and kernel, and wire or, where routers lead to the address, table
// and session. An error says that the user may not ask. Blocking.
func fromNodes(ctx context.Context, s *audit.Subject, agents node.Agents, speakers *bgp.Speakers, namespace string) ([]Link, error) {
	spec := &s.IP.Spec
	show := "kubectl berth node " + spec.Node
	in, err := agents.Agent(s.Agent).Inspect(ctx, spec.Owner.Namespace+"/"+spec.Pod.Name, true)
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
	if s.IP.Spec.IsRouted() {
		return append(links, ofRouting(ctx, s.IP, speakers)...), nil
	}
	return append(links, ofWire(ctx, s, agents)), nil
}

// ofRouting returns the links by which routers lead to an address: table 98 of its node, and a session of the node's
// speaker. Blocking.
func ofRouting(ctx context.Context, ip *v1alpha1.FloatingIP, speakers *bgp.Speakers) []Link {
	notAsked := func(text string) []Link {
		return []Link{{Name: "table", State: NotAsked, Text: text}, {Name: "session", State: NotAsked, Text: text}}
	}
	pods, err := cluster.PodsOf(ctx, speakers.Kube, speakers.Namespace, status.Selector, ip.Spec.Node)
	if err != nil {
		return notAsked(failure.Explain(err))
	}
	if len(pods) == 0 {
		return notAsked(fmt.Sprintf("node %s runs no %s: its own routing daemon announces table 98", ip.Spec.Node, status.Name))
	}
	said, err := speakers.Ask(ctx, pods[0])
	if err != nil {
		return notAsked(failure.Explain(err))
	}
	return announced(ip, said)
}

// announced returns the links table and session by the word of the node's speaker. Pure.
func announced(ip *v1alpha1.FloatingIP, said *status.Status) []Link {
	address := ip.Spec.Address
	addr, err := netip.ParseAddr(address)
	if err != nil || !bgp.Carries(said, addr) {
		return []Link{{
			Name: "table", State: Broken, Command: "kubectl berth bgp " + address,
			Text: fmt.Sprintf("table 98 of node %s lacks %s, so no router leads to it: with the annotation %s: Ready the pod must be Ready", said.Node, address, v1alpha1.AnnotationAdvertise),
		}}
	}
	table := Link{Name: "table", State: OK, Text: fmt.Sprintf("table 98 of node %s has the address", said.Node)}
	var by, down []string
	for i := range said.Peers {
		switch peer := &said.Peers[i]; {
		case bgp.Announced(peer, address) != nil:
			by = append(by, fmt.Sprintf("%s (BGPPeer %s)", peer.Address, peer.Name))
		case peer.Error != "":
			down = append(down, peer.Name+": "+peer.Error)
		default:
			down = append(down, peer.Name+": spec.export names no prefix of the address")
		}
	}
	if len(by) > 0 {
		return []Link{table, {Name: "session", State: OK, Text: "announced to " + strings.Join(by, ", ")}}
	}
	text := "no BGPPeer selects the node"
	if len(down) > 0 {
		text = strings.Join(down, "; ")
	}
	return []Link{table, {Name: "session", State: Broken, Text: fmt.Sprintf("no session of node %s announces the address: %s", said.Node, text), Command: "kubectl berth bgp --node " + said.Node}}
}

func ofKernel(s *audit.Subject, in *inquiry.Inspection, show string) Link {
	address := s.IP.Spec.Address
	addr, _ := netip.ParseAddr(address) // no container has one that is none
	has := slices.IndexFunc(in.Containers, func(c inquiry.InspectedContainer) bool { return node.Has(&c, addr) })
	if has < 0 {
		return Link{Name: "kernel", State: Broken, Text: fmt.Sprintf("no container of the pod has %s on the node", address), Command: show}
	}
	c := &in.Containers[has]
	if ok, text := node.Wiring(c); !ok {
		return Link{Name: "kernel", State: Broken, Text: fmt.Sprintf("container %s: %s", c.ContainerID, text), Command: show}
	}
	return Link{Name: "kernel", State: OK, Text: "the node's kernel has all that the address needs"}
}

func ofWire(ctx context.Context, s *audit.Subject, agents node.Agents) Link {
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
		return agent.Spec.NodeName == s.IP.Spec.Node || !agentpod.IsReady(agent)
	})
}
