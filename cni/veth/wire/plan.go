// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Spec describes an interface of a container and its addresses.
type Spec struct {
	ContainerID string
	IfName      string
	// NetNS is the path of the container's network namespace; empty if the namespace is gone.
	NetNS string
	// Uplink is the node's link to the pools' networks; addresses with a VLAN use
	// the VLAN link on top of it.
	Uplink string
	// Addresses are in the order of preference: the first of each family becomes
	// the pod's IP in Kubernetes.
	Addresses []api.Address
	MAC       net.HardwareAddr
	// Secondary says that the pod has its default routes on another interface. Only packets from
	// Addresses, and to their subnets, leave by this interface.
	Secondary bool
	// Routed says that the network routes packets for the addresses to this node without asking for
	// them: the node neither answers for them nor announces them.
	Routed bool
	// Standby says that the pod has yet to get its addresses: the pair is made, and the node carries
	// nothing.
	Standby bool
	// Advertised has the addresses that routing daemons announce from this node (api.Address.Routed),
	// each with the time since which the pod has it. nil leaves the table of advertised addresses
	// unchanged.
	Advertised map[netip.Addr]time.Time
	// MTU of the pair; 0 means the smallest MTU of the uplinks.
	MTU int
}

func (s Spec) HostLink() string { return HostLink(s.ContainerID, s.IfName) }

// answers reports whether the node answers for an address on its uplink.
func (s Spec) answers(a api.Address) bool { return !s.Routed && !a.Routed }

// Validate returns an error for a Spec that Setup refuses.
func (s Spec) Validate() error {
	if s.ContainerID == "" || s.IfName == "" {
		return errors.New("container ID and interface name must be given")
	}
	if err := utils.ValidateInterfaceName(s.IfName); err != nil {
		return fmt.Errorf("interface name %q: %w", s.IfName, err)
	}
	if len(s.Addresses) == 0 || len(s.Addresses) > MaxAddresses {
		return fmt.Errorf("%d addresses given, 1 to %d can be wired to one interface", len(s.Addresses), MaxAddresses)
	}
	seen := map[netip.Addr]bool{}
	for _, a := range s.Addresses {
		if err := validateAddress(a); err != nil {
			return err
		}
		if seen[a.Address] {
			return fmt.Errorf("address %s is given twice", a.Address)
		}
		seen[a.Address] = true
	}
	if len(s.MAC) != 6 || s.MAC[0]&1 != 0 {
		return fmt.Errorf("%q is not the MAC address of an interface", s.MAC)
	}
	return nil
}

func validateAddress(a api.Address) error {
	switch {
	case !a.Address.IsValid() || a.Address.Is4In6() || a.Address.Zone() != "":
		return fmt.Errorf("%q is not an address that can be wired", a.Address)
	case a.Address.IsLoopback() || a.Address.IsMulticast() || a.Address.IsUnspecified() || a.Address.IsLinkLocalUnicast():
		return fmt.Errorf("%s is not an address a pod can have", a.Address)
	case !a.Subnet.IsValid() || a.Subnet.Addr().Is4() != a.Address.Is4():
		return fmt.Errorf("address %s: subnet %q is not of its family", a.Address, a.Subnet)
	case !a.Subnet.Contains(a.Address):
		return fmt.Errorf("address %s is not in its subnet %s", a.Address, a.Subnet)
	case a.Gateway.IsValid() && a.Gateway.Is4() != a.Address.Is4():
		return fmt.Errorf("address %s: gateway %s is not of its family", a.Address, a.Gateway)
	case a.VLAN < 0 || a.VLAN > 4094:
		return fmt.Errorf("address %s: VLAN %d is not in 0 to 4094", a.Address, a.VLAN)
	case a.Routed && (a.Gateway.IsValid() || a.VLAN != 0):
		return fmt.Errorf("address %s: routers lead to its node, so it has neither a gateway nor a VLAN", a.Address)
	}
	return nil
}

// hostPlan describes the node's side of an address.
type hostPlan struct {
	addr     netip.Addr
	podNeigh netlink.Neigh
	// gateway is for guests behind a bridge in the pod.
	gateway proxy
	// routed says that the address has no network of its own: the pod's packets leave by the node's
	// routes.
	routed  bool
	network poolNetwork
	// hostRoutes lead to the pod: a route that all programs see, and a route that comes before the
	// rules of other programs.
	hostRoutes []netlink.Route
	proxy      proxy
}

func networkOf(a api.Address, uplink *netlink.LinkAttrs) poolNetwork {
	return poolNetwork{link: uplink.Name, index: uplink.Index, subnet: a.Subnet.Masked(), gateway: a.Gateway}
}

// planHost computes the node's side of an address. host is a link index, mac is the pod's MAC.
func planHost(a api.Address, host int, uplink *netlink.LinkAttrs, mac net.HardwareAddr) hostPlan {
	plan := hostPlan{
		addr:     a.Address,
		routed:   a.Routed,
		podNeigh: rtnl.Neigh(host, a.Address, mac),
		gateway:  proxy{addr: podGateway(a.Address), link: host},
		network:  networkOf(a, uplink),
		proxy:    proxy{addr: a.Address, link: uplink.Index},
	}
	for _, table := range []int{podsTable, unix.RT_TABLE_MAIN} {
		plan.hostRoutes = append(plan.hostRoutes, hostRoute(a.Address, host, table))
	}
	return plan
}

func hostRoute(addr netip.Addr, link, table int) netlink.Route {
	family := rtnl.FamilyOf(addr)
	return netlink.Route{LinkIndex: link, Dst: rtnl.IPNet(rtnl.SinglePrefix(addr)), Scope: rtnl.LinkScope(family), Protocol: rtnl.Protocol, Table: table, Family: family}
}

type podRoute struct {
	Destination netip.Prefix
	Gateway     netip.Addr
	// Source is the source address of the route; the zero Addr if the pod has only one address of the
	// family.
	Source netip.Addr
}

// podRoutes returns the routes of a pod with these addresses, for each family the default route
// first. The pod sends to each of its subnets from its first address of the subnet. It sends to
// other networks from the first address of the family with a way there, by a gateway or by the
// node's routes, or else from the first address.
func podRoutes(addrs []api.Address) []podRoute {
	var routes []podRoute
	for _, is4 := range []bool{true, false} {
		routes = append(routes, familyRoutes(slices.DeleteFunc(slices.Clone(addrs), func(a api.Address) bool { return a.Address.Is4() != is4 }))...)
	}
	return routes
}

func familyRoutes(addrs []api.Address) []podRoute {
	if len(addrs) == 0 {
		return nil
	}
	first := max(0, slices.IndexFunc(addrs, func(a api.Address) bool { return a.Gateway.IsValid() || a.Routed }))
	way := podRoute{Destination: rtnl.AnyPrefix(addrs[0].Address), Gateway: podGateway(addrs[0].Address)}
	if len(addrs) == 1 {
		return []podRoute{way}
	}
	way.Source = addrs[first].Address
	return append([]podRoute{way}, subnetRoutes(addrs)...)
}

func subnetRoutes(addrs []api.Address) []podRoute {
	var routes []podRoute
	seen := map[netip.Prefix]bool{}
	for _, a := range addrs {
		subnet := a.Subnet.Masked()
		// The default route covers a subnet of length 0.
		if seen[subnet] || subnet.Bits() == 0 {
			continue
		}
		seen[subnet] = true
		routes = append(routes, podRoute{Destination: subnet, Gateway: podGateway(a.Address), Source: a.Address})
	}
	return routes
}

// Plan describes addresses of a link, and neighbours, routes and rules of its network namespace.
type Plan struct {
	Addrs  []netlink.Addr
	Neighs []netlink.Neigh
	// Routes are in the order in which they need each other.
	Routes []netlink.Route
	Rules  []netlink.Rule
}

// Apply makes missing pieces, in the namespace of the calling thread. link gets the addresses.
func (p *Plan) Apply(link netlink.Link) error {
	for _, addr := range p.Addrs {
		if err := netlink.AddrReplace(link, &addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", addr.IPNet, link.Attrs().Name, err)
		}
	}
	for _, neigh := range p.Neighs {
		if err := netlink.NeighSet(&neigh); err != nil {
			return fmt.Errorf("add neighbour %s on link %d: %w", neigh.IP, neigh.LinkIndex, err)
		}
	}
	for _, route := range p.Routes {
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("add route %s on link %d to table %d: %w", route.Dst, route.LinkIndex, route.Table, err)
		}
	}
	for _, rule := range p.Rules {
		if err := rtnl.AddRule(rule); err != nil {
			return err
		}
	}
	return nil
}

// Check returns ErrNotWired for each piece that is missing.
func (p *Plan) Check(link netlink.Link) error {
	var errs []error
	if len(p.Addrs) > 0 {
		have, err := rtnl.Addresses(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, want := range p.Addrs {
			if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(want.IP) }) {
				errs = append(errs, fmt.Errorf("%w: address %s is missing on link %s", ErrNotWired, want.IP, link.Attrs().Name))
			}
		}
	}
	s := newSurvey()
	for _, neigh := range p.Neighs {
		errs = append(errs, s.checkNeighbour(neigh))
	}
	for _, route := range p.Routes {
		errs = append(errs, checkRoute(route))
	}
	for _, rule := range p.Rules {
		errs = append(errs, checkRule(rule))
	}
	return errors.Join(errs...)
}

// tableSecondary is the routing table of a secondary interface in the pod's namespace. A
// pod has one interface of this kind.
const tableSecondary = rtnl.Protocol

// PodAddress returns an address of a pod's interface; its prefix is the subnet on the link.
func PodAddress(prefix netip.Prefix) netlink.Addr {
	addr := netlink.Addr{IPNet: rtnl.IPNet(prefix)}
	if prefix.Addr().Is6() {
		// The FloatingIP proves that no other pod has the address, so duplicate
		// address detection would only delay the pod by a second.
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// planPod computes the pod's side. link is the index of its interface, hostMAC is the
// MAC of the host end.
func planPod(spec Spec, link int, hostMAC net.HardwareAddr) Plan {
	var plan Plan
	for _, a := range spec.Addresses {
		plan.Addrs = append(plan.Addrs, PodAddress(rtnl.SinglePrefix(a.Address)))
		if spec.Secondary {
			rule := rtnl.NewRule(rtnl.FamilyOf(a.Address), prioritySecondary, tableSecondary)
			rule.Src = rtnl.IPNet(rtnl.SinglePrefix(a.Address))
			plan.Rules = append(plan.Rules, rule)
		}
	}
	defaults := unix.RT_TABLE_MAIN
	if spec.Secondary {
		defaults = tableSecondary
	}
	known := map[netip.Addr]bool{}
	for _, way := range podRoutes(spec.Addresses) {
		family, gw := rtnl.FamilyOf(way.Gateway), way.Gateway
		if !known[gw] {
			known[gw] = true
			plan.Neighs = append(plan.Neighs, rtnl.Neigh(link, gw, hostMAC))
			// Another interface may have a gateway with the same address, so a secondary interface has no
			// route to its gateway in the main table.
			plan.Routes = append(plan.Routes, netlink.Route{
				LinkIndex: link, Dst: rtnl.IPNet(rtnl.SinglePrefix(gw)), Scope: rtnl.LinkScope(family), Family: family, Table: defaults,
			})
		}
		plan.Routes = append(plan.Routes, netlink.Route{
			LinkIndex: link, Dst: rtnl.IPNet(way.Destination), Gw: gw.AsSlice(), Src: way.Source.AsSlice(), Flags: onlink(spec.Secondary),
			Family: family, Table: defaults,
		})
	}
	if spec.Secondary {
		for _, way := range subnetRoutes(spec.Addresses) {
			plan.Routes = append(plan.Routes, netlink.Route{
				LinkIndex: link, Dst: rtnl.IPNet(way.Destination), Gw: way.Gateway.AsSlice(), Src: way.Source.AsSlice(), Flags: onlink(true),
				Family: rtnl.FamilyOf(way.Gateway), Table: unix.RT_TABLE_MAIN,
			})
		}
	}
	return plan
}

// prioritySecondary is the rule in the pod that sends packets from a floating IP to tableSecondary;
// it comes before the kernel's main rule.
const prioritySecondary = 32301

// onlink returns the flag for a route whose gateway has no route in the main table.
func onlink(needed bool) int {
	if needed {
		return int(netlink.FLAG_ONLINK)
	}
	return 0
}
