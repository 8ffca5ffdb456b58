// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/api"
)

// Spec says which interface of which container carries which addresses.
type Spec struct {
	ContainerID string
	IfName      string
	// NetNS is the path of the container's network namespace; empty where it is
	// gone.
	NetNS string
	// Uplink is the node's link to the network of the pools; addresses with a
	// VLAN use the VLAN link on top of it.
	Uplink    string
	Addresses []api.Address
	// MTU of the pair; 0 takes the uplink's.
	MTU int
}

// HostLink returns the name of the host end.
func (s Spec) HostLink() string { return HostLink(s.ContainerID, s.IfName) }

// Validate says what a caller got wrong, before the kernel is touched.
func (s Spec) Validate() error {
	if s.ContainerID == "" || s.IfName == "" {
		return errors.New("container ID and interface name must be given")
	}
	if len(s.IfName) > 15 || strings.ContainsAny(s.IfName, "/: \t\n") {
		return fmt.Errorf("interface name %q is not one the kernel accepts", s.IfName)
	}
	if len(s.Addresses) == 0 || len(s.Addresses) > tablesPerLink {
		return fmt.Errorf("%d addresses given, 1 to %d can be wired to one interface", len(s.Addresses), tablesPerLink)
	}
	for _, a := range s.Addresses {
		if err := validateAddress(a); err != nil {
			return err
		}
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
	}
	return nil
}

// hostPlan is the node's side of one address, as values that are compared,
// applied and removed.
type hostPlan struct {
	tableID   int
	podNeigh  netlink.Neigh
	table     []netlink.Route
	rules     []netlink.Rule
	hostRoute netlink.Route
	proxy     proxy
}

// planHost computes the node's side of the address at position. host and uplink
// are link indexes, mac is the pod's.
func planHost(a api.Address, position, host, uplink int, mac net.HardwareAddr) (hostPlan, error) {
	table, ok := tableOf(host, position)
	if !ok {
		return hostPlan{}, fmt.Errorf("link index %d is too large for a routing table of its own", host)
	}
	family, single := familyOf(a.Address), singlePrefix(a.Address)
	plan := hostPlan{
		tableID:  table,
		podNeigh: netlink.Neigh{LinkIndex: host, Family: family, State: netlink.NUD_PERMANENT, IP: a.Address.AsSlice(), HardwareAddr: mac},
		rules:    []netlink.Rule{mainRule(family), podRule(single, table)},
		hostRoute: netlink.Route{
			LinkIndex: host, Dst: IPNet(single), Scope: linkScope(family), Protocol: Protocol, Table: unix.RT_TABLE_MAIN, Family: family,
		},
		proxy: proxy{addr: a.Address, link: uplink},
	}
	plan.table = append(plan.table, netlink.Route{
		LinkIndex: uplink, Dst: IPNet(a.Subnet.Masked()), Scope: linkScope(family), Protocol: Protocol, Table: table, Family: family,
	})
	if a.Gateway.IsValid() {
		plan.table = append(plan.table, netlink.Route{
			LinkIndex: uplink, Dst: IPNet(anyPrefix(a.Address)), Gw: a.Gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Protocol: Protocol, Table: table, Family: family,
		})
	}
	return plan, nil
}

// podPlan is the pod's side of one address.
type podPlan struct {
	addr    netlink.Addr
	neigh   netlink.Neigh
	gateway netlink.Route
	byRoute netlink.Route
}

func planPod(addr netip.Addr, link int, hostMAC net.HardwareAddr) podPlan {
	family, gw := familyOf(addr), PodGateway(addr)
	plan := podPlan{
		addr:    netlink.Addr{IPNet: IPNet(singlePrefix(addr))},
		neigh:   netlink.Neigh{LinkIndex: link, Family: family, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: hostMAC},
		gateway: netlink.Route{LinkIndex: link, Dst: IPNet(singlePrefix(gw)), Scope: linkScope(family), Family: family, Table: unix.RT_TABLE_MAIN},
		byRoute: netlink.Route{LinkIndex: link, Dst: IPNet(anyPrefix(addr)), Gw: gw.AsSlice(), Family: family, Table: unix.RT_TABLE_MAIN},
	}
	if addr.Is6() {
		// The API server saw to it that nobody else has the address; waiting a
		// second for an answer that never comes would only delay the pod.
		plan.addr.Flags = unix.IFA_F_NODAD
	}
	return plan
}

func mainRule(family int) netlink.Rule {
	rule := *netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = family, PriorityMain, unix.RT_TABLE_MAIN, Protocol
	rule.SuppressPrefixlen = 0
	return rule
}

func podRule(single netip.Prefix, table int) netlink.Rule {
	rule := *netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = familyOf(single.Addr()), PriorityPod, table, Protocol
	rule.Src = IPNet(single)
	return rule
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// linkScope is what "scope link" is per family: IPv6 routes have no scope.
func linkScope(family int) netlink.Scope {
	if family == unix.AF_INET {
		return netlink.SCOPE_LINK
	}
	return netlink.SCOPE_UNIVERSE
}

func singlePrefix(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

func anyPrefix(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// IPNet converts a prefix for packages that know net only.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
