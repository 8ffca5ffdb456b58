// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Close keeps hosts outside of the node from getting any answer for the container's addresses,
// until Setup, or Repair while the uplink has its carrier. The container keeps its interfaces,
// addresses and routes, and still reaches its node.
//
//	bridge              the port of the bridge is down
//	macvlan, ipvlan l2  the node drops the frames that say that they come from the addresses, on their way to the wire.
//	                    Containers on the same link still reach each other
//	ipvlan l3s, pure    the node does not answer
//	ipvlan l3           nothing: nobody answers there anyway
//	sriov               the card takes the function's link down or, where its driver cannot, its MAC address away
func (d *Driver) Close(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	if spec.Mode == Pure {
		return d.wirer.Close(spec.Spec)
	}
	segments := spec.segments()
	lowers, err := d.find(spec, segments)
	if err != nil {
		return err
	}
	var errs []error
	for i, g := range segments {
		if lowers[i] != nil {
			errs = append(errs, d.closeSegment(spec, g, lowers[i]))
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) closeSegment(spec Spec, g segment, lower netlink.Link) error {
	switch {
	case spec.answers():
		node, err := rtnl.LinkOrNil(NodeLink(spec.ContainerID, spec.IfName))
		if err != nil || node == nil {
			return err
		}
		for _, a := range g.addrs {
			if err := stopUnlessElsewhere(a.Address, node.Attrs().Index); err != nil {
				return err
			}
		}
		return nil
	case spec.routed():
		return nil
	case spec.Mode == Bridge:
		port, err := rtnl.LinkOrNil(portOf(spec.ContainerID, g.ifName))
		if err != nil || port == nil {
			return err
		}
		return rtnl.SetDown(port)
	case spec.Mode == SRIOV:
		return d.functions.Close(wishOf(spec, g))
	}
	return lowerGuardOf(spec, g, lower).close()
}

// open undoes closeSegment in the modes in which no other part of Repair does so.
func (d *Driver) open(spec Spec, g segment, lower netlink.Link) error {
	if spec.Mode == SRIOV {
		return d.functions.Open(wishOf(spec, g))
	}
	if l := lowerGuardOf(spec, g, lower); l != nil {
		return l.open()
	}
	return nil
}

// isClosed reports whether a segment is closed, in the modes of open.
func (d *Driver) isClosed(spec Spec, g segment, lower netlink.Link) (bool, error) {
	if spec.Mode == SRIOV {
		return d.functions.IsClosed(wishOf(spec, g))
	}
	if l := lowerGuardOf(spec, g, lower); l != nil {
		return l.isClosed()
	}
	return false, nil
}

// checkOpen returns ErrNotWired if a segment is closed although the uplink has its carrier.
func (d *Driver) checkOpen(spec Spec, g segment, lower netlink.Link) error {
	closed, err := d.isClosed(spec, g, lower)
	if err != nil || !closed {
		return err
	}
	if cut, err := wire.IsCut(spec.Uplink); err != nil || cut {
		return err
	}
	return fmt.Errorf("%w: %s is silent", ErrNotWired, g.ifName)
}

// isPortUp reports whether the node's end of a segment in mode bridge is up, or is down because the
// uplink has no carrier.
func isPortUp(spec Spec, port netlink.Link) (bool, error) {
	if port.Attrs().Flags&net.FlagUp != 0 {
		return true, nil
	}
	return wire.IsCut(spec.Uplink)
}

// stopsAddress returns the rules of a lower link that drop frames from closed addresses.
func (s lowerSets) stopsAddress() []nftables.Rule {
	closed4, closed6 := s.closed[nftables.V4].Name, s.closed[nftables.V6].Name
	return []nftables.Rule{
		nftables.NewRule("nobody answers for a closed address", arp, nftables.In(closed4, arpSender), nftables.Drop),
		nftables.NewRule("nobody sends from a closed address", ipv4, nftables.In(closed4, nftables.V4.SAddr), nftables.Drop),
		nftables.NewRule("nobody sends from a closed address", ipv6, nftables.In(closed6, nftables.V6.SAddr), nftables.Drop),
		nftables.NewRule("nobody answers for a closed address", ipv6, nftables.ICMPv6(nftables.NeighborAdvertisement), nftables.In(closed6, ndTarget), nftables.Drop),
	}
}

// close closes the container's addresses on the lower link. It makes a missing guard.
func (l *lowerGuard) close() error {
	if err := l.check(); errors.Is(err, ErrNotWired) {
		if err := l.set(); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return l.changeClosed(func(tx *nftables.Transaction, set string, addr []byte, _ bool) {
		tx.AddElements(guardTable(), set, nftables.Keys(addr))
	})
}

func (l *lowerGuard) open() error {
	return l.changeClosed(func(tx *nftables.Transaction, set string, addr []byte, closed bool) {
		if closed {
			tx.DeleteElements(guardTable(), set, nftables.Keys(addr))
		}
	})
}

// changeClosed calls change for each address of the container, with the set of closed addresses of
// its family.
func (l *lowerGuard) changeClosed(change func(tx *nftables.Transaction, set string, addr []byte, closed bool)) error {
	guardMu.Lock()
	defer guardMu.Unlock()
	var tx nftables.Transaction
	err := l.eachClosed(func(set string, a api.Address, closed bool) { change(&tx, set, a.Address.AsSlice(), closed) })
	if err != nil || tx.IsEmpty() {
		return err
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: change the closed addresses of %s on %s: %w", ErrGuard, l.pod, l.lower.Attrs().Name, err)
	}
	return nil
}

// eachClosed calls do for each address of the container; closed says whether the set has it.
func (l *lowerGuard) eachClosed(do func(set string, a api.Address, closed bool)) error {
	sets := lowerSetsOf(l.lower.Attrs().Name)
	for _, ip := range nftables.IPs {
		set := sets.closed[ip]
		known, err := setKeys(set)
		if err != nil {
			return err
		}
		for _, a := range l.addrs {
			if nftables.IPOf(a.Address) == ip {
				do(set.Name, a, known[string(a.Address.AsSlice())])
			}
		}
	}
	return nil
}

// forgetClosed opens the container's addresses on lower links that it no longer uses.
func (d *Driver) forgetClosed(spec Spec) error {
	segments := spec.segments()
	lowers, err := d.find(spec, segments)
	if err != nil {
		// The lower links went with the uplink.
		return nil //nolint:nilerr // the sets go with the last container
	}
	var errs []error
	for i, g := range segments {
		if lowers[i] == nil {
			continue
		}
		if l := lowerGuardOf(spec, g, lowers[i]); l != nil {
			errs = append(errs, l.open())
		}
	}
	return errors.Join(errs...)
}

func (l *lowerGuard) isClosed() (bool, error) {
	var all []bool
	err := l.eachClosed(func(_ string, _ api.Address, closed bool) { all = append(all, closed) })
	return slices.Contains(all, true), err
}
