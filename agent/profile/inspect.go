// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Inspect returns the profile of a container, why it lacks a requested limit, and its limits in the
// kernel. It changes nothing.
func (c *Controller) Inspect(container Container) inquiry.InspectedShaping {
	var in inquiry.InspectedShaping
	seen := c.objects()
	if ns, ok := seen.namespaces[container.Pod.Namespace]; ok && container.Known {
		if p, _ := seen.choose(container.Pod.Namespace, ns, container.Annotations[v1alpha1.AnnotationNetworkProfile]); p != nil {
			in.Profile = p.Name
		}
	}
	pod, _, _ := seen.compile(container)
	if pod.Group != nil {
		in.Group = pod.Group.Name
	}
	in.DSCP = pod.DSCP
	c.mu.Lock()
	in.Problem = c.told[container.Pod.UID]
	c.mu.Unlock()
	links, _, _ := c.linksOf(container)
	found, err := c.Kernel.Find(links)
	if err != nil {
		in.Error = err.Error()
	}
	for _, f := range found {
		in.Limits = append(in.Limits, inquiry.InspectedLimit{Link: f.Link, Direction: f.Direction, Device: f.Device, Rate: f.Rate, Shared: f.Shared})
	}
	return in
}
