// SPDX-License-Identifier: Apache-2.0

// Package trace has the command trace: which link of object, pod, node, agent, kernel and wire
// is the first that is broken.
package trace

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// State of a link.
type State string

// States.
const (
	OK     State = "ok"
	Broken State = "BROKEN"
	// NotAsked: --node was not given, or a link before it is broken.
	NotAsked State = "-"
)

// Link is one link of the way of a packet to an address.
type Link struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Text  string `json:"text"`
	// Command shows more of a broken link.
	Command string `json:"command,omitempty"`
	Code    string `json:"code,omitempty"`
}

// codes are the findings that break a link.
var codes = map[string][]audit.Code{
	"object": {audit.OwnerGone, audit.RestOverdue, audit.PoolGone, audit.OwnerUnknown},
	"pod":    {audit.PodGone, audit.NotRecorded, audit.TwoPods, audit.OtherPodIPs, audit.Outdated, audit.Undetached},
	"node":   {audit.WrongNode, audit.NodeGone, audit.NodeOutside},
	"agent":  {audit.NoAgent, audit.AgentNotReady},
	"wire":   {audit.InConflict},
}

// found returns the finding that breaks a link.
func found(s *audit.Subject, link string) (Link, bool) {
	for _, f := range s.Findings {
		if slices.Contains(codes[link], f.Code) {
			return Link{Name: link, State: Broken, Text: f.Text, Command: f.Command, Code: string(f.Code)}, true
		}
	}
	return Link{}, false
}

// fromObjects returns the links that the API server knows. Pure.
func fromObjects(s *audit.Subject) []Link {
	links := []Link{ofObject(s)}
	if s.IP.Spec.Pod == nil {
		return links
	}
	return append(links, ofPod(s), ofNode(s), ofAgent(s))
}

func ofObject(s *audit.Subject) Link {
	spec := &s.IP.Spec
	if link, ok := found(s, "object"); ok {
		return link
	}
	if spec.Pod == nil {
		who := "nobody's"
		if spec.IsOfNode() {
			return Link{Name: "object", State: OK, Text: fmt.Sprintf("%s of pool %s is recorded for node %s itself; the node's NodeAssignment says whether it carries it", spec.Address, spec.Pool, spec.Node), Command: "kubectl get nodeassignment " + spec.Node}
		}
		if spec.Service != nil && spec.Owner != nil {
			return Link{Name: "object", State: OK, Text: fmt.Sprintf("%s of pool %s is recorded for Service %s/%s; the NodeAssignments say which nodes carry it", spec.Address, spec.Pool, spec.Owner.Namespace, spec.Service.Name), Command: "kubectl get nodeassignments"}
		}
		if spec.Owner != nil {
			who = "kept for " + spec.Owner.Text()
		} else if spec.Reserved {
			who = "reserved"
		}
		return Link{Name: "object", State: Broken, Text: fmt.Sprintf("no pod has %s: it is %s", spec.Address, who), Command: "kubectl berth who " + spec.Address}
	}
	return Link{Name: "object", State: OK, Text: fmt.Sprintf("%s of pool %s is recorded for pod %s/%s on %s", spec.Address, spec.Pool, spec.Owner.Namespace, spec.Pod.Name, spec.Node)}
}

func ofPod(s *audit.Subject) Link {
	if link, ok := found(s, "pod"); ok {
		return link
	}
	spec, pod := &s.IP.Spec, s.Pod
	name := spec.Owner.Namespace + "/" + spec.Pod.Name
	command := fmt.Sprintf("kubectl -n %s describe pod %s", spec.Owner.Namespace, spec.Pod.Name)
	switch {
	case pod == nil:
		return Link{Name: "pod", State: Broken, Text: "there is no pod " + name, Command: command}
	case pod.Spec.NodeName == "":
		return Link{Name: "pod", State: Broken, Text: fmt.Sprintf("pod %s has no node yet", name), Command: "kubectl berth why -n " + spec.Owner.Namespace + " " + spec.Pod.Name}
	case pod.Status.Phase != v1.PodRunning:
		return Link{Name: "pod", State: Broken, Text: fmt.Sprintf("pod %s is %s: %s", name, pod.Status.Phase, waiting(pod)), Command: command}
	}
	text := fmt.Sprintf("pod %s runs", name)
	if !agentpod.IsReady(pod) {
		text += ", and is not Ready: Services leave it out"
	}
	return Link{Name: "pod", State: OK, Text: text}
}

// waiting returns the reasons why the containers of a pod wait.
func waiting(pod *v1.Pod) string {
	var reasons []string
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := status.State.Waiting; w != nil && !slices.Contains(reasons, w.Reason) {
			reasons = append(reasons, w.Reason)
		}
	}
	if len(reasons) == 0 {
		return "its containers have not started"
	}
	return strings.Join(reasons, ", ")
}

func ofNode(s *audit.Subject) Link {
	if link, ok := found(s, "node"); ok {
		return link
	}
	name := s.IP.Spec.Node
	if s.Node == nil {
		return Link{Name: "node", State: Broken, Text: "the address has no node", Command: "kubectl get nodes"}
	}
	for _, condition := range s.Node.Status.Conditions {
		if condition.Type == v1.NodeReady && condition.Status != v1.ConditionTrue {
			return Link{Name: "node", State: Broken, Text: fmt.Sprintf("node %s is not Ready: %s", name, condition.Message), Command: "kubectl describe node " + name}
		}
	}
	return Link{Name: "node", State: OK, Text: fmt.Sprintf("node %s is Ready, and pool %s serves it", name, s.IP.Spec.Pool)}
}

func ofAgent(s *audit.Subject) Link {
	if link, ok := found(s, "agent"); ok {
		return link
	}
	if s.Agent == nil {
		return Link{Name: "agent", State: NotAsked, Text: "not looked at"}
	}
	return Link{Name: "agent", State: OK, Text: fmt.Sprintf("agent %s is Ready", s.Agent.Name)}
}

// firstBroken returns the first broken link; nil if there is none.
func firstBroken(links []Link) *Link {
	i := slices.IndexFunc(links, func(l Link) bool { return l.State == Broken })
	if i < 0 {
		return nil
	}
	return &links[i]
}
