// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"

	"github.com/berth-dev/berth/agent/policy/gate"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/port"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Kernel is the kernel of the node that the process runs on.
type Kernel struct {
	*place.Shower
	// Backend is one that ChooseBackend returned.
	Backend Backend
}

// Table returns the rules of a network namespace, of the node where the path is empty.
func (k Kernel) Table(netns string) Table { return k.Backend.rules(netns) }

// Find is place.Find.
func (Kernel) Find(netns string, names []string) (place.Place, error) {
	return place.Find(netns, names)
}

// IsNode is place.IsNode.
func (Kernel) IsNode(netns string) (bool, error) { return place.IsNode(netns) }

// NodeAddresses is place.NodeAddresses.
func (Kernel) NodeAddresses() (own, dns []netip.Addr, err error) { return place.NodeAddresses() }

// Guard is port.Guard.
func (Kernel) Guard(ports []place.Port) error { return port.Guard(ports) }

// Close is gate.Close.
func (Kernel) Close(netns string, interfaces ...string) error {
	return gate.Close(netns, interfaces...)
}

// Open is gate.Open.
func (Kernel) Open(netns string) error { return gate.Open(netns) }

// EndOf is conntrack.EndOf.
func (Kernel) EndOf(addrs []netip.Addr) error { return conntrack.EndOf(addrs) }

// Flows yields the connections of both families that the node tracks.
func (Kernel) Flows(yield func(*conntrack.Flow) bool) error {
	return conntrack.List(conntrack.Both, yield)
}

// DropQueued is rtnl.DropQueued.
func (Kernel) DropQueued(addresses []netip.Addr) error { return rtnl.DropQueued(addresses) }

// Connections is socket.Connections.
func (Kernel) Connections(netns string) ([]socket.Connection, error) {
	return socket.Connections(netns)
}
