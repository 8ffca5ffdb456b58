// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// ErrNotWired is returned where a piece of the set-up is missing.
var ErrNotWired = wire.ErrNotWired

// Driver changes the kernel in the network namespace of its caller's thread. Calls for different
// addresses may run in parallel; different processes must not make or remove the VLAN link of the
// same VLAN at the same time.
type Driver struct {
	wirer     *wire.Wirer
	functions *sriov.Functions

	// mu serializes changes of VLAN links and bridges.
	mu sync.Mutex
	// claimed counts the set-ups that will use a link, by its name.
	claimed map[string]int

	// setups keeps the removal of loose state out of set-ups, because a half-made container looks like
	// a container with losses. Set-ups run in parallel.
	setups sync.RWMutex
}

// New returns a Driver. It uses wirer for mode pure, for kernel settings and for answers of the
// node, and functions for mode sriov.
func New(wirer *wire.Wirer, functions *sriov.Functions) *Driver {
	return &Driver{wirer: wirer, functions: functions, claimed: map[string]int{}}
}

// Ready returns an error if the uplink is missing or down.
func (d *Driver) Ready(uplink string) error { return d.wirer.Ready(uplink) }

// seclude keeps the node out of the network of a link that it makes for containers: there it does
// not answer ARP for addresses of its other links, accepts no addresses from routers, and forwards
// nothing except for containers of package wire, which then sets forwarding. Packet filters do the
// rest (package netfilter). The modes in which the node takes part need a link-local IPv6 address.
func (d *Driver) seclude(link netlink.Link, takesPart bool) error {
	conf := rtnl.Devconf{rtnl.ARPIgnore: arpOfLink, rtnl.ARPAnnounce: arpBestLocal}
	if !takesPart {
		conf[rtnl.Forwarding] = 0
		if err := rtnl.WithoutIPv6(link); err != nil {
			return err
		}
	}
	if err := rtnl.SetIPv4(link, conf); err != nil {
		return err
	}
	err := d.wirer.SetSysctl("net/ipv6/conf/"+link.Attrs().Name+"/accept_ra", "0")
	if errors.Is(err, wire.ErrSysctl) {
		// There is no IPv6, or no writable /proc/sys, which IPv6 pools need.
		return nil
	}
	return err
}

// ToCNIError converts an error to an error with a code of the CNI specification.
func ToCNIError(err error) error {
	switch {
	case errors.Is(err, sriov.ErrNoFunction), errors.Is(err, sriov.ErrNotBack):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	case errors.Is(err, sriov.ErrDevice), errors.Is(err, sriov.ErrPF):
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	default:
		return wire.ToCNIError(err)
	}
}

// checkSecluded returns ErrNotWired if a link that Berth made for containers has other IPv4
// settings than from seclude. It does not check links of others.
func (d *Driver) checkSecluded(spec Spec, link netlink.Link) error {
	if !isOurs(link) {
		return nil
	}
	want := map[string]int{"arp_ignore": arpOfLink, "arp_announce": arpBestLocal}
	takesPart, err := nodeTakesPart(spec, link)
	if err != nil {
		return err
	}
	if !takesPart {
		want["forwarding"] = 0
	}
	var errs []error
	for name, value := range want {
		key := "net/ipv4/conf/" + link.Attrs().Name + "/" + name
		have, err := d.wirer.Sysctl(key)
		if err == nil && have != strconv.Itoa(value) {
			err = fmt.Errorf("%w: %s is %s, must be %d", ErrNotWired, key, have, value)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keepSecluded restores the settings of seclude on a link of Berth, because the process that made
// the link died, or another program changed them. The caller holds mu. It skips a link that a
// set-up uses, which may be about to make the node take part there.
func (d *Driver) keepSecluded(spec Spec, link netlink.Link) error {
	err := d.checkSecluded(spec, link)
	if !errors.Is(err, ErrNotWired) {
		return err
	}
	takesPart, err := nodeTakesPart(spec, link)
	if err != nil {
		return err
	}
	return d.seclude(link, takesPart || d.claimed[link.Attrs().Name] > 0)
}

// nodeTakesPart reports whether the node takes part on the link for any container: then it has
// routes of Berth through the link.
func nodeTakesPart(spec Spec, link netlink.Link) (bool, error) {
	if spec.takesPart() {
		return true, nil
	}
	filter := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC, Protocol: rtnl.Protocol}
	for _, family := range rtnl.Families {
		routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return false, fmt.Errorf("list routes through link %s: %w", link.Attrs().Name, err)
		}
		if len(routes) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// Values of arp_ignore and arp_announce: answer for the link's own addresses alone, and ask
// from the best address for the target.
const arpOfLink, arpBestLocal = 1, 2

// sources lists the addresses from which containers may send, by their node links and the links of
// package wire, which share a table.
func (d *Driver) sources() ([]netfilter.Source, error) {
	all, err := d.wirer.Sources()
	if err != nil {
		return nil, err
	}
	own, err := d.List()
	if err != nil {
		return nil, err
	}
	uplinks, err := wire.AnsweredOn(unix.AF_INET)
	if err != nil {
		return nil, err
	}
	for _, l := range own {
		for _, addr := range l.Addresses {
			all = append(all, netfilter.Source{Link: l.Name, Address: addr, Uplink: uplinks[addr], Past: true})
		}
	}
	return all, nil
}

// sourcesOf lists the addresses from which a container may send by its node link. Even a container
// for which the node routes has direct access to its network: its packets to others, even on its
// node, use the network of its pool.
func sourcesOf(spec Spec, segments []segment, lowers []netlink.Link) []netfilter.Source {
	var all []netfilter.Source
	for i, g := range segments {
		for _, a := range g.addrs {
			s := netfilter.Source{Link: NodeLink(spec.ContainerID, spec.IfName), Address: a.Address, Past: true}
			if spec.answers() {
				s.Uplink = lowers[i].Attrs().Name
			}
			all = append(all, s)
		}
	}
	return all
}
