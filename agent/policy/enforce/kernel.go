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

// Kernel is the kernel of the node. Its functions block for it and are safe in parallel for
// different namespaces.
type Kernel struct {
	// Table returns the rules of a network namespace, of the node where the path is empty.
	Table func(netns string) Table
	// Find, IsNode and NodeAddresses are package place's, and Show is place.Shower.Show.
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
	// EndOf is conntrack.EndOf, and DropQueued rtnl.DropQueued, on the node.
	EndOf, DropQueued func(addresses []netip.Addr) error
	// Close and Open are package gate's.
	Close func(netns string, interfaces ...string) error
	Open  func(netns string) error
}

// NewKernel returns the kernel of the node that the process runs on. The backend is one that
// ChooseBackend returned.
func NewKernel(backend Backend, shower *place.Shower) Kernel {
	return Kernel{
		Table: backend.rules, Find: place.Find, IsNode: place.IsNode, NodeAddresses: place.NodeAddresses, Show: shower.Show,
		Guard: port.Guard, Connections: socket.Connections,
		Flows: func(yield func(*conntrack.Flow) bool) error { return conntrack.List(conntrack.Both, yield) },
		EndOf: conntrack.EndOf, DropQueued: rtnl.DropQueued, Close: gate.Close, Open: gate.Open,
	}
}
