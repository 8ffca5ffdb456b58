// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// shaper limits the bandwidth of containers and marks their packets. Methods are safe in
// parallel and idempotent. A limit that cannot be enforced is the shaper's to tell: it
// keeps no pod from its network.
type shaper interface {
	// Shape gives a container its limits before it runs. It blocks for the kernel.
	Shape(ctx context.Context, c profile.Container)
	// Soon has changes of limits, and of the containers, brought into the kernel, and Recheck all limits compared with the
	// kernel; they return at once.
	Soon()
	Recheck()
	// Inspect returns a container's limits, and changes nothing. It blocks for the kernel.
	Inspect(c profile.Container) inquiry.InspectedShaping
}

func (a *Agent) shape(ctx context.Context, record *state.Container) {
	if !ofCaller(record) {
		a.Shaper.Shape(ctx, a.shaped(record))
	}
}

// noShaper limits nothing.
type noShaper struct{}

func (noShaper) Shape(context.Context, profile.Container) {}
func (noShaper) Soon()                                    {}
func (noShaper) Recheck()                                 {}

func (noShaper) Inspect(profile.Container) inquiry.InspectedShaping {
	return inquiry.InspectedShaping{}
}

// Changed notes that the annotations of a pod changed, or that a pod came.
func (a *Agent) Changed(api.Pod) {
	a.Shaper.Soon()
	a.Policies.Soon()
	a.TellSoon()
}

// Shaped lists the containers whose traffic may have limits.
func (a *Agent) Shaped() []profile.Container {
	var all []profile.Container
	for _, record := range a.Store.List() {
		// Another program limits the interfaces that it wires.
		if (record.Phase == state.Adding || record.Phase == state.Added) && !ofCaller(record) {
			all = append(all, a.shaped(record))
		}
	}
	return all
}

func (a *Agent) shaped(record *state.Container) profile.Container {
	c := profile.Container{Pod: record.Pod, Attaching: record.Phase == state.Adding, NetNS: record.NetNS}
	c.Annotations, c.Known = a.Pods.Annotations(record.Pod)
	for i, attachment := range record.Attachments {
		c.Interfaces = append(c.Interfaces, attachment.IfName)
		c.Addresses = append(c.Addresses, addressesAt(&attachment)...)
		if i == 0 {
			// The runtime passes the annotations to the first network.
			network, err := networkOf(record, i)
			c.ByPlugin = err == nil && network.Declares(profile.Capability)
		}
	}
	return c
}
