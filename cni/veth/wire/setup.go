// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"net"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/settings"
)

// Wirer changes the kernel in the network namespace of its caller's thread. Calls for
// different addresses may run in parallel.
type Wirer struct {
	// SysctlRoot is the path of the node's /proc/sys.
	SysctlRoot string
	// Settings, if given, remembers the node's settings that the Wirer changes.
	Settings *settings.Journal

	firewall netfilter.Firewall

	// routing serializes changes of rules and routes: addresses share some of them, which go with the
	// last address.
	routing sync.Mutex
}

// New returns a Wirer; an empty sysctlRoot means /proc/sys.
func New(sysctlRoot string) *Wirer {
	if sysctlRoot == "" {
		sysctlRoot = "/proc/sys"
	}
	return &Wirer{SysctlRoot: sysctlRoot}
}

// Wired describes the pair that Setup made or found.
type Wired struct {
	HostLink string
	HostMAC  net.HardwareAddr
	PodMAC   net.HardwareAddr
	MTU      int
}

// Setup makes the pair and routes the addresses to the pod. It is idempotent: a second call makes
// the missing pieces. After an error the caller calls Teardown.
func (w *Wirer) Setup(spec Spec) (Wired, error) {
	if err := spec.Validate(); err != nil {
		return Wired{}, err
	}
	uplinks, mtu, err := resolveUplinks(spec)
	if err != nil {
		return Wired{}, err
	}
	wired := Wired{HostLink: spec.HostLink(), HostMAC: hostMAC(spec.MAC), PodMAC: spec.MAC, MTU: mtu}
	netns, err := rtnl.GetNS(spec.NetNS)
	if err != nil {
		return Wired{}, err
	}
	defer netns.Close()

	host, err := rtnl.Pair{
		Host: wired.HostLink, Inside: spec.IfName, HostMAC: wired.HostMAC, InsideMAC: wired.PodMAC, KeepMAC: true, MTU: wired.MTU,
	}.Ensure(netns)
	if err != nil {
		return Wired{}, err
	}
	// An existing pair keeps its MAC, which its pod knows.
	wired.HostMAC = host.Attrs().HardwareAddr
	fault.Point("veth/pair")
	if err := w.ConfigurePod(spec, netns, wired); err != nil {
		return Wired{}, err
	}
	fault.Point("veth/pod")
	return wired, w.setupNode(spec, host, uplinks)
}

// Repair makes the missing pieces of the node's side. If the pair is missing, it makes the pair and
// everything that belongs to it. The pod's changes of its own side stay.
func (w *Wirer) Repair(spec Spec) error {
	host, err := hostEnd(spec)
	if err != nil {
		return err
	}
	if host == nil {
		_, err := w.Setup(spec)
		return err
	}
	uplinks, _, err := resolveUplinks(spec)
	if err != nil {
		return err
	}
	return w.setupNode(spec, host, uplinks)
}

// Filter restores lost rules of package netfilter for the addresses that the node routes to pods.
func (w *Wirer) Filter() error { return netfilter.Restore(w.Sources) }

func (w *Wirer) setupNode(spec Spec, host netlink.Link, uplinks []netlink.Link) error {
	// The link's packets are filtered before it is up.
	if err := netfilter.Allow(w.Sources, sourcesOf(spec, uplinks)...); err != nil {
		return err
	}
	fault.Point("veth/source")
	end, err := spec.NodeEnd()
	if err != nil {
		return err
	}
	stale, err := end.Add(host)
	if err != nil {
		return err
	}
	if err := DeleteAddresses(host, stale); err != nil {
		return err
	}
	for i, a := range spec.Addresses {
		if err := w.setupHost(spec, a, host, uplinks[i]); err != nil {
			return err
		}
	}
	return w.Advertise(spec)
}

// resolveUplinks returns the link of each address and the MTU for the pair.
func resolveUplinks(spec Spec) ([]netlink.Link, int, error) {
	links := make([]netlink.Link, 0, len(spec.Addresses))
	mtu := spec.MTU
	for _, a := range spec.Addresses {
		link, err := uplinkOf(spec.Uplink, a.VLAN)
		if err != nil {
			return nil, 0, fmt.Errorf("address %s: %w", a.Address, err)
		}
		if err := CheckUp(link); err != nil {
			return nil, 0, fmt.Errorf("address %s: %w", a.Address, err)
		}
		if m := link.Attrs().MTU; spec.MTU == 0 && (mtu == 0 || m < mtu) {
			mtu = m
		}
		links = append(links, link)
	}
	return links, mtu, nil
}

// ConfigurePod makes the pod's side of a pair, which package podlink makes, too.
func (w *Wirer) ConfigurePod(spec Spec, netns ns.NetNS, wired Wired) error {
	err := netns.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(spec.IfName)
		if err != nil {
			return fmt.Errorf("find link %s: %w", spec.IfName, err)
		}
		if err := w.allowIPv6(spec); err != nil {
			return err
		}
		if err := rtnl.SetUp(link); err != nil {
			return err
		}
		if !bytes.Equal(link.Attrs().HardwareAddr, wired.PodMAC) {
			if err := netlink.LinkSetHardwareAddr(link, wired.PodMAC); err != nil {
				return fmt.Errorf("set the MAC address of link %s to %s: %w", spec.IfName, wired.PodMAC, err)
			}
		}
		plan := planPod(spec, link.Attrs().Index, wired.HostMAC)
		return plan.Apply(link)
	})
	if err != nil {
		return fmt.Errorf("configure %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

// allowIPv6 turns on IPv6, which some runtimes turn off in a new namespace.
func (w *Wirer) allowIPv6(spec Spec) error {
	for _, a := range spec.Addresses {
		if a.Address.Is6() {
			return w.SetSysctl("net/ipv6/conf/"+spec.IfName+"/disable_ipv6", "0")
		}
	}
	return nil
}

// setupHost makes the node's side of an address. Its last step makes the node answer for the
// address, unless routers route to it or the uplink has no carrier.
func (w *Wirer) setupHost(spec Spec, a api.Address, host, uplink netlink.Link) error {
	if err := NotOnNode(a); err != nil {
		return err
	}
	plan := planHost(a, host.Attrs().Index, uplink.Attrs(), spec.MAC)
	if err := w.readyLinks(host, uplink, plan); err != nil {
		return err
	}
	fault.Point("veth/links")
	if err := netlink.NeighSet(&plan.podNeigh); err != nil {
		return fmt.Errorf("add neighbour %s on %s: %w", a.Address, host.Attrs().Name, err)
	}
	if err := proxyAtOnce(host, rtnl.FamilyOf(a.Address)); err != nil {
		return err
	}
	if err := plan.gateway.add(); err != nil {
		return err
	}
	fault.Point("veth/gateway")
	if spec.Standby {
		return nil
	}
	if err := w.setupRouting(plan); err != nil {
		return err
	}
	if !spec.answers(a) {
		return nil
	}
	if err := w.solicited(uplink, rtnl.FamilyOf(a.Address)); err != nil {
		return err
	}
	if err := plan.proxy.answer(); err != nil {
		return err
	}
	fault.Point("veth/proxy")
	return nil
}

func (w *Wirer) setupRouting(plan hostPlan) error {
	w.routing.Lock()
	defer w.routing.Unlock()
	k, err := readRouting(rtnl.FamilyOf(plan.addr))
	if err != nil {
		return err
	}
	if err := k.setup(plan); err != nil {
		return err
	}
	return k.sweep()
}

func (w *Wirer) readyLinks(host, uplink netlink.Link, plan hostPlan) error {
	family := rtnl.FamilyOf(plan.addr)
	if err := w.forward(host, uplink, family); err != nil {
		return err
	}
	if plan.routed {
		return rtnl.SetUp(host)
	}
	if err := w.acceptReversePath(uplink, plan.network); err != nil {
		return err
	}
	if err := w.answerAtOnce(uplink, family); err != nil {
		return err
	}
	return rtnl.SetUp(host)
}
