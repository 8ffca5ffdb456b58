// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/bgp"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/speaker/status"
)

type state string

const (
	ok       state = "ok"
	Broken   state = "BROKEN"
	NotAsked state = "-" // --node was not given, or a link before it is broken
)

// Link is one link of the way of a packet to an address.
type Link struct {
	Name  string `json:"name"`
	State state  `json:"state"`
	Text  string `json:"text"`
	// Command shows more of a broken link.
	Command string `json:"command,omitempty"`
	Code    string `json:"code,omitempty"`
}

func sound(name, format string, args ...any) Link {
	return Link{Name: name, State: ok, Text: fmt.Sprintf(format, args...)}
}

func broken(name, command, format string, args ...any) Link {
	return Link{Name: name, State: Broken, Text: fmt.Sprintf(format, args...), Command: command}
}

func notAsked(name, format string, args ...any) Link {
	return Link{Name: name, State: NotAsked, Text: fmt.Sprintf(format, args...)}
}

func firstBroken(links []Link) *Link {
	if i := slices.IndexFunc(links, func(l Link) bool { return l.State == Broken }); i >= 0 {
		return &links[i]
	}
	return nil
}

var codes = map[string][]audit.Code{
	"object": {audit.OwnerGone, audit.RestOverdue, audit.PoolGone, audit.OwnerUnknown},
	"pod":    {audit.PodGone, audit.NotRecorded, audit.TwoPods, audit.OtherPodIPs, audit.Outdated, audit.Undetached},
	"node":   {audit.WrongNode, audit.NodeGone, audit.NodeOutside},
	"agent":  {audit.NoAgent, audit.AgentNotReady},
	"wire":   {audit.InConflict},
}

// link returns a link that a finding breaks, or else as it is otherwise.
func link(s *audit.Subject, name string, otherwise func(*audit.Subject) Link) Link {
	for _, f := range s.Findings {
		if slices.Contains(codes[name], f.Code) {
			return Link{Name: name, State: Broken, Text: f.Text, Command: f.Command, Code: string(f.Code)}
		}
	}
	return otherwise(s)
}

func fromObjects(s *audit.Subject) []Link {
	links := []Link{link(s, "object", ofObject)}
	if s.IP.Spec.Pod == nil {
		return links
	}
	return append(links, link(s, "pod", ofPod), link(s, "node", ofNode), link(s, "agent", ofAgent))
}

func ofObject(s *audit.Subject) Link {
	spec := &s.IP.Spec
	l := sound("object", "%s of pool %s is recorded for ", spec.Address, spec.Pool)
	switch {
	case spec.Pod != nil:
		l.Text += fmt.Sprintf("pod %s/%s on %s", spec.Owner.Namespace, spec.Pod.Name, spec.Node)
	case spec.IsOfNode():
		l.Text += fmt.Sprintf("node %s itself; the node's NodeAssignment says whether it carries it", spec.Node)
		l.Command = "kubectl get nodeassignment " + spec.Node
	case spec.Service != nil && spec.Owner != nil:
		l.Text += spec.Holder().Text() + "; the NodeAssignments say which nodes carry it"
		l.Command = "kubectl get nodeassignments"
	default:
		who := "nobody's"
		if spec.Owner != nil {
			who = "kept for " + spec.Owner.Text()
		} else if spec.Reserved {
			who = "reserved"
		}
		return broken("object", "kubectl berth who "+spec.Address, "no pod has %s: it is %s", spec.Address, who)
	}
	return l
}

func ofPod(s *audit.Subject) Link {
	spec, pod := &s.IP.Spec, s.Pod
	name := spec.Owner.Namespace + "/" + spec.Pod.Name
	command := fmt.Sprintf("kubectl -n %s describe pod %s", spec.Owner.Namespace, spec.Pod.Name)
	switch {
	case pod == nil:
		return broken("pod", command, "there is no pod %s", name)
	case pod.Spec.NodeName == "":
		return broken("pod", "kubectl berth why -n "+spec.Owner.Namespace+" "+spec.Pod.Name, "pod %s has no node yet", name)
	case pod.Status.Phase != v1.PodRunning:
		var reasons []string
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if w := status.State.Waiting; w != nil && !slices.Contains(reasons, w.Reason) {
				reasons = append(reasons, w.Reason)
			}
		}
		return broken("pod", command, "pod %s is %s: %s", name, pod.Status.Phase, cmp.Or(strings.Join(reasons, ", "), "its containers have not started"))
	case !agentpod.IsReady(pod):
		return sound("pod", "pod %s runs, and is not Ready: Services leave it out", name)
	}
	return sound("pod", "pod %s runs", name)
}

func ofNode(s *audit.Subject) Link {
	name := s.IP.Spec.Node
	if s.Node == nil {
		return broken("node", "kubectl get nodes", "the address has no node")
	}
	for _, condition := range s.Node.Status.Conditions {
		if condition.Type == v1.NodeReady && condition.Status != v1.ConditionTrue {
			return broken("node", "kubectl describe node "+name, "node %s is not Ready: %s", name, condition.Message)
		}
	}
	return sound("node", "node %s is Ready, and pool %s serves it", name, s.IP.Spec.Pool)
}

func ofAgent(s *audit.Subject) Link {
	if s.Agent == nil {
		return notAsked("agent", "not looked at")
	}
	return sound("agent", "agent %s is Ready", s.Agent.Name)
}

type port interface {
	command.Port
	node.Agents
}

// fromNodes returns the links that only the nodes know: agent and kernel, and wire or, where
// routers lead to the address, table and session. An error says that the user may not ask.
// Blocking.
func fromNodes(ctx context.Context, call *command.Call, s *audit.Subject, port port) ([]Link, error) {
	spec, agent := &s.IP.Spec, s.Agent.Name
	show := "kubectl berth node " + spec.Node
	in, err := port.Agent(s.Agent).Inspect(ctx, spec.Owner.Namespace+"/"+spec.Pod.Name, true)
	switch {
	case apierrors.IsForbidden(err):
		return nil, err
	case err != nil:
		return []Link{broken("agent", fmt.Sprintf("kubectl -n %s logs %s", call.System, agent), "%s", failure.Explain(err))}, nil
	case len(in.Containers) == 0:
		return []Link{sound("agent", "agent %s answers", agent),
			broken("kernel", show, "the agent has no container of pod %s/%s: its network was not made yet or is gone", spec.Owner.Namespace, spec.Pod.Name)}, nil
	}
	links := []Link{sound("agent", "agent %s answers, and reaches the API server", agent), ofKernel(s, in, show)}
	if in.API.Error != "" || !in.API.Synced {
		links[0] = broken("agent", show, "agent %s does not reach the API server: %s", agent, in.API.Error)
	}
	switch {
	case firstBroken(links) != nil:
		return links, nil
	case spec.IsRouted():
		return append(links, ofRouting(ctx, call, s.IP, port)...), nil
	}
	return append(links, link(s, "wire", func(s *audit.Subject) Link { return ofWire(ctx, s, port) })), nil
}

// ofRouting returns the links table 98 of a node, and session of its speaker. Blocking.
func ofRouting(ctx context.Context, call *command.Call, ip *v1alpha1.FloatingIP, port command.Port) []Link {
	pods, err := call.Programs(ctx, status.Selector, ip.Spec.Node)
	if err == nil && len(pods) == 0 {
		err = fmt.Errorf("node %s runs no %s: its own routing daemon announces table 98", ip.Spec.Node, status.Name)
	}
	var said *status.Status
	if err == nil {
		said, err = bgp.Ask(ctx, port, pods[0])
	}
	if err != nil {
		text := failure.Explain(err)
		return []Link{notAsked("table", "%s", text), notAsked("session", "%s", text)}
	}
	return announced(ip, said)
}

// announced returns the links table and session by the word of the node's speaker. Pure.
func announced(ip *v1alpha1.FloatingIP, said *status.Status) []Link {
	address := ip.Spec.Address
	if !slices.ContainsFunc(said.Carried, func(c status.Carried) bool { return c.Address.String() == address }) {
		return []Link{broken("table", "kubectl berth bgp "+address, "table 98 of node %s lacks %s, so no router leads to it: with the annotation %s: Ready the pod must be Ready",
			said.Node, address, v1alpha1.AnnotationAdvertise)}
	}
	table := sound("table", "table 98 of node %s has the address", said.Node)
	var by, down []string
	for i := range said.Peers {
		switch peer := &said.Peers[i]; {
		case bgp.Announced(peer, address) != nil:
			by = append(by, fmt.Sprintf("%s (BGPPeer %s)", peer.Address, peer.Name))
		default:
			down = append(down, peer.Name+": "+cmp.Or(peer.Error, "spec.export names no prefix of the address"))
		}
	}
	if len(by) > 0 {
		return []Link{table, sound("session", "announced to %s", strings.Join(by, ", "))}
	}
	return []Link{table, broken("session", "kubectl berth bgp --node "+said.Node, "no session of node %s announces the address: %s",
		said.Node, cmp.Or(strings.Join(down, "; "), "no BGPPeer selects the node"))}
}

func ofKernel(s *audit.Subject, in *inquiry.Inspection, show string) Link {
	addr := s.IP.Addr()
	for i := range in.Containers {
		c := &in.Containers[i]
		if !slices.ContainsFunc(c.Interfaces, func(i inquiry.InspectedInterface) bool {
			return slices.ContainsFunc(i.FloatingIPs, func(ip api.Address) bool { return ip.Address == addr })
		}) {
			continue
		}
		if ok, text := node.Wiring(c); !ok {
			return broken("kernel", show, "container %s: %s", c.ContainerID, text)
		}
		return sound("kernel", "the node's kernel has all that the address needs")
	}
	return broken("kernel", show, "no container of the pod has %s on the node", addr)
}

func ofWire(ctx context.Context, s *audit.Subject, agents node.Agents) Link {
	spec, vlan := &s.IP.Spec, int32(0)
	if spec.Network != nil {
		vlan = spec.Network.VLAN
	}
	others := slices.DeleteFunc(slices.Clone(s.Agents), func(agent *v1.Pod) bool {
		return agent.Spec.NodeName == spec.Node || !agentpod.IsReady(agent)
	})
	answer, err := node.AskWire(ctx, agents, s.Agent, others, vlan, spec.Address)
	switch {
	case err != nil:
		return notAsked("wire", "%s", failure.Explain(err))
	case len(answer) == 0:
		return notAsked("wire", "the address is on no layer 2 network of the node: nobody can be asked")
	}
	if code, text := answer[0].Judge(); code != "" {
		return Link{Name: "wire", State: Broken, Text: text, Code: string(code)}
	}
	return sound("wire", "asked by %s, %s answers, as it should", answer[0].AskedNode, strings.Join(answer[0].MACs, ", "))
}
