// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Interface is an interface of a container that a plugin of another project made, or is
// about to make. The functions work in the network namespace of the caller's thread as the
// node's; they are idempotent and block for the kernel only.
type Interface struct {
	// NetNS is the path of the container's network namespace; empty where it is gone.
	NetNS string
	Name  string
	// Addresses are the pod's floating IPs on it.
	Addresses []netip.Addr
	// Result of the plugin, or of berth-ipam alone; nil where there is none yet.
	Result *current.Result
}

const kindVeth = "veth"

// Silence takes the interface down. It succeeds where nothing is left of it.
func (i Interface) Silence() error {
	var hosts, inside []netlink.Link
	netns, err := wire.OpenNetNS(i.NetNS)
	if err != nil {
		return err
	}
	if netns != nil {
		defer netns.Close()
		if hosts, inside, err = i.find(netns); err != nil {
			return err
		}
	} else if hosts, err = i.resultLinks(); err != nil {
		return err
	}
	errs := []error{down(hosts)}
	if len(inside) > 0 {
		errs = append(errs, netns.Do(func(ns.NetNS) error { return down(inside) }))
	}
	return errors.Join(errs...)
}

// find returns the links that lead to the container: ends on the node, and those inside that
// have none. They have the interface's name or one of its addresses: a container may rename
// its links.
func (i Interface) find(netns ns.NetNS) (hosts, inside []netlink.Link, err error) {
	err = netns.Do(func(ns.NetNS) error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, l := range links {
			mine, err := i.has(l)
			if err != nil {
				return err
			}
			if mine && l.Attrs().Flags&net.FlagLoopback == 0 {
				inside = append(inside, l)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look for interface %s in %s: %w", i.Name, i.NetNS, err)
	}
	inside = slices.DeleteFunc(inside, func(l netlink.Link) bool {
		host := otherEnd(l)
		if host != nil {
			hosts = append(hosts, host)
		}
		return host != nil
	})
	return hosts, inside, nil
}

func (i Interface) has(link netlink.Link) (bool, error) {
	if link.Attrs().Name == i.Name {
		return true, nil
	}
	addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list addresses of link %s: %w", link.Attrs().Name, err)
	}
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		addr, ok := netip.AddrFromSlice(a.IP)
		return ok && slices.Contains(i.Addresses, addr.Unmap())
	}), nil
}

// otherEnd returns the node's end of a container's veth, nil where the node has none.
func otherEnd(link netlink.Link) netlink.Link {
	if link.Type() != kindVeth {
		return nil
	}
	host, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
	if err != nil || host.Type() != kindVeth || host.Attrs().ParentIndex != link.Attrs().Index {
		return nil
	}
	return host
}

// resultLinks returns the veths of the node that the plugin's result names.
func (i Interface) resultLinks() ([]netlink.Link, error) {
	if i.Result == nil {
		return nil, nil
	}
	var all []netlink.Link
	for _, named := range i.Result.Interfaces {
		if named.Sandbox != "" || named.Mac == "" {
			continue
		}
		link, err := rtnl.LinkOrNil(named.Name)
		if err != nil {
			return nil, err
		}
		// Another link may have the name by now.
		if link != nil && link.Type() == kindVeth && link.Attrs().HardwareAddr.String() == named.Mac {
			all = append(all, link)
		}
	}
	return all, nil
}

func down(links []netlink.Link) error {
	var errs []error
	for _, l := range links {
		if err := netlink.LinkSetDown(l); err != nil && !rtnl.LinkNotFound(err) {
			errs = append(errs, fmt.Errorf("set link %s down: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// Restore undoes Silence. It returns ErrNotWired where the interface is gone.
func (i Interface) Restore() error {
	netns, err := wire.OpenNetNS(i.NetNS)
	if err != nil {
		return err
	}
	if netns == nil {
		return fmt.Errorf("%w: the network namespace of interface %s is gone", wire.ErrNotWired, i.Name)
	}
	defer netns.Close()
	var link netlink.Link
	err = netns.Do(func(ns.NetNS) error {
		var err error
		link, err = netlinksafe.LinkByName(i.Name)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: interface %s, which a plugin of another project made: %w; delete the pod", wire.ErrNotWired, i.Name, err)
	}
	if host := otherEnd(link); host != nil {
		return i.restoreHost(host)
	}
	return netns.Do(func(ns.NetNS) error { return i.restoreInside(link) })
}

// restoreHost puts up the node's end of a veth. Where it is no port of a bridge the plugin
// gave it the gateways and routes to the addresses (ptp), which the kernel dropped.
func (i Interface) restoreHost(host netlink.Link) error {
	if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("set link %s up: %w", host.Attrs().Name, err)
	}
	if host.Attrs().MasterIndex != 0 || i.Result == nil {
		return nil
	}
	for _, ip := range i.Result.IPs {
		if gateway, ok := netip.AddrFromSlice(ip.Gateway); ok {
			if err := netlink.AddrReplace(host, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.SinglePrefix(gateway.Unmap()))}); err != nil {
				return fmt.Errorf("add address %s to link %s: %w", ip.Gateway, host.Attrs().Name, err)
			}
		}
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		route := netlink.Route{LinkIndex: host.Attrs().Index, Dst: rtnl.IPNet(rtnl.SinglePrefix(addr)), Scope: rtnl.LinkScope(rtnl.FamilyOf(addr))}
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("add route %s on link %s: %w", route.Dst, host.Attrs().Name, err)
		}
	}
	return nil
}

// restoreInside puts up a link of the container, with the addresses and routes that the
// kernel dropped.
func (i Interface) restoreInside(link netlink.Link) error {
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", i.Name, err)
	}
	if i.Result == nil {
		return nil
	}
	for _, ip := range i.Result.IPs {
		addr := netlink.Addr{IPNet: &ip.Address}
		if ip.Address.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, &addr); err != nil {
			return fmt.Errorf("add address %s: %w", addr.IPNet, err)
		}
	}
	for _, r := range i.Result.Routes {
		route := netlink.Route{LinkIndex: link.Attrs().Index, Dst: &r.Dst, Gw: r.GW, Flags: int(netlink.FLAG_ONLINK)}
		if len(r.GW) == 0 {
			route.Flags, route.Scope = 0, netlink.SCOPE_LINK
		}
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("add route %s: %w", route.Dst, err)
		}
	}
	return nil
}

// Announce tells the network of the interface that the addresses are here. It does nothing
// where the plugin has not made the interface yet.
func (i Interface) Announce() error {
	netns, err := wire.OpenNetNS(i.NetNS)
	if err != nil || netns == nil {
		return err
	}
	defer netns.Close()
	return netns.Do(func(ns.NetNS) error {
		link, err := rtnl.LinkOrNil(i.Name)
		if err != nil || link == nil {
			return err
		}
		const noARP = unix.IFF_NOARP
		if link.Attrs().Flags&net.FlagUp == 0 || link.Attrs().RawFlags&noARP != 0 {
			return nil
		}
		var errs []error
		for _, addr := range i.Addresses {
			errs = append(errs, wire.AnnounceOn(link, addr))
		}
		return errors.Join(errs...)
	})
}
