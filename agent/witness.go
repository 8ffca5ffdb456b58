// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/lifesign"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Errors of Witness.
var (
	// ErrWitnessOfItself is returned on the node that is asked about.
	ErrWitnessOfItself = errors.New("this is the node itself: ask another one")
	// ErrCarried is returned for an address that this node carries: it does not hear its own answers.
	ErrCarried = errors.New("this node carries the address: ask another one")
)

// Witness asks another node whether it lives: at its InternalIPs, on the segments of this one, and in the network of the addresses
// who answers for these. Without a node it asks for addresses alone. It changes nothing, and blocks for about a second.
func (a *Agent) Witness(ctx context.Context, q inquiry.WitnessQuestion) (*inquiry.Testimony, error) {
	if q.Node == a.Node.Name {
		return nil, ErrWitnessOfItself
	}
	a.joinUplinks(ctx)
	links, err := a.linksOf(q)
	if q.Node == "" {
		err = errors.Join(err, a.carriesNone(ctx, q.Addresses))
	} else if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot say whether a node answers for its addresses", "node", q.Node, "err", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	var sighting answerer.Sighting
	var signs, controls lifesign.Signs
	var group sync.WaitGroup
	group.Go(func() { signs = lifesign.Look(ctx, q.Hosts, a.AgentPort) })
	group.Go(func() { controls = lifesign.Look(ctx, q.Controls, a.AgentPort) })
	group.Go(func() { sighting = a.answerer.Seek(ctx, q.Node, q.Addresses, links) })
	group.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if q.Node == "" {
		for _, link := range links {
			if err := a.answerer.Check(link); err != nil {
				return nil, err
			}
		}
	}
	t := &inquiry.Testimony{
		Control: sighting.Control && (len(q.Controls) == 0 || controls.Kernel),
		Host:    signs.Kernel, Agent: signs.Agent || sighting.Node, Addresses: []inquiry.AnsweredAddress{},
	}
	for _, addr := range q.Addresses {
		if macs := sighting.MACs[addr]; len(macs) > 0 {
			t.Addresses = append(t.Addresses, inquiry.AnsweredAddress{Address: addr, MACs: macs})
		}
	}
	return t, nil
}

// carriesNone returns ErrCarried where the node carries one of the addresses.
func (a *Agent) carriesNone(ctx context.Context, addrs []netip.Addr) error {
	carried, err := a.Carried(ctx, false)
	if err != nil {
		return err
	}
	for _, c := range carried.Addresses {
		if slices.Contains(addrs, c.Address) {
			return fmt.Errorf("%s: %w", c.Address, ErrCarried)
		}
	}
	return nil
}

// joinUplinks has the node hear the others on its uplinks, also before it has an address there.
func (a *Agent) joinUplinks(ctx context.Context) {
	uplinks, err := a.Uplinks()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("No uplink yet on which to hear other nodes", "err", err)
	}
	for _, name := range uplinks {
		if link, err := netlinksafe.LinkByName(name); err == nil {
			a.answerer.Join(link.Attrs().Index, name, nodeGateways(ctx, link)...)
		}
	}
}

// nodeGateways returns the node's own default gateways, of IPv4 and IPv6, that are on the link.
func nodeGateways(ctx context.Context, link netlink.Link) []netip.Addr {
	var gateways []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlinksafe.RouteList(link, family)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot list the routes of a link", "link", link.Attrs().Name, "err", err)
		}
		for _, r := range routes {
			if gateway, ok := netip.AddrFromSlice(r.Gw); ok && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
				gateways = append(gateways, gateway.Unmap())
			}
		}
	}
	return gateways
}

// linksOf returns the links to the network of the question's addresses, or of its gateways if there are none, where the node from now
// on hears the others: the ones by which the node has other addresses of their subnets, else the VLAN's on all uplinks, as a pool does
// not say which of them is its. It returns an error where the network of an address is not known to be at this node.
func (a *Agent) linksOf(q inquiry.WitnessQuestion) ([]int, error) {
	subnets, all, of := a.subnets(q.VLAN), map[int]bool{}, q.Addresses
	if len(of) == 0 {
		of = q.Gateways
	}
	unknown := len(of) == 0
	for _, addr := range of {
		known := false
		for subnet, link := range subnets {
			if subnet.Contains(addr) {
				known, all[link] = true, true
			}
		}
		unknown = unknown || !known
	}
	if unknown {
		uplinks, err := a.Uplinks()
		joined := false
		for _, uplink := range uplinks {
			link, other := wire.NetworkLink(uplink, q.VLAN)
			if other != nil {
				err = errors.Join(err, other)
				continue
			}
			a.answerer.Join(link, uplink, q.Gateways...)
			joined, all[link] = true, true
		}
		if !joined {
			return nil, errors.Join(fmt.Errorf("the network of VLAN %d is on no uplink of this node", q.VLAN), err)
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// subnets returns the subnets of a VLAN in which the node has addresses, and the links to their networks.
func (a *Agent) subnets(vlan int) map[netip.Prefix]int {
	all := map[netip.Prefix]int{}
	for _, record := range a.Store.List() {
		for _, addr := range record.Addresses() {
			if link, has := a.answerer.Link(addr.Address); has && addr.VLAN == vlan {
				all[addr.Subnet] = link
			}
		}
	}
	return all
}
