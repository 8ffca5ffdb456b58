// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/state"
)

// policies enforces network policies. Methods are safe in parallel.
type policies interface {
	// Prepare comes before the first interface of a container is made, and Enforce after the
	// last one, before anything runs in it. They block for the policies, the API server and the kernel.
	Prepare(ctx context.Context, c enforce.Container) error
	Enforce(ctx context.Context, c enforce.Container) error
	// Attached says that the ADD of a container is complete, and Detached that its network is
	// gone. Forget says so of a pod whose containers are not known. They do not block.
	Attached(id string)
	Detached(id string)
	Forget(uid string)
	// Reopen removes the rules that an interrupted ADD left in a network namespace. It blocks for
	// the kernel.
	Reopen(netns string) error
	// Soon has the containers listed again, and Recheck the kernel compared whole; they return at
	// once.
	Soon()
	Recheck()
	// Ready returns an error while the policies are not known or not in the kernel. It does not
	// block.
	Ready() error
	// Inspect reports the enforcement, without blocking.
	Inspect() *inquiry.InspectedPolicies
	// Trace says which policies decide on a connection.
	Trace(q inquiry.PolicyTrace) (string, error)
	// Preview says what enforcement for all pods would change. It blocks for the kernel.
	Preview(ctx context.Context) (*inquiry.PolicyPreview, error)
}

// ErrNoPolicies is the error of TracePolicy and PreviewPolicies where network policies are off.
var ErrNoPolicies = errors.New("this agent enforces no network policies (--network-policy-pods=None)")

// noPolicies is an agent that enforces none.
type noPolicies struct{}

func (noPolicies) Prepare(context.Context, enforce.Container) error { return nil }
func (noPolicies) Enforce(context.Context, enforce.Container) error { return nil }
func (noPolicies) Attached(string)                                  {}
func (noPolicies) Detached(string)                                  {}
func (noPolicies) Forget(string)                                    {}
func (noPolicies) Reopen(string) error                              { return nil }
func (noPolicies) Soon()                                            {}
func (noPolicies) Recheck()                                         {}
func (noPolicies) Ready() error                                     { return nil }
func (noPolicies) Inspect() *inquiry.InspectedPolicies {
	return &inquiry.InspectedPolicies{Enforced: string(enforce.PodsNone)}
}
func (noPolicies) Trace(inquiry.PolicyTrace) (string, error) { return "", ErrNoPolicies }

func (noPolicies) Preview(context.Context) (*inquiry.PolicyPreview, error) { return nil, ErrNoPolicies }

// policing says in errors of Prepare and Enforce of which pod they are.
type policing struct{ policies }

func (p policing) Prepare(ctx context.Context, c enforce.Container) error {
	return ofPod(c, "prepare", p.policies.Prepare(ctx, c))
}

func (p policing) Enforce(ctx context.Context, c enforce.Container) error {
	return ofPod(c, "enforce", p.policies.Enforce(ctx, c))
}

func ofPod(c enforce.Container, what string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s the network policies of pod %s: %w", what, c.Pod, err)
	}
	return err
}

// PreviewPolicies says what would change if policies were enforced for all pods of this node.
func (a *Agent) PreviewPolicies(ctx context.Context) (*inquiry.PolicyPreview, error) {
	if a.SurveyPolicies != nil {
		return a.SurveyPolicies(ctx, a)
	}
	return a.Policies.Preview(ctx)
}

// TracePolicy says which network policies decide on a connection of a pod of this node.
func (a *Agent) TracePolicy(_ context.Context, q inquiry.PolicyTrace) (string, error) {
	return a.Policies.Trace(q)
}

// Policed lists the containers whose packets network policies concern, and the running pods that have
// none.
func (a *Agent) Policed() []enforce.Container {
	var all []enforce.Container
	for _, record := range a.Store.List() {
		all = append(all, a.policed(record))
	}
	for _, pod := range a.Pods.Running() {
		// Without a record its request says whether it has floating IPs: ADD gives a pod as many as it requests
		// or fails, and nobody can change the request of a pod.
		all = append(all, enforce.Container{Pod: pod.Pod.Pod, Addresses: pod.Addresses, Floating: pod.Wants > 0})
	}
	return all
}

// WaitForPods returns true when Policed is complete, and false where the context ends before.
func (a *Agent) WaitForPods(ctx context.Context) bool { return a.Pods.WaitForSync(ctx) }

func (a *Agent) policed(record *state.Container) enforce.Container {
	c := enforce.Container{
		Pod: record.Pod, ID: policedID(record), NetNS: record.NetNS,
		Ending: record.Phase == state.Deleting || record.Phase == state.Withdrawn, Floating: floatingOf(record.Attachments) != nil, Foreign: ofCaller(record),
	}
	if record.Pod.Static != "" {
		// Its mirror may be another one by now.
		c.Pod = a.Pods.Mirror(record.Pod)
	}
	c.NetAdmins = a.Pods.NetAdmins(c.Pod)
	for _, attachment := range record.Attachments {
		c.Interfaces = append(c.Interfaces, attachment.IfName)
		if len(attachment.Addresses) == 0 || record.Phase != state.Withdrawn {
			c.Addresses = append(c.Addresses, addressesAt(&attachment)...)
		}
		c.Interfaces = append(c.Interfaces, nettype.Of(attachment.Driver).FurtherInterfaces(attachment.IfName, attachment.Addresses)...)
	}
	slices.Sort(c.Interfaces)
	c.Interfaces = slices.Compact(c.Interfaces)
	slices.SortFunc(c.Addresses, netip.Addr.Compare)
	c.Addresses = slices.Compact(c.Addresses)
	return c
}

// addressesAt lists the addresses of an interface: its floating IPs, or else those that plugins gave it.
func addressesAt(attachment *state.Attachment) (all []netip.Addr) {
	for _, addr := range attachment.Addresses {
		all = append(all, addr.Address)
	}
	if len(all) == 0 {
		return chain.Addresses(attachment.Result)
	}
	return all
}

// policedID tells the record's container from others.
func policedID(record *state.Container) string { return record.ContainerID + "/" + record.IfName }

// endPolicies comes when the record is gone. The rules for its addresses go with it, after its
// network.
func (a *Agent) endPolicies(ctx context.Context, record *state.Container) {
	if record.Phase == state.Adding && record.NetNS != "" {
		// The namespace may get another ADD.
		if err := a.Policies.Reopen(record.NetNS); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot look after the network namespace of a container without a network", "containerID", record.ContainerID, "err", err)
		}
	}
	a.Policies.Detached(policedID(record))
	a.Egress.Detached(policedID(record))
}
