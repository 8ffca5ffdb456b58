// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/rtnl"
)

// servicesLink is the link to which the node routes the addresses of Services. It leads nowhere:
// kube-proxy changes the destination of packets to a Service's ports before they are routed, and
// all other packets end here. The link is necessary because the kernel answers ARP by proxy only
// for an address with a route by another link. The address is not the node's own: no program of the
// node gets a packet for it.
//
// It is an end of a pair whose other end is never up, because each kernel on which pods have
// floating IPs has pairs, and some lack dummy links.
const (
	servicesLink = rtnl.ServicesLink
	servicesEnd  = servicesLink + "-end"
)

// Service is an address of a Service of type LoadBalancer that the node carries, or one of whose
// ports it leads to other nodes.
type Service struct {
	Address netip.Addr
	Subnet  netip.Prefix
	// Routed says that routers route packets for the address to the node, and Since since when.
	// Otherwise the node answers for the address on a link.
	Routed bool
	Since  time.Time
	// Led says that package egress leads the packets to other nodes, before the kernel routes them.
	Led bool
}

func (s Service) address() api.Address {
	return api.Address{Address: s.Address, Subnet: s.Subnet, Routed: s.Routed}
}

// ErrServiceLink is returned for a link on which the node cannot have the address of a Service.
var ErrServiceLink = errors.New("not on this link")

// Services returns the addresses of Services with Berth's mark, a route to [servicesLink], in
// ascending order. The node carries them, is about to begin, or is about to stop.
func Services() ([]netip.Addr, error) {
	link, err := rtnl.LinkOrNil(servicesLink)
	if err != nil || link == nil {
		return nil, err
	}
	routed, err := Routed()
	all := routed[link.Attrs().Index]
	slices.SortFunc(all, netip.Addr.Compare)
	return all, err
}

// MarkService notes that the node may carry the address of a Service from now on. It is idempotent,
// and fails if a pod of this node has the address.
func (w *Wirer) MarkService(addr netip.Addr) error {
	w.routing.Lock()
	defer w.routing.Unlock()
	link, err := ensureServicesLink()
	if err != nil {
		return err
	}
	family := rtnl.FamilyOf(addr)
	k, err := readRouting(family)
	if err != nil {
		return err
	}
	mark := serviceRoute(addr, link.Attrs().Index)
	if !k.hasRoute(mark) {
		// RouteAdd does not replace the route to a pod.
		if err := netlink.RouteAdd(&mark); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("a pod of this node has %s", addr)
		} else if err != nil {
			return fmt.Errorf("add route %s on link %s to table %d: %w", addr, servicesLink, podsTable, err)
		}
		k.routes = append(k.routes, routeOf(mark))
		fault.Point("service/mark")
	}
	return k.addRule(rtnl.NewRule(family, PriorityPods, podsTable))
}

func serviceRoute(addr netip.Addr, link int) netlink.Route { return hostRoute(addr, link, podsTable) }

func ensureServicesLink() (netlink.Link, error) {
	link, err := rtnl.LinkOrNil(servicesLink)
	if err != nil {
		return nil, err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = servicesLink
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: servicesEnd}); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("create link %s: %w", servicesLink, err)
		}
		if link, err = netlinksafe.LinkByName(servicesLink); err != nil {
			return nil, fmt.Errorf("find link %s: %w", servicesLink, err)
		}
		fault.Point("service/link")
	}
	if err := rtnl.WithoutIPv6(link); err != nil {
		return nil, err
	}
	return link, rtnl.SetUp(link)
}

// CheckService returns an error if a setting of the node keeps it from carrying the marked address
// of a Service.
func (w *Wirer) CheckService(s Service, link int) error {
	if s.Routed || s.Led {
		return nil
	}
	_, uplink, err := serviceLinks(link)
	if err != nil {
		return err
	}
	drops, err := w.filterDrops(uplink, networkOf(s.address(), uplink.Attrs()))
	if err == nil && drops {
		name := uplink.Attrs().Name
		err = fmt.Errorf("%w: reverse path filtering on %s drops packets to Services, since the node sends answers by another link; give the node an address of the network, as with spec.nodeAddresses of the pool, and run on it: sysctl -w net.ipv4.conf.%s.rp_filter=2",
			ErrServiceLink, name, name)
	}
	return err
}

// CarryService makes the node carry the marked address of a Service: it answers for it on the link,
// or routing daemons announce it. It is idempotent. If it returns nil, the kernel has every piece.
func (w *Wirer) CarryService(s Service, link int) error {
	services, uplink, err := serviceLinks(link)
	if err != nil {
		return err
	}
	if s.Routed {
		if err := w.forward(services, uplink, rtnl.FamilyOf(s.Address)); err != nil {
			return err
		}
		return w.advertiseService(s, services.Attrs().Index)
	}
	if err := w.CheckService(s, link); err != nil {
		return err
	}
	if err := w.Answer(services, uplink, s.address()); err != nil {
		return err
	}
	fault.Point("service/proxy")
	answers, err := Answers(link, s.Address)
	if err == nil && !answers {
		err = fmt.Errorf("%w: link %s has no carrier", ErrUplink, uplink.Attrs().Name)
	}
	return err
}

func serviceLinks(link int) (services, uplink netlink.Link, err error) {
	if services, err = netlinksafe.LinkByName(servicesLink); err != nil {
		return nil, nil, fmt.Errorf("find link %s: %w", servicesLink, err)
	}
	if uplink, err = netlink.LinkByIndex(link); err != nil {
		return nil, nil, fmt.Errorf("find link %d: %w", link, err)
	}
	return services, uplink, nil
}

func (w *Wirer) advertiseService(s Service, link int) error {
	w.routing.Lock()
	defer w.routing.Unlock()
	k, err := readRouting(rtnl.FamilyOf(s.Address))
	if err != nil {
		return err
	}
	return k.advertise(s.Address, link, s.Since, true)
}

// HasService reports whether CarryService and MarkService would change nothing except settings of
// the kernel.
func HasService(s Service, link int) (bool, error) {
	services, err := rtnl.LinkOrNil(servicesLink)
	if err != nil || services == nil {
		return false, err
	}
	k, err := readRouting(rtnl.FamilyOf(s.Address))
	if err != nil || !k.hasRoute(serviceRoute(s.Address, services.Attrs().Index)) {
		return false, err
	}
	if s.Routed {
		return k.hasRoute(advertisedRoute(s.Address, services.Attrs().Index, s.Since)), nil
	}
	return Answers(link, s.Address)
}

// StopService makes the node neither answer for the address of a Service nor advertise it. The mark
// stays.
func (w *Wirer) StopService(addr netip.Addr) error {
	return w.withoutService(addr, func(*routing, int) error { return nil })
}

// RemoveService stops the node from carrying the address of a Service, and ends its mark last. It
// is idempotent.
func (w *Wirer) RemoveService(addr netip.Addr) error {
	err := w.withoutService(addr, func(k *routing, services int) error {
		if err := k.deleteRoutes(func(r route) bool { return r.link == services && r.dst == rtnl.SinglePrefix(addr) }); err != nil {
			return err
		}
		fault.Point("service/unmarked")
		return k.sweep()
	})
	if err != nil {
		return err
	}
	w.routing.Lock()
	defer w.routing.Unlock()
	left, err := Services()
	if err != nil || len(left) > 0 {
		return err
	}
	link, err := rtnl.LinkOrNil(servicesLink)
	if err != nil || link == nil {
		return err
	}
	return rtnl.DeleteLink(link)
}

// withoutService removes every piece of an address except its mark, and then calls next.
func (w *Wirer) withoutService(addr netip.Addr, next func(k *routing, services int) error) error {
	w.routing.Lock()
	defer w.routing.Unlock()
	link, err := rtnl.LinkOrNil(servicesLink)
	if err != nil || link == nil {
		return err
	}
	services := link.Attrs().Index
	k, err := readRouting(rtnl.FamilyOf(addr))
	if err != nil {
		return err
	}
	proxies, err := listProxies(k.family)
	if err != nil {
		return err
	}
	if err := errors.Join(k.unadvertise(addr, services, true), k.stopAnswering(addr, services, proxies)); err != nil {
		return err
	}
	fault.Point("service/stopped")
	return next(k, services)
}
