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
	ContainerID string
	// NetNS is the path of the container's network namespace; empty if it is gone.
	NetNS string
	Name  string
	// Addresses are the pod's floating IPs on it.
	Addresses []netip.Addr
	// Result of the plugin, or of berth-ipam alone; nil if there is none yet.
	Result *current.Result
}

// ErrNotSeen is returned by Silence if the network namespace has no part of the interface: its
// plugin may be about to make it, or the container hides it.
var ErrNotSeen = errors.New("interface not seen")

const kindVeth = "veth"

// Links returns the indices, by name, of the links in a container's network namespace, except
// devices, which programs move out on purpose, for example for a virtual machine. It returns nil if
// the namespace is gone.
func Links(path string) (map[string]int, error) {
	netns, err := rtnl.FindContainerNS(path)
	if err != nil || netns == nil {
		return nil, err
	}
	defer netns.Close()
	all := map[string]int{}
	err = netns.Do(func(ns.NetNS) error {
		links, err := netlinksafe.LinkList()
		for _, l := range links {
			if l.Type() != "device" {
				all[l.Attrs().Name] = l.Attrs().Index
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the links in %s: %w", path, err)
	}
	return all, nil
}

// Silence takes the interface down. It succeeds if nothing is left of the interface, and returns
// ErrNotSeen if its namespace exists but has no interface with the addresses yet.
func (i Interface) Silence() error {
	netns, err := rtnl.FindContainerNS(i.NetNS)
	if err != nil {
		return err
	}
	// Look on the node first: this does not depend on the container.
	hosts, err := i.nodeLinks()
	if err != nil {
		return err
	}
	if netns == nil {
		return down(hosts)
	}
	defer netns.Close()
	ends, inside, err := i.find(netns)
	if err != nil {
		return errors.Join(down(hosts), err)
	}
	hosts = append(hosts, ends...)
	var left []netlink.Link
	wired := len(hosts) > 0
	for _, l := range inside {
		left, wired = append(left, l.Link), wired || l.hasAddress
	}
	errs := []error{down(hosts)}
	if len(left) > 0 {
		errs = append(errs, netns.Do(func(ns.NetNS) error { return down(left) }))
	}
	if err := errors.Join(errs...); err != nil || wired {
		return err
	}
	return fmt.Errorf("%w: %s has no interface %s with the addresses", ErrNotSeen, i.NetNS, i.Name)
}

type insideLink struct {
	netlink.Link
	hasAddress bool
}

// find returns the links of the interface: ends on the node, and links in the container without
// such an end. They either have any of the addresses, because a container may rename its links, or
// the interface's name and no other global address.
func (i Interface) find(netns ns.NetNS) (hosts []netlink.Link, inside []insideLink, err error) {
	err = netns.Do(func(ns.NetNS) error {
		links, err := rtnl.Links()
		if err != nil {
			return err
		}
		for _, l := range links {
			own, other, err := i.has(l)
			if err != nil {
				return err
			}
			if l.Attrs().Flags&net.FlagLoopback == 0 && (own || l.Attrs().Name == i.Name && !other) {
				inside = append(inside, insideLink{l, own})
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look for interface %s in %s: %w", i.Name, i.NetNS, err)
	}
	ends, err := endsOf(netns)
	if err != nil {
		return nil, nil, err
	}
	inside = slices.DeleteFunc(inside, func(l insideLink) bool {
		host := ends[l.Attrs().Index]
		if host != nil {
			hosts = append(hosts, host)
		}
		return host != nil
	})
	return hosts, inside, nil
}

// has reports whether a link has any of the interface's addresses, and whether it has any other
// address with global scope.
func (i Interface) has(link netlink.Link) (own, other bool, err error) {
	addrs, err := rtnl.Addresses(link, netlink.FAMILY_ALL)
	if err != nil {
		return false, false, err
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		switch {
		case ok && slices.Contains(i.Addresses, addr.Unmap()):
			own = true
		case a.Scope == unix.RT_SCOPE_UNIVERSE:
			other = true
		}
	}
	return own, other, nil
}

// endsOf returns the node's ends of the veths in a namespace, by the indices of the ends inside. A
// container can choose the indices of its links and of their peers. So endsOf looks only at the
// node's links, by the namespace to which, by the kernel, they lead.
func endsOf(netns ns.NetNS) (map[int]netlink.Link, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	// The list above gave the namespace a number, if it had none.
	nsid, err := netlink.GetNetNsIdByFd(int(netns.Fd()))
	if err != nil {
		return nil, fmt.Errorf("get the number of network namespace %s: %w", netns.Path(), err)
	}
	ends := map[int]netlink.Link{}
	for _, l := range links {
		if nsid >= 0 && l.Type() == kindVeth && l.Attrs().NetNsID == nsid {
			ends[l.Attrs().ParentIndex] = l
		}
	}
	return ends, nil
}

// ErrCannotClose is returned by Close for an interface that could be silenced only in the
// container, which would lose its routes.
var ErrCannotClose = errors.New("interface of another project's plugin cannot be kept silent")

// Close takes the bridge ports of the container down, until Restore. It does nothing to a veth that
// is no port: the network routes the packets to the node, and nobody answers for the addresses.
func (i Interface) Close() error {
	hosts, inside, err := i.ends()
	if err != nil {
		return err
	}
	err = down(ports(hosts))
	for _, l := range inside {
		err = errors.Join(err, fmt.Errorf("%w: %s is a link of type %s in the container", ErrCannotClose, l.Attrs().Name, l.Type()))
	}
	return err
}

// CheckOpen returns ErrNotWired if the interface is closed.
func (i Interface) CheckOpen() error {
	hosts, _, err := i.ends()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range ports(hosts) {
		if l.Attrs().Flags&net.FlagUp == 0 {
			errs = append(errs, fmt.Errorf("%w: link %s is down", wire.ErrNotWired, l.Attrs().Name))
		}
	}
	return errors.Join(errs...)
}

// ends returns the node's ends of the interface, and its links in the container without such an
// end.
func (i Interface) ends() (hosts []netlink.Link, inside []insideLink, err error) {
	netns, err := rtnl.FindContainerNS(i.NetNS)
	if err != nil {
		return nil, nil, err
	}
	if hosts, err = i.nodeLinks(); err != nil || netns == nil {
		return hosts, nil, err
	}
	defer netns.Close()
	found, inside, err := i.find(netns)
	return append(hosts, found...), inside, err
}

func ports(links []netlink.Link) []netlink.Link {
	return slices.DeleteFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == 0 })
}

// alias returns the mark of the node's end of the interface; empty if the container is not known.
func (i Interface) alias() string {
	if i.ContainerID == "" {
		return ""
	}
	return "berth-ipam " + wire.HostLink(i.ContainerID, i.Name)
}

var ErrNotMarked = errors.New("link without mark")

// CheckMark returns ErrNotMarked if the interface is a veth whose end on the node lacks the mark.
// By the mark Silence finds the node's end even if the container changes its own end.
func (i Interface) CheckMark() error {
	return i.unmarked(func(l netlink.Link) error { return fmt.Errorf("%w: %s", ErrNotMarked, l.Attrs().Name) })
}

// Mark makes the mark. It does not change a link with the alias of another program.
func (i Interface) Mark() error {
	return i.unmarked(func(l netlink.Link) error {
		if err := netlink.LinkSetAlias(l, i.alias()); err != nil && !rtnl.LinkNotFound(err) {
			return fmt.Errorf("set the alias of link %s: %w", l.Attrs().Name, err)
		}
		return nil
	})
}

// unmarked calls do for the node's ends that have no alias.
func (i Interface) unmarked(do func(netlink.Link) error) error {
	netns, err := rtnl.FindContainerNS(i.NetNS)
	if err != nil || netns == nil || i.alias() == "" {
		return err
	}
	defer netns.Close()
	hosts, _, err := i.find(netns)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range hosts {
		if l.Attrs().Alias == "" {
			errs = append(errs, do(l))
		}
	}
	return errors.Join(errs...)
}

// nodeLinks returns the node's ends that have the mark or that the plugin's result names.
func (i Interface) nodeLinks() ([]netlink.Link, error) {
	named, err := i.resultLinks()
	if err != nil || i.alias() == "" {
		return named, err
	}
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Attrs().Alias == i.alias() {
			named = append(named, l)
		}
	}
	return named, nil
}

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
		errs = append(errs, rtnl.SetDown(l))
	}
	return errors.Join(errs...)
}

// Restore undoes Silence. It returns ErrNotWired if the interface is gone.
func (i Interface) Restore() error {
	netns, err := rtnl.FindContainerNS(i.NetNS)
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
	ends, err := endsOf(netns)
	if err != nil {
		return err
	}
	if host := ends[link.Attrs().Index]; host != nil {
		return i.restoreHost(host)
	}
	return netns.Do(func(ns.NetNS) error { return i.restoreInside(link) })
}

// restoreHost sets the node's end of a veth up. If it is no port of a bridge (ptp), restoreHost
// adds the plugin's gateways and routes to the addresses again, which the kernel dropped.
func (i Interface) restoreHost(host netlink.Link) error {
	if err := rtnl.SetUp(host); err != nil || host.Attrs().MasterIndex != 0 || i.Result == nil {
		return err
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

// restoreInside sets a link of the container up, with the addresses and routes that the kernel
// dropped.
func (i Interface) restoreInside(link netlink.Link) error {
	if err := rtnl.SetUp(link); err != nil || i.Result == nil {
		return err
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

// Announce tells the network of the interface that the addresses are here. It does nothing if the
// plugin has not made the interface yet.
func (i Interface) Announce() error {
	netns, err := rtnl.FindContainerNS(i.NetNS)
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
			errs = append(errs, wire.AnnounceOn(link, addr, false))
		}
		return errors.Join(errs...)
	})
}
