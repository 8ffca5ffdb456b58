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

// Kernel is the kernel of the node. Its functions block for the kernel and are safe in parallel for
// different namespaces.
type Kernel struct {
	// Table returns the rules of a network namespace, or of the node if the path is empty.
	Table func(netns string) Table
	// Find, IsNode and NodeAddresses are functions of package place; Show is place.Shower.Show.
	Find          func(netns string, names []string) (place.Place, error)
	IsNode        func(netns string) (bool, error)
	NodeAddresses func() (own, dns []netip.Addr, err error)
	Show          func(bridge string) error
	// Guard is port.Guard.
	Guard func(ports []place.Port) error
	// Connections is socket.Connections.
	Connections func(netns string) ([]socket.Connection, error)
	// Flows yields the connections of both families that the node tracks, until yield returns false.
	Flows func(yield func(*conntrack.Flow) bool) error
	// EndOf is conntrack.EndOf and DropQueued is rtnl.DropQueued, on the node.
	EndOf, DropQueued func(addresses []netip.Addr) error
	// Close and Open are functions of package gate.
	Close func(netns string, interfaces ...string) error
	Open  func(netns string) error
}

// NewKernel returns the kernel of the process's node. The backend is a result of ChooseBackend.
func NewKernel(backend Backend, shower *place.Shower) Kernel {
	return Kernel{
		Table: backend.rules, Find: place.Find, IsNode: place.IsNode, NodeAddresses: place.NodeAddresses, Show: shower.Show,
		Guard: port.Guard, Connections: socket.Connections,
		Flows: func(yield func(*conntrack.Flow) bool) error { return conntrack.List(rtnl.Families, yield) },
		EndOf: conntrack.EndOf, DropQueued: rtnl.DropQueued, Close: gate.Close, Open: gate.Open,
	}
}
