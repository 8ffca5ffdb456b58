// SPDX-License-Identifier: Apache-2.0

// Package node asks the agents of nodes about their nodes. It needs the Role berth-diagnosis of Berth's
// namespace: commands do it only when a flag says so, or where they can do without.
package node

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/inquiry"
)

// Agents asks agents by their pods; *agentport.Ports does.
type Agents interface {
	Agent(pod *v1.Pod) inquiry.Client
}

// Wiring says in a word whether the node carries the container's addresses, and if not, why.
func Wiring(c *inquiry.InspectedContainer) (ok bool, text string) {
	for _, wrong := range []struct{ what, text string }{{"the kernel lacks ", c.Missing}, {"the last try failed: ", c.Error}, {"withdrawn: ", c.Reason}} {
		if wrong.text != "" {
			return false, wrong.what + wrong.text
		}
	}
	return c.Phase == added, c.Phase
}

// added is the phase of a container whose network is complete.
const added = "added"

// Has says whether a container has an address.
func Has(c *inquiry.InspectedContainer, addr netip.Addr) bool {
	for _, i := range c.Interfaces {
		for _, ip := range i.FloatingIPs {
			if ip.Address == addr {
				return true
			}
		}
	}
	return false
}
