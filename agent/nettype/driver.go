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

// Driver does the work of a network type in the agent's own process, because it must stop carrying
// an address even if no plugin can run. Methods are idempotent and block for the kernel only; calls
// for the same address run one after another. Package agent has interfaces for abilities of some
// drivers: podChecker, surveyor, uplinkChecker, linkOwner, onSegment, defended and advertiser.
type Driver interface {
	// Setup wires the interface's addresses to the container.
	Setup(i *Interface) (*current.Result, error)
	// CheckNode returns an error that names the missing pieces of the node's side.
	CheckNode(i *Interface) error
	// Filter restores lost packet filters and marks of the interface, as far as the kernel carries its
	// addresses, and the container's routes to addresses of its own node. It gives the container
	// nothing else, so it is safe without asking other nodes.
	Filter(i *Interface) error
	// Repair makes the missing pieces of the node's side, also after Withdraw and Close. The
	// container's changes of its own side stay. A closed interface stays closed while its uplink has
	// no carrier.
	Repair(i *Interface) error
	// Close keeps hosts outside of the node from getting answers for the interface's addresses, until
	// Repair or Setup: the addresses may be another node's. The container keeps the interface, its
	// addresses and routes. While the uplink has its carrier, CheckNode reports a missing piece for a
	// closed interface; Filter does not restore it. Close returns an error if answers continue.
	Close(i *Interface) error
	// Withdraw stops the node from carrying the interface's addresses.
	Withdraw(i *Interface) error
	// Teardown withdraws, and removes the container's interface. It needs only the name of the
	// interface, the container and the namespace.
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
	// Standby says that the node does not carry the addresses yet: see state.Container.
	Standby bool
	// Advertised has the addresses that routing daemons announce from this node, each with the time
	// since which the pod has it; nil leaves them unchanged.
	Advertised map[netip.Addr]time.Time
	state.Attachment
}

// Link is the host end of a container's interface.
type Link = wire.Link

// Kernel has the parts that drivers work with.
type Kernel struct {
	Wirer *wire.Wirer
	// StateFile is the agent's state file. Types keep their own files in its folder.
	StateFile string
	// Services, if given, returns the prefixes that pods with interfaces of their own reach through
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
// They are in the order of removal: a type may find its objects by objects of an earlier type in
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
