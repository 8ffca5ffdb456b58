// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"net/netip"
	"slices"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Driver does the work of a network type in the agent's own process: it must stop carrying an
// address also where no plugin can run. Methods are idempotent and block for the kernel only; calls
// for one address run one after another. Package agent has an interface for each thing that some
// drivers can do beside these: podChecker, surveyor, uplinkChecker, linkOwner, onSegment, defended
// and advertiser.
type Driver interface {
	// Setup wires the interface's addresses to the container.
	Setup(i *Interface) (*current.Result, error)
	// CheckNode returns an error that names the missing pieces of the node's side.
	CheckNode(i *Interface) error
	// Filter puts back the packet filters and marks of the interface, where they are lost, as far as
	// the kernel carries its addresses, and the container's ways to the addresses of its own node. It
	// gives the container nothing else, so nobody need be asked before.
	Filter(i *Interface) error
	// Repair makes the missing pieces of the node's side, also after Withdraw and Close. The
	// container's changes of its own side stay. An interface that was closed stays so while its uplink
	// has no carrier.
	Repair(i *Interface) error
	// Close keeps hosts outside of the node from getting answers for the interface's addresses, until
	// Repair or Setup: the addresses may be another node's. The container keeps the interface, its
	// addresses and routes. While the uplink has its carrier, CheckNode misses a piece of a closed
	// interface; Filter puts none back. Close returns an error where it cannot do that.
	Close(i *Interface) error
	// Withdraw stops the node from carrying the interface's addresses.
	Withdraw(i *Interface) error
	// Teardown withdraws, and removes the container's interface. It knows an
	// interface by its name, the container and the namespace alone.
	Teardown(i *Interface) error
	// Announce tells the network that the addresses are here.
	Announce(i *Interface) error
}

// Interface is an interface of a container as a driver sees it.
type Interface struct {
	ContainerID string
	NetNS       string
	// Secondary says that the container's default route is on another interface.
	Secondary bool
	// Advertised has the addresses that routing daemons announce from this node, and since when the
	// pod has each; nil leaves them as they are.
	Advertised map[netip.Addr]time.Time
	state.Attachment
}

// Link is the host end of a container's interface.
type Link = wire.Link

// Kernel has the parts that drivers work with.
type Kernel struct {
	Wirer *wire.Wirer
	// StateFile is the agent's. Types keep their own files beside it.
	StateFile string
	// Services, if given, returns the prefixes to which pods with interfaces of their own send by
	// their node.
	Services func() ([]netip.Prefix, error)
}

// Drivers returns the drivers of all types by the types' names.
func Drivers(k Kernel) map[string]Driver {
	all := map[string]Driver{}
	for _, t := range types {
		if t.driver != nil {
			all[t.Name] = t.driver(k)
		}
	}
	return all
}

// Leftovers returns a function for each type that lists the things that the type left on the node.
// They are in the order of removal: a type may find its things by the things of an earlier type in
// types.
func Leftovers(k Kernel) []func() ([]leftover.Item, error) {
	var all []func() ([]leftover.Item, error)
	for _, t := range slices.Backward(types) {
		if t.leftovers != nil {
			all = append(all, func() ([]leftover.Item, error) { return t.leftovers(k) })
		}
	}
	return all
}
