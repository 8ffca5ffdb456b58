// SPDX-License-Identifier: Apache-2.0

package place

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	cnins "github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrNoNamespace is returned by Find if the pod's network namespace is gone.
var ErrNoNamespace = errors.New("the pod has no network namespace")

// Place is where the packets of a pod's interfaces can be seen. An interface in none of the
// lists is seen on the node.
type Place struct {
	// Direct are interfaces of the pod that are seen in its namespace, in order.
	Direct []string
	// Addresses has the addresses of the direct interfaces, each with its interface.
	Addresses map[netip.Addr]string
	// Ways are the node's links by which the packets of its other interfaces come and go, in order.
	Ways []string
	// ByWire are the addresses of direct interfaces, in order, that the node's own packets reach only
	// through the network: they look like packets of any host that forges the node's address. The node
	// reaches other addresses by an interface of the pod that is not direct.
	ByWire []netip.Addr
	// Bridges are the bridges of the node to which other interfaces of the pod are connected, in
	// order. Bridged are the addresses of these interfaces, in order, including link-local addresses
	// and addresses that a router announced: the ports of a bridge reach each other by them.
	Bridges []string
	Bridged []netip.Addr
	// Ports are the ports of Bridges, in order of their names.
	Ports []Port
	// Unseen are interfaces of the pod that are seen nowhere, with the reason.
	Unseen map[string]Reason
}

// Reason says why an interface is seen nowhere, and what to do.
type Reason string

// The reasons.
const (
	L3S      Reason = "the kernel delivers packets to ipvlan links of mode l3s where nothing sees them; use ipvlanMode l2 or l3, or another network type"
	Tap      Reason = "a program in the pod reads the packets of macvtap and ipvtap links itself; use another network type"
	Enslaved Reason = "it is a port of another interface in the pod, which passes packets on where nothing sees them; use a network type for which the node routes"
)

// Port is the node's end of an interface that is a port of a bridge, with the interface's
// addresses.
type Port struct {
	Name      string
	Addresses []netip.Addr
}

// Find returns the place of the pod whose network namespace has the path. names are the known
// interfaces of the pod; others count if they lead out of the namespace. It changes nothing. It is
// called in the namespace of the node and blocks for the kernel.
func Find(netns string, names []string) (Place, error) {
	inside, err := linksOf(netns, names)
	if err != nil {
		return Place{}, err
	}
	var p Place
	// ways are the node's own links that lead to the pod.
	ways := map[int]bool{}
	for _, l := range inside.links {
		name := l.Attrs().Name
		switch s, err := inside.look(l); {
		case err != nil:
			return Place{}, err
		case s.why != "":
			if p.Unseen == nil {
				p.Unseen = map[string]Reason{}
			}
			p.Unseen[name] = s.why
		case s.way != nil:
			p.Ways = append(p.Ways, s.way.Attrs().Name)
			if ways[s.way.Attrs().Index] = true; s.port != "" {
				p.Bridges = append(p.Bridges, s.way.Attrs().Name)
				p.Bridged = append(p.Bridged, l.addresses...)
				p.Ports = append(p.Ports, Port{Name: s.port, Addresses: l.addresses})
			}
		default:
			p.Direct = append(p.Direct, name)
			for _, a := range l.addresses {
				if p.Addresses == nil {
					p.Addresses = map[netip.Addr]string{}
				}
				p.Addresses[a] = name
			}
		}
	}
	for a := range p.Addresses {
		if isByWire, err := byWire(a, ways); err != nil {
			return Place{}, err
		} else if isByWire {
			p.ByWire = append(p.ByWire, a)
		}
	}
	slices.Sort(p.Direct)
	slices.Sort(p.Ways)
	slices.Sort(p.Bridges)
	p.Ways, p.Bridges = slices.Compact(p.Ways), slices.Compact(p.Bridges)
	slices.SortFunc(p.ByWire, netip.Addr.Compare)
	slices.SortFunc(p.Bridged, netip.Addr.Compare)
	slices.SortFunc(p.Ports, func(a, b Port) int { return strings.Compare(a.Name, b.Name) })
	return p, nil
}

// byWire reports whether the node reaches an address of a direct interface otherwise than by its
// own links to the pod.
func byWire(a netip.Addr, ways map[int]bool) (bool, error) {
	if a.IsLinkLocalUnicast() || a.IsMulticast() {
		// The node does not use such addresses to reach a pod.
		return false, nil
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		// The node has no route.
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find the node's route to %s: %w", a, err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return !ways[r.LinkIndex] }), nil
}

// link is an interface of a pod. isPort says that it is a port of another link there, except a VRF.
type link struct {
	netlink.Link
	addresses []netip.Addr
	isPort    bool
}

type namespace struct {
	links []link
	// id is the node's number for the namespace, -1 if there is none.
	id int
}

func linksOf(path string, names []string) (namespace, error) {
	netns, err := ns.GetNS(path)
	var missing ns.NSPathNotExistErr
	if errors.As(err, &missing) {
		return namespace{}, fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	if err != nil {
		return namespace{}, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer netns.Close()
	// If a path leads to the node's namespace, its container is gone.
	if isNode, err := IsNode(path); isNode || err != nil {
		return namespace{}, cmp.Or(err, fmt.Errorf("%w: %s leads to the node's network namespace", ErrNoNamespace, path))
	}
	var n namespace
	if n.id, err = netlink.GetNetNsIdByFd(int(netns.Fd())); err != nil {
		return namespace{}, fmt.Errorf("find the number of network namespace %s: %w", path, err)
	}
	err = netns.Do(func(ns.NetNS) error {
		all, err := netlinksafe.LinkList()
		if err != nil {
			return err
		}
		for _, l := range all {
			if !isOfPlugin(l, names) {
				continue
			}
			of := l.Attrs().MasterIndex
			isPort := of != 0 && !slices.ContainsFunc(all, func(m netlink.Link) bool { return m.Attrs().Index == of && m.Type() == "vrf" })
			addrs, err := linkAddresses(l)
			if err != nil {
				return err
			}
			// A link that is down but has addresses may be set up again.
			if l.Attrs().Flags&net.FlagUp != 0 || len(addrs) > 0 {
				n.links = append(n.links, link{l, addrs, isPort})
			}
		}
		return nil
	})
	if err != nil {
		return namespace{}, fmt.Errorf("list the links in %s: %w", path, err)
	}
	return n, nil
}

// IsNode reports whether a path leads to the network namespace of the node.
func IsNode(netns string) (bool, error) {
	is, err := cnins.CheckNetNS(netns)
	if err != nil {
		return false, fmt.Errorf("compare the network namespace %s with the node's: %w", netns, err)
	}
	return is, nil
}

func isOfPlugin(l netlink.Link, names []string) bool {
	attrs := l.Attrs()
	if attrs.Flags&net.FlagLoopback != 0 {
		return false
	}
	if slices.Contains(names, attrs.Name) {
		return true
	}
	switch l.Type() {
	case "veth", "macvlan", "macvtap", "ipvlan", "ipvtap", "vlan":
		// Without a number the other end or the parent is in the pod, too.
		return attrs.NetNsID >= 0
	case "device", "ipoib":
		return true
	default:
		return false
	}
}

func linkAddresses(l netlink.Link) ([]netip.Addr, error) {
	found, err := netlinksafe.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.IsLoopback() {
			all = append(all, addr.Unmap())
		}
	}
	return all, nil
}

// sight is where the packets of an interface can be seen: in the pod's namespace, unless a field
// says otherwise.
type sight struct {
	// why is the reason if the packets are seen nowhere.
	why Reason
	// way is the node's link to the interface, if the packets are seen on the node. If way is a
	// bridge, port is the bridge port of the packets.
	way  netlink.Link
	port string
}

// look returns where the packets of a link of the namespace can be seen. Packets of a port of a
// bridge in the namespace, as virtual machines use, do not pass the hooks there.
func (n namespace) look(l link) (sight, error) {
	s, err := n.seen(l.Link)
	if err == nil && s == (sight{}) && l.isPort {
		s = sight{why: Enslaved}
	}
	return s, err
}

// seen is look for a link that is no port in the namespace.
func (n namespace) seen(l netlink.Link) (sight, error) {
	switch l.Type() {
	case "veth":
	case "ipvlan":
		if v, ok := l.(*netlink.IPVlan); ok && v.Mode == netlink.IPVLAN_MODE_L3S {
			return sight{why: L3S}, nil
		}
		return sight{}, nil
	case "macvtap", "ipvtap":
		return sight{why: Tap}, nil
	default:
		return sight{}, nil
	}
	end, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
	if rtnl.LinkNotFound(err) {
		return sight{}, nil
	}
	if err != nil {
		return sight{}, fmt.Errorf("find the node's end of %s: %w", l.Attrs().Name, err)
	}
	// Each namespace has its own indexes, and the other end may be in a third namespace.
	if !rtnl.IsPair(l, end) || n.id < 0 || end.Attrs().NetNsID != n.id {
		return sight{}, nil
	}
	if strings.HasPrefix(end.Attrs().Name, netfilter.PortPrefix) {
		return sight{}, nil
	}
	if end.Attrs().MasterIndex == 0 {
		return sight{way: end}, nil
	}
	master, err := netlink.LinkByIndex(end.Attrs().MasterIndex)
	if err != nil {
		return sight{}, fmt.Errorf("find the bridge of %s: %w", end.Attrs().Name, err)
	}
	switch master.Type() {
	case "vrf":
		return sight{way: end}, nil
	case "bridge":
		addrs, err := linkAddresses(master)
		if err != nil {
			return sight{}, fmt.Errorf("list the addresses of bridge %s: %w", master.Attrs().Name, err)
		}
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsLinkLocalUnicast() }) {
			return sight{way: master, port: end.Attrs().Name}, nil
		}
	}
	return sight{}, nil
}

// dnsLink carries the addresses of NodeLocal DNSCache.
const dnsLink = "nodelocaldns"

// NodeAddresses lists the addresses of the node itself, in order and without addresses of Services,
// and the addresses of its DNS cache, if it has one. It blocks for the kernel.
func NodeAddresses() (own, dns []netip.Addr, err error) {
	all, err := rtnl.NodeAddresses()
	if err != nil {
		return nil, nil, fmt.Errorf("find the addresses of the node: %w", err)
	}
	for _, a := range all {
		if a.Link == dnsLink {
			dns = append(dns, a.Addr)
		}
		if !a.IsLinkLocalUnicast() {
			own = append(own, a.Addr)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	slices.SortFunc(dns, netip.Addr.Compare)
	return own, dns, nil
}
