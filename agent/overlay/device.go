// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/backend/hostgw"
	"github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Names that flannel gives the VTEPs, and values that it has by default: nodes with flannel
// and nodes with this overlay must agree.
const (
	vni   = 1
	port  = 8472
	link4 = "flannel.1"
	link6 = "flannel-v6.1"
)

// alias marks VTEPs that this package had made.
const alias = "berth overlay"

const (
	// flannelOverhead is what flannel's backend takes off the MTU: the headers of Ethernet,
	// VXLAN, UDP and IPv4. An IPv6 header is larger by moreOverhead6.
	flannelOverhead = 50
	moreOverhead6   = 20
)

// local is this node, as a backend needs it.
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
	for _, s := range l.subnets {
		if s.Addr().Is4() == family4 {
			return true
		}
	}
	return false
}

// config is what flannel's configuration file says. Network is a check of flannel's and
// decides which other addresses of a VTEP are removed: all.
func (l local) config(b Backend) (*subnet.Config, error) {
	mtu := l.uplink.Attrs().MTU
	if l.has(false) {
		mtu -= moreOverhead6
	}
	raw, err := json.Marshal(map[string]any{"Type": b, "VNI": vni, "Port": port, "MTU": mtu})
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of flannel's backend: %w", err)
	}
	return &subnet.Config{EnableIPv4: l.has(true), EnableIPv6: l.has(false), BackendType: string(b), Backend: raw}, nil
}

// mtu returns the MTU of pods.
func (l local) mtu(b Backend) int {
	mtu := l.uplink.Attrs().MTU
	if b == HostGW {
		return mtu
	}
	if l.has(false) {
		mtu -= moreOverhead6
	}
	return mtu - flannelOverhead
}

// register has flannel's backend make the VTEPs and publish this node. It is idempotent, and
// makes a VTEP of other properties anew.
func (l local) register(ctx context.Context, b Backend, annotate func(context.Context, map[string]string) error) error {
	config, err := l.config(b)
	if err != nil {
		return err
	}
	iface, err := net.InterfaceByIndex(l.uplink.Attrs().Index)
	if err != nil {
		return fmt.Errorf("find the uplink of the overlay: %w", err)
	}
	out := &backend.ExternalInterface{Iface: iface, IfaceName: iface.Name}
	if l.has(true) {
		out.IfaceAddr, out.ExtAddr = l.public4.AsSlice(), l.public4.AsSlice()
	}
	if l.has(false) {
		out.IfaceV6Addr, out.ExtV6Addr = l.public6.AsSlice(), l.public6.AsSlice()
	}
	construct := vxlan.New
	if b == HostGW {
		construct = hostgw.New
	}
	manager := &leases{node: l.node, annotate: annotate, config: config}
	backend, err := construct(manager, out)
	if err != nil {
		return fmt.Errorf("prepare flannel's backend %s: %w", b, err)
	}
	if _, err := backend.RegisterNetwork(ctx, &sync.WaitGroup{}, config); err != nil {
		return fmt.Errorf("start flannel's backend %s: %w", b, err)
	}
	return nil
}

// vteps returns the links to other nodes, and whether they are as they must be.
func (l local) vteps() (w ways, right bool, err error) {
	w, right = ways{vtep: true}, true
	for _, s := range l.subnets {
		name, public, index := link4, l.public4, &w.link4
		if s.Addr().Is6() {
			name, public, index = link6, l.public6, &w.link6
		}
		link, err := rtnl.LinkOrNil(name)
		if err != nil {
			return w, false, err
		}
		if link == nil {
			right = false
			continue
		}
		*index = link.Attrs().Index
		same, err := l.isVTEP(link, s, public)
		if err != nil {
			return w, false, err
		}
		right = right && same
	}
	return w, right, nil
}

// isVTEP returns whether the link is the VTEP of the subnet, as published.
func (l local) isVTEP(link netlink.Link, s netip.Prefix, public netip.Addr) (bool, error) {
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return false, nil
	}
	data := annotationData4
	if s.Addr().Is6() {
		data = annotationData6
	}
	mac, err := vtepMAC(l.node.Annotations[data])
	if err != nil || mac.String() != v.HardwareAddr.String() {
		return false, nil //nolint:nilerr // an annotation that cannot be read names no link
	}
	src, _ := netip.AddrFromSlice(v.SrcAddr)
	if v.VxlanId != vni || v.Port != port || v.VtepDevIndex != l.uplink.Attrs().Index || src.Unmap() != public ||
		v.MTU != l.mtu(VXLAN) || !isUp(v) || v.Alias != alias {
		return false, nil
	}
	addrs, err := netlinksafe.AddrList(link, rtnl.FamilyOf(s.Addr()))
	if err != nil {
		return false, fmt.Errorf("list addresses of link %s: %w", v.Name, err)
	}
	for _, a := range addrs {
		if have, ok := netip.AddrFromSlice(a.IP); ok && have.Unmap() == s.Addr() {
			return true, nil
		}
	}
	return false, nil
}

// mark gives the VTEPs what flannel does not: the alias, and the MTU of VTEPs that existed.
func (l local) mark() error {
	for _, name := range []string{link4, link6} {
		link, err := rtnl.LinkOrNil(name)
		if err != nil {
			return err
		}
		if link == nil || !l.has(name == link4) {
			continue
		}
		if link.Attrs().Alias != alias {
			if err := netlink.LinkSetAlias(link, alias); err != nil {
				return fmt.Errorf("name link %s: %w", name, err)
			}
		}
		if mtu := l.mtu(VXLAN); link.Attrs().MTU != mtu {
			if err := netlink.LinkSetMTU(link, mtu); err != nil {
				return fmt.Errorf("set the MTU of link %s: %w", name, err)
			}
		}
	}
	return nil
}

// removeVTEPs deletes the VTEPs that this package had made, but for those of families that
// keep says.
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

// publish puts back annotations that were lost or changed, while the VTEPs are right. The
// node may hold the MACs only there, so what is published follows from the VTEPs.
func (l local) publish(ctx context.Context, annotate func(context.Context, map[string]string) error) error {
	p, err := peerOf(l.node, VXLAN)
	if err == nil && len(p.ends) == len(l.subnets) && l.publishes(p) {
		return nil
	}
	return l.register(ctx, VXLAN, annotate)
}

// publishes returns whether what others read is this node's.
func (l local) publishes(p peer) bool {
	for _, e := range p.ends {
		own, overwrite := l.public4, annotationOverwrite4
		if e.public.Is6() {
			own, overwrite = l.public6, annotationOverwrite6
		}
		if e.public.String() != public(l.node, overwrite, own.String()) {
			return false
		}
	}
	return true
}
