// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/lifesign"
)

// ErrWitnessOfItself is returned by Witness on the node that is asked about.
var ErrWitnessOfItself = errors.New("this is the node itself: ask another one")

// agentPort is where agents serve unless they say otherwise.
const agentPort = 10265

// Witness asks another node whether it lives: at its InternalIPs, hosts, and on the segments of this one, where it asks for the
// node and for the addresses. It changes nothing, and blocks for about a second.
func (a *Agent) Witness(ctx context.Context, node string, hosts, addrs []netip.Addr) (*inquiry.Testimony, error) {
	if node == a.Node.Name {
		return nil, ErrWitnessOfItself
	}
	var sighting answerer.Sighting
	var signs lifesign.Signs
	var group sync.WaitGroup
	group.Go(func() { signs = lifesign.Look(ctx, hosts, agentPort) })
	if a.answerer != nil {
		a.joinUplinks(ctx)
		group.Go(func() { sighting = a.answerer.Seek(ctx, node, addrs) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	t := &inquiry.Testimony{Control: sighting.Control, Host: signs.Kernel, Agent: signs.Agent || sighting.Node, Addresses: []inquiry.ProbedAddress{}}
	for _, addr := range addrs {
		if macs := sighting.MACs[addr]; len(macs) > 0 {
			t.Addresses = append(t.Addresses, inquiry.ProbedAddress{Address: addr, MACs: macs})
		}
	}
	return t, nil
}

// joinUplinks has the node hear the others on its uplinks, also before it has an address there.
func (a *Agent) joinUplinks(ctx context.Context) {
	uplinks, err := a.Uplinks()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("No uplink yet on which to hear other nodes", "err", err)
	}
	for _, name := range uplinks {
		if link, err := netlinksafe.LinkByName(name); err == nil {
			a.answerer.Join(link.Attrs().Index, name, nodeGateway(ctx, link))
		}
	}
}

// nodeGateway returns the node's own default gateway where it is on the link.
func nodeGateway(ctx context.Context, link netlink.Link) netip.Addr {
	routes, err := netlinksafe.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot list the routes of a link", "link", link.Attrs().Name, "err", err)
	}
	for _, r := range routes {
		if gateway, ok := netip.AddrFromSlice(r.Gw); ok && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
			return gateway.Unmap()
		}
	}
	return netip.Addr{}
}
