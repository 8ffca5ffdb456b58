// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/rtnl"
)

// AdvertisedTable is the routing table from which routing daemons read the addresses that they
// announce: a route with our protocol number for each, to the link of its pod. No rule looks the
// table up, so it routes nothing. The number must never change, because it is in the configuration
// of daemons.
const AdvertisedTable = 98

// metricEpoch is the time from which [MetricOf] counts.
var metricEpoch = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// MetricOf returns the metric of an advertised address by the time since which a pod has it: the
// later, the lower. So routers that compare metrics (as the MED of BGP) prefer the present node of
// an address to an earlier node that does not know of the move yet.
func MetricOf(since time.Time) uint32 {
	// An IPv6 route has no metric 0.
	const greatest, least = math.MaxUint32, 1
	seconds := int64(since.Sub(metricEpoch) / time.Second)
	return uint32(min(max(greatest-seconds, least), greatest)) //nolint:gosec // within these limits
}

func advertisedRoute(addr netip.Addr, host int, since time.Time) netlink.Route {
	r := hostRoute(addr, host, AdvertisedTable)
	r.Priority = int(MetricOf(since))
	return r
}

// Advertise makes the container's addresses in the table of advertised addresses equal to
// spec.Advertised.
func (w *Wirer) Advertise(spec Spec) error {
	routed := slices.DeleteFunc(slices.Clone(spec.Addresses), func(a api.Address) bool { return !a.Routed })
	if spec.Advertised == nil || len(routed) == 0 {
		return nil
	}
	host, err := hostEnd(spec)
	if err != nil {
		return err
	}
	if host == nil {
		return fmt.Errorf("%w: link %s is missing", ErrNotWired, spec.HostLink())
	}
	w.routing.Lock()
	defer w.routing.Unlock()
	known := map[int]*routing{}
	for _, a := range routed {
		family := rtnl.FamilyOf(a.Address)
		if known[family] == nil {
			if known[family], err = readRouting(family); err != nil {
				return err
			}
		}
		since, wanted := spec.Advertised[a.Address]
		if err := known[family].advertise(a.Address, host.Attrs().Index, since, wanted); err != nil {
			return err
		}
	}
	return nil
}

// advertise makes the table have a single route to an address, by the link host, or no route by
// host if the address is not wanted.
func (k *routing) advertise(addr netip.Addr, host int, since time.Time, wanted bool) error {
	if !wanted {
		return k.unadvertise(addr, host, true)
	}
	want := advertisedRoute(addr, host, since)
	if err := k.addRoute(want); err != nil {
		return err
	}
	fault.Point("veth/advertised")
	// Routes of one address differ in their metrics.
	return k.deleteRoutes(func(r route) bool { return advertises(r, addr) && r != routeOf(want) })
}

// unadvertise removes the routes to an address by the link host or, unless another link carries the
// address, by any link.
func (k *routing) unadvertise(addr netip.Addr, host int, elsewhere bool) error {
	return k.deleteRoutes(func(r route) bool { return advertises(r, addr) && (r.link == host || !elsewhere) })
}

func advertises(r route, addr netip.Addr) bool {
	return r.table == AdvertisedTable && r.dst == rtnl.SinglePrefix(addr)
}

// sweepAdvertised removes advertised addresses that the node does not route to a pod by the same
// link.
func (k *routing) sweepAdvertised() error {
	type way struct {
		addr netip.Addr
		link int
	}
	leads := map[way]bool{}
	for _, r := range k.routes {
		if addr, ok := r.toPod(); ok {
			leads[way{addr, r.link}] = true
		}
	}
	return k.deleteRoutes(func(r route) bool {
		return r.table == AdvertisedTable && !(r.dst.IsSingleIP() && leads[way{r.dst.Addr(), r.link}])
	})
}

// checkAdvertised returns ErrNotWired if Advertise would change something.
func (k *routing) checkAdvertised(spec Spec, addr netip.Addr, host int) error {
	if spec.Advertised == nil {
		return nil
	}
	since, wanted := spec.Advertised[addr]
	want := routeOf(advertisedRoute(addr, host, since))
	var errs []error
	if wanted && !slices.Contains(k.routes, want) {
		errs = append(errs, fmt.Errorf("%w: %s with metric %d is missing from table %d, from which routing daemons announce addresses", ErrNotWired, addr, want.metric, AdvertisedTable))
	}
	for _, r := range k.routes {
		if advertises(r, addr) && (wanted && r != want || r.link == host && !wanted) {
			errs = append(errs, fmt.Errorf("%w: table %d has %s on link %d with metric %d, which routing daemons are not to announce", ErrNotWired, AdvertisedTable, addr, r.link, r.metric))
		}
	}
	return errors.Join(errs...)
}

// unreachableRule is for packets from outside to an address of the subnet that no pod of this node
// has: by the node's default route they would return to a router that does not know yet that the
// address has moved, until their TTL ends. Packets of the node and of its pods continue to the
// address's node. So do packets to a Service for which this node chose the address: they have
// netfilter.ArrivalMark. The rule stays without addresses until the node restarts or is cleaned up,
// because it is needed most after the last address has moved.
func unreachableRule(network poolNetwork) netlink.Rule {
	const unmarked = 0
	rule := marked(rtnl.NewRule(rtnl.FamilyOf(network.subnet.Addr()), PriorityUnreachable, unix.RT_TABLE_UNSPEC), unmarked)
	rule.IifName, rule.Dst, rule.Type = network.link, rtnl.IPNet(network.subnet), unix.RTN_UNREACHABLE
	return rule
}

func (k *routing) tableFrom(p hostPlan) (int, error) {
	if p.routed {
		return unix.RT_TABLE_MAIN, nil
	}
	return k.tableOf(p.network)
}

func (p hostPlan) routesOut(table int) []netlink.Route {
	if p.routed {
		return nil
	}
	return p.network.routes(table)
}

// rules returns the rules that the address shares with others.
func (p hostPlan) rules(table int) []netlink.Rule {
	rules := nodeRules(rtnl.FamilyOf(p.addr))
	if p.routed {
		return append(rules, unreachableRule(p.network))
	}
	return append(rules, networkRules(p.network.subnet, table)...)
}
