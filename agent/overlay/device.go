// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Flannel's names of VTEPs and its defaults, on which nodes with flannel and nodes with this
// overlay must agree.
const (
	vni   = 1
	port  = 8472
	link4 = "flannel.1"
	link6 = "flannel-v6.1"
)

// alias marks VTEPs that this package made.
const alias = "berth overlay"

const (
	// vxlanOverhead counts the headers of Ethernet, VXLAN, UDP and IPv4. An IPv6 header is
	// larger by moreOverhead6.
	vxlanOverhead = 50
	moreOverhead6 = 20
)

// local describes this node and its uplink.
type local struct {
	node    *corev1.Node
	subnets []netip.Prefix
	// uplink leads to the other nodes.
	uplink netlink.Link
	// public4 and public6 are the node's addresses on the uplink, one for each family of
	// subnets.
	public4, public6 netip.Addr
}

func (l local) has(family4 bool) bool {
	return slices.ContainsFunc(l.subnets, func(s netip.Prefix) bool { return s.Addr().Is4() == family4 })
}

// public returns the node's address on the uplink in the family of like.
func (l local) public(like netip.Addr) netip.Addr {
	if like.Is4() {
		return l.public4
	}
	return l.public6
}

// mtu returns the MTU of pods and VTEPs.
func (l local) mtu(b Backend) int {
	mtu := l.uplink.Attrs().MTU
	if b == HostGW {
		return mtu
	}
	if l.has(false) {
		mtu -= moreOverhead6
	}
	return mtu - vxlanOverhead
}

// vtep makes or fixes the VTEP of a subnet, and returns it. Other nodes know the MAC of a VTEP, so
// a fixed VTEP keeps its MAC, and a new VTEP gets the published MAC.
func (l local) vtep(subnet netip.Prefix) (v *netlink.Vxlan, changed bool, err error) {
	want := l.wanted(subnet)
	link, err := rtnl.LinkOrNil(want.Name)
	if err != nil {
		return nil, false, err
	}
	v, ok := link.(*netlink.Vxlan)
	if !ok || !sameTunnel(v, want) {
		if v, err = replaceVTEP(link, want); err != nil {
			return nil, true, err
		}
		changed = true
	}
	fixed, err := fixVTEP(v, want)
	if err != nil {
		return nil, true, err
	}
	assigned, err := assign(v, subnet.Addr())
	if err != nil {
		return nil, true, err
	}
	if !isUp(v) {
		return v, true, rtnl.SetUp(v)
	}
	return v, changed || fixed || assigned, nil
}

// wanted describes the VTEP of a subnet.
func (l local) wanted(subnet netip.Prefix) *netlink.Vxlan {
	name, data := link4, annotationData4
	if subnet.Addr().Is6() {
		name, data = link6, annotationData6
	}
	mac, err := vtepMAC(l.node.Annotations[data])
	if err != nil { // nothing was published, or something of another kind
		mac = randomMAC()
	}
	return &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, Alias: alias, HardwareAddr: mac, MTU: l.mtu(VXLAN)},
		VxlanId:   vni, Port: port, VtepDevIndex: l.uplink.Attrs().Index, SrcAddr: l.public(subnet.Addr()).AsSlice(),
	}
}

// sameTunnel compares the immutable properties of VXLAN links.
func sameTunnel(a, b *netlink.Vxlan) bool {
	return a.VxlanId == b.VxlanId && a.Port == b.Port && a.VtepDevIndex == b.VtepDevIndex && a.SrcAddr.Equal(b.SrcAddr) &&
		a.Group.Equal(b.Group) && a.Learning == b.Learning && a.L2miss == b.L2miss && a.GBP == b.GBP
}

// replaceVTEP makes a VTEP in place of a link, which may be nil.
func replaceVTEP(old netlink.Link, want *netlink.Vxlan) (*netlink.Vxlan, error) {
	if old != nil {
		if err := rtnl.DeleteLink(old); err != nil {
			return nil, err
		}
	}
	if err := netlink.LinkAdd(want); err != nil {
		return nil, fmt.Errorf("make link %s: %w", want.Name, err)
	}
	link, err := netlinksafe.LinkByName(want.Name)
	if err != nil {
		return nil, fmt.Errorf("find link %s after it was made: %w", want.Name, err)
	}
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("link %s is a %s link at once after it was made as vxlan", want.Name, link.Type())
	}
	return v, nil
}

// fixVTEP sets the MTU of a VTEP, and its alias, which the kernel does not accept for a new link.
func fixVTEP(v, want *netlink.Vxlan) (changed bool, err error) {
	if v.Alias != want.Alias {
		if err := netlink.LinkSetAlias(v, want.Alias); err != nil {
			return true, fmt.Errorf("name link %s: %w", v.Name, err)
		}
		changed = true
	}
	if v.MTU != want.MTU {
		if err := netlink.LinkSetMTU(v, want.MTU); err != nil {
			return true, fmt.Errorf("set the MTU of link %s: %w", v.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// assign makes addr the only address of its family on a link, apart from link-local addresses. It
// is the source of packets from the node to pods of other nodes. Its prefix has only this address,
// so that the kernel makes no broadcast route.
func assign(link netlink.Link, addr netip.Addr) (changed bool, err error) {
	name := link.Attrs().Name
	have, err := rtnl.Addresses(link, rtnl.FamilyOf(addr))
	if err != nil {
		return false, err
	}
	want := rtnl.SinglePrefix(addr)
	found := false
	for _, a := range have {
		if rtnl.PrefixOf(a.IPNet) == want {
			found = true
			continue
		}
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
			return true, fmt.Errorf("remove address %s from link %s: %w", a.IPNet, name, err)
		}
		changed = true
	}
	if found {
		return changed, nil
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: rtnl.IPNet(want)}); err != nil {
		return true, fmt.Errorf("add address %s to link %s: %w", want, name, err)
	}
	return true, nil
}

// randomMAC returns a locally administered unicast MAC.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // it never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}

// refuseRouters keeps a VTEP from accepting router advertisements. If /proc/sys is not writable,
// nothing is lost: a node that forwards accepts none anyway.
func refuseRouters(sysctlRoot, link string) {
	_ = os.WriteFile(filepath.Join(sysctlRoot, "net/ipv6/conf", link, "accept_ra"), []byte("0"), 0o644)
}

// removeVTEPs deletes the VTEPs that this package made, except in the families to keep.
func removeVTEPs(keep4, keep6 bool) error {
	var errs []error
	for name, keep := range map[string]bool{link4: keep4, link6: keep6} {
		link, err := rtnl.LinkOrNil(name)
		errs = append(errs, err)
		if keep || link == nil || link.Attrs().Alias != alias {
			continue
		}
		errs = append(errs, rtnl.DeleteLink(link))
	}
	return errors.Join(errs...)
}
