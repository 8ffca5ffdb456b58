// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Link describes the interface of a pod.
type Link struct {
	ContainerID, IfName string
	NetNS               string
	// Addresses has one address of each family at most.
	Addresses  []netip.Addr
	MTU        int
	SysctlRoot string
}

// HostLink returns the name of the host end of a container's interface.
func HostLink(containerID, ifName string) string {
	return rtnl.NameOf(netfilter.OverlayPrefix, containerID, ifName)
}

// macs returns the MAC addresses of a pair. They follow from its name, so the node needs no ARP for
// the pod.
func macs(hostLink string) (host, pod net.HardwareAddr) {
	sum := sha256.Sum256([]byte(hostLink))
	return append(net.HardwareAddr{0x0a, 0xbe}, sum[:4]...), append(net.HardwareAddr{0x0a, 0xbf}, sum[4:8]...)
}

func (l Link) spec() (wire.Spec, wire.Wired) {
	name := HostLink(l.ContainerID, l.IfName)
	host, pod := macs(name)
	spec := wire.Spec{ContainerID: l.ContainerID, IfName: l.IfName, NetNS: l.NetNS, MAC: pod, MTU: l.MTU}
	for _, a := range l.Addresses {
		spec.Addresses = append(spec.Addresses, api.Address{Address: a, Subnet: rtnl.SinglePrefix(a)})
	}
	return spec, wire.Wired{HostLink: name, HostMAC: host, PodMAC: pod, MTU: l.MTU}
}

// Setup makes the pair and routes the addresses to the pod. It is idempotent; after an error the
// caller calls Remove.
func (l Link) Setup() (*current.Result, error) {
	spec, wired := l.spec()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	netns, err := rtnl.GetNS(l.NetNS)
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	host, err := rtnl.Pair{Host: wired.HostLink, Inside: l.IfName, HostMAC: wired.HostMAC, InsideMAC: wired.PodMAC, MTU: l.MTU}.Ensure(netns)
	if err != nil {
		return nil, err
	}
	if err := wire.New(l.SysctlRoot).ConfigurePod(spec, netns, wired); err != nil {
		return nil, err
	}
	alias := aliasOf(l.Addresses)
	if err := netlink.LinkSetAlias(host, alias); err != nil {
		return nil, fmt.Errorf("note the addresses of link %s: %w", wired.HostLink, err)
	}
	host.Attrs().Alias = alias
	k, err := readNode()
	if err != nil {
		return nil, err
	}
	if _, err := k.lead(host); err != nil {
		return nil, err
	}
	return wire.Result(spec, wired), nil
}

// Check returns wire.ErrNotWired if a piece of Setup is missing.
func (l Link) Check() error {
	spec, wired := l.spec()
	host, err := rtnl.LinkOrNil(wired.HostLink)
	if err != nil {
		return err
	}
	if host == nil || host.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%w: link %s is missing or down", wire.ErrNotWired, wired.HostLink)
	}
	k, err := readNode()
	if err != nil {
		return err
	}
	errs := []error{wire.New(l.SysctlRoot).CheckPod(spec, wired.HostMAC)}
	for _, a := range l.Addresses {
		if !k.leads(host, a) {
			errs = append(errs, fmt.Errorf("%w: the node does not lead %s to link %s", wire.ErrNotWired, a, wired.HostLink))
		}
	}
	return errors.Join(errs...)
}

// Remove deletes the interface of a container. It succeeds if there is none.
func Remove(containerID, ifName string) error {
	link, err := rtnl.LinkOrNil(HostLink(containerID, ifName))
	if err != nil || link == nil {
		return err
	}
	return rtnl.DeleteLink(link)
}

func Links() ([]netlink.Link, error) {
	all, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	var ours []netlink.Link
	for _, l := range all {
		if strings.HasPrefix(l.Attrs().Name, netfilter.OverlayPrefix) && l.Type() == "veth" {
			ours = append(ours, l)
		}
	}
	return ours, nil
}

// RemoveOthers deletes the interfaces of containers that are not among the valid ones.
func RemoveOthers(valid []types.GCAttachment) error {
	links, err := Links()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, v := range valid {
		keep[HostLink(v.ContainerID, v.IfName)] = true
	}
	var errs []error
	for _, l := range links {
		if !keep[l.Attrs().Name] {
			errs = append(errs, rtnl.DeleteLink(l))
		}
	}
	return errors.Join(errs...)
}
