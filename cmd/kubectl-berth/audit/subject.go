// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Subject is an address and the objects that its traffic depends on.
type Subject struct {
	IP *v1alpha1.FloatingIP
	// Pod, Node and Agent are nil if there are none.
	Pod   *v1.Pod
	Node  *v1.Node
	Agent *v1.Pod
	// Agents are the agents' pods of all nodes.
	Agents []*v1.Pod
	// Findings concern the address, its pod and its node.
	Findings []Finding
}

// About looks at one address, once. It reads the address, the pools, its pod, its node and the
// agents. The error is a Get's if there is no such FloatingIP. Blocking.
func (a *Auditor) About(ctx context.Context, name string) (*Subject, error) {
	ip, err := a.clients.Berth.FloatingIPs.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	s := &Subject{IP: ip}
	o := a.none()
	if err := o.FloatingIPs.Add(ip); err != nil {
		return nil, err
	}
	for _, read := range []func(context.Context, *Subject, *objects) error{a.readPools, a.readPod, a.readNode, a.readAgents} {
		if err := read(ctx, s, o); err != nil {
			return nil, err
		}
	}
	found, not, err := a.look(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	for _, unknown := range not.texts() {
		found = append(found, Finding{Code: OwnerUnknown, Address: ip.Spec.Address, Objects: []Object{addressOf(ip)}, Text: "it is not known " + unknown})
	}
	// One address is not all of a pool's, nor all of its pod's.
	s.Findings = sorted(slices.DeleteFunc(found, func(f Finding) bool {
		return slices.Contains([]Code{PoolInvalid, PoolsOverlap, StaleStatus, PoolNoNode, TooFew}, f.Code) || len(f.Objects) > 0 && f.Code == NotRecorded && f.Address != ip.Spec.Address
	}))
	return s, nil
}

func (a *Auditor) readPools(ctx context.Context, _ *Subject, o *objects) error {
	all, err := a.clients.Berth.IPPools.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	for i := range all.Items {
		if err := o.IPPools.Add(&all.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// readPod and readNode leave out a pod and a node that do not exist.
func (a *Auditor) readPod(ctx context.Context, s *Subject, o *objects) error {
	spec := &s.IP.Spec
	if spec.Pod == nil || spec.Owner == nil {
		return nil
	}
	pod, err := a.clients.Kube.CoreV1().Pods(spec.Owner.Namespace).Get(ctx, spec.Pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get pod %s/%s: %w", spec.Owner.Namespace, spec.Pod.Name, err)
	}
	s.Pod = pod
	if slim := slimPod(pod); slim != nil {
		return o.podsByName.Add(slim)
	}
	return nil
}

func (a *Auditor) readNode(ctx context.Context, s *Subject, o *objects) error {
	name := s.IP.Spec.Node
	if name == "" {
		return nil
	}
	node, err := a.clients.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	s.Node = node
	return o.Nodes.Add(node)
}

func (a *Auditor) readAgents(ctx context.Context, s *Subject, o *objects) error {
	if !a.options.Agents {
		return nil
	}
	if err := a.list(ctx, []listed{a.agentsInto(ctx, o)}); err != nil {
		return err
	}
	for _, object := range o.agents.List() {
		agent := object.(*v1.Pod)
		s.Agents = append(s.Agents, agent)
		if agent.Spec.NodeName == s.IP.Spec.Node {
			s.Agent = agent
		}
	}
	return nil
}

// IsReady says whether a pod is Ready.
func IsReady(pod *v1.Pod) bool { return agentpod.IsReady(pod) }

// Agents returns the agents' pods. Blocking.
func (a *Auditor) Agents(ctx context.Context) ([]*v1.Pod, error) {
	o := &objects{}
	if err := a.list(ctx, []listed{a.agentsInto(ctx, o)}); err != nil {
		return nil, err
	}
	var agents []*v1.Pod
	for _, object := range o.agents.List() {
		agents = append(agents, object.(*v1.Pod))
	}
	return agents, nil
}
