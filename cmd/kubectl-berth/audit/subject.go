// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	s, o := &Subject{IP: ip}, a.none()
	kinds := []listed{{"IPPools", o.IPPools, pagesOf(a.clients.Berth.IPPools.List), slimOurs}}
	if a.options.Agents {
		kinds = append(kinds, a.agentsInto(ctx, o))
	}
	if err := errors.Join(o.FloatingIPs.Add(ip), a.list(ctx, kinds), a.readPod(ctx, s, o), a.readNode(ctx, s, o)); err != nil {
		return nil, err
	}
	if o.agents != nil {
		for _, object := range o.agents.List() {
			agent := object.(*v1.Pod)
			s.Agents = append(s.Agents, agent)
			if agent.Spec.NodeName == ip.Spec.Node {
				s.Agent = agent
			}
		}
	}
	found, not, err := a.look(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	for _, unknown := range not.texts() {
		found = append(found, Finding{Code: OwnerUnknown, Address: ip.Spec.Address, Objects: []Object{ObjectOf(ip)}, Text: "it is not known " + unknown})
	}
	// One address is not all of a pool's, nor all of its pod's.
	s.Findings = sorted(slices.DeleteFunc(found, func(f Finding) bool {
		return slices.Contains([]Code{PoolInvalid, PoolsOverlap, StaleStatus, PoolNoNode, TooFew}, f.Code) || len(f.Objects) > 0 && f.Code == NotRecorded && f.Address != ip.Spec.Address
	}))
	return s, nil
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
