// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/announce"
	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
)

// holdings are the addresses of records for which this node answers or has others asked. Package
// answerer decides which; holdings tells it of them, and announces them.
type holdings struct {
	*records

	answerer  *answerer.Answerer
	conflicts *addressconflict.Conflicts
	announcer *announce.Announcer[*state.Container]
}

// answerPatience is how long an ADD waits until this node may answer for the pod's addresses. The
// runtime's next ADD waits on.
const answerPatience = 10 * time.Second

// announcePatience limits how long an announcement waits for another call for the
// same address. Such a call mostly ends the announcements anyway.
const announcePatience = time.Second

// ErrNotYet is returned by ADD while another node may answer for an address of the pod.
var ErrNotYet = errors.New("this node cannot answer for an address of the pod yet")

// of lists the addresses of the record that are at targets.
func (h *holdings) of(record *state.Container, targets []conflict.Target) []answerer.Holding {
	var all []answerer.Holding
	for k := range record.Attachments {
		attachment := &record.Attachments[k]
		_, defended := h.Drivers[attachment.Driver].(defended)
		for _, addr := range attachment.Addresses {
			i := slices.IndexFunc(targets, func(t conflict.Target) bool { return t.Address == addr.Address })
			if i < 0 {
				continue
			}
			held := record.Held[addr.Address]
			all = append(all, answerer.Holding{
				Address: addr.Address, Pod: record.Pod.Identity(), Link: targets[i].Link, Uplink: attachment.Uplink, Gateway: addr.Gateway, OwnMAC: targets[i].Own,
				Failover: held.Failover, Defended: defended, Version: answering.Version(held.Version), Last: answering.Node{Name: held.LastNode, UID: held.LastNodeUID}, Twin: held.Twin,
			})
		}
	}
	return all
}

// take has the other nodes and hosts of a record's networks asked whether they answer for its
// addresses. ctx ends with the cause podinfo.ErrPodReplaced when the pod loses them.
func (h *holdings) take(ctx context.Context, record *state.Container, targets []conflict.Target) (addrs []netip.Addr) {
	for _, one := range h.of(record, targets) {
		h.answerer.Take(one)
		addrs = append(addrs, one.Address)
	}
	if errors.Is(context.Cause(ctx), podinfo.ErrPodReplaced) {
		// Its Leave may have come before.
		h.leave(record)
	}
	return addrs
}

// mayAnswer waits until this node may answer for addresses that it has taken. It returns the ones
// that hosts outside of the cluster have.
func (h *holdings) mayAnswer(ctx context.Context, addrs []netip.Addr) (foreign []conflict.Conflict, err error) {
	patient, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	foreign, err = h.answerer.Wait(patient, addrs)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return foreign, fmt.Errorf("%w: %w", ErrNotYet, err)
	}
	return foreign, nil
}

// leave says that this node does not answer for the addresses of the record any more, unless it
// does for another container.
func (h *holdings) leave(record *state.Container) {
	if len(record.Addresses()) == 0 || len(h.sharing(record)) > 0 {
		return
	}
	h.answerer.Leave(record.Pod.Identity(), addressesOf(record)...)
}

// carry tells the answerer of a complete record.
func (h *holdings) carry(ctx context.Context, record *state.Container, answers bool) {
	if len(record.Addresses()) == 0 {
		return
	}
	targets, release, err := h.toProbe(record)
	defer release()
	if err != nil {
		// The next survey finds it.
		klog.FromContext(ctx).V(2).Info("Cannot find the network of addresses", "ips", addressesOf(record), "err", err)
	}
	h.carryAt(record, targets, answers)
}

// carryAt is carry where the links are known.
func (h *holdings) carryAt(record *state.Container, targets []conflict.Target, answers bool) {
	for _, one := range h.of(record, targets) {
		if record.Standby {
			h.answerer.Stand(one)
			continue
		}
		h.answerer.Carry(one, answers, answering.Version(record.Held[one.Address].Newest))
	}
	if now := h.Store.Get(record.Key()); now == nil || now.Phase == state.Deleting || now.Phase == state.Withdrawn {
		// Its Leave may have come before. What an ADD takes stays.
		h.leave(record)
	}
}

// follow tells the answerer on which links the node answers for the addresses of a complete record
// that lacks nothing, where it does not know that.
func (h *holdings) follow(record *state.Container) {
	h.carryAt(record, slices.DeleteFunc(h.toDefend(record), h.knows), true)
}

// knows returns whether the answerer has an address on its link.
func (h *holdings) knows(t conflict.Target) bool {
	link, has := h.answerer.Link(t.Address)
	return has && link == t.Link
}

// askAgain has the answerer ask for the addresses of the interfaces of a complete record that lack
// something, before the node answers for them again. Of what is missing, rest is that of interfaces
// for which no other node can be asked.
func (h *holdings) askAgain(record *state.Container, missing error) (rest, err error) {
	if record.Phase != state.Added {
		return missing, nil
	}
	targets, release, err := h.toProbe(record)
	defer release()
	if err != nil {
		return nil, err
	}
	var doubted []conflict.Target
	rest = h.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		lacks := d.CheckNode(i)
		if lacks == nil {
			return nil
		}
		of := slices.DeleteFunc(slices.Clone(targets), func(t conflict.Target) bool { return !has(&i.Attachment, t.Address) })
		if len(of) == 0 {
			return lacks
		}
		doubted = append(doubted, of...)
		return nil
	})
	h.carryAt(record, slices.DeleteFunc(doubted, func(t conflict.Target) bool { return h.knows(t) && h.waits(t.Address) }), false)
	return rest, nil
}

// waits returns whether the answerer has yet to say that this node may answer for an address.
func (h *holdings) waits(addr netip.Addr) bool { return h.answerer.Waits(addr) }

// waitsFor returns whether that is so of an address of an interface.
func (h *holdings) waitsFor(i *nettype.Interface) bool {
	return slices.ContainsFunc(i.Addresses, func(addr api.Address) bool { return h.waits(addr.Address) })
}

// isAsked returns whether the answerer knows an address of an interface, and so has it opened.
func (h *holdings) isAsked(i *nettype.Interface) bool {
	return slices.ContainsFunc(i.Addresses, func(addr api.Address) bool {
		_, known := h.answerer.Link(addr.Address)
		return known
	})
}

// askAbout asks the networks of a complete record for other hosts that have some of its addresses.
func (h *holdings) askAbout(ctx context.Context, record *state.Container, which func(netip.Addr) bool) []conflict.Conflict {
	return h.conflicts.Ask(ctx, record.Pod, slices.DeleteFunc(h.toDefend(record), func(t conflict.Target) bool { return !which(t.Address) }))
}

// announceAgain announces the record's addresses if this node still carries them for it, and may
// answer for them. It holds the locks of the addresses meanwhile: an announcement after the
// withdrawal would draw the traffic away from the address's new node.
func (h *holdings) announceAgain(ctx context.Context, record *state.Container) (carried bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	err = h.withAddresses(ctx, record, state.Added, func(now *state.Container) error {
		carried = true
		return h.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
			if h.waitsFor(i) {
				return nil
			}
			return d.Announce(i)
		})
	})
	return carried, err
}

// joinUplinks has the node hear the others on its uplinks, also before it has an address there.
func (h *holdings) joinUplinks(ctx context.Context) {
	uplinks, err := h.Uplinks()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("No uplink yet on which to hear other nodes", "err", err)
	}
	for _, name := range uplinks {
		if link, err := netlinksafe.LinkByName(name); err == nil {
			h.answerer.Join(link.Attrs().Index, name, nodeGateways(ctx, link)...)
		}
	}
}

// Uplinks lists the links of this node to networks of floating IPs. It does not block for long.
func (h *holdings) Uplinks() ([]string, error) {
	floating, err := h.Networks.Floating()
	names := map[string]bool{}
	if err == nil {
		names[floating.Uplink] = true
	}
	for _, record := range h.Store.List() {
		for i := range record.Attachments {
			if len(record.Attachments[i].Addresses) > 0 {
				names[record.Attachments[i].Uplink] = true
			}
		}
	}
	delete(names, "")
	if len(names) == 0 {
		return nil, err
	}
	return slices.Sorted(maps.Keys(names)), nil
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

// Carrier says that a link of this node has lost its carrier, or has it again. It returns at once.
func (h *holdings) Carrier(link string, up bool) { h.answerer.Carrier(link, up) }

// TakeOver has this node answer for an address for which a pod waits, whoever else seems to answer:
// somebody says that no other node does. Its error says why nothing comes of that.
func (h *holdings) TakeOver(ctx context.Context, addr netip.Addr) error {
	pods := []string{}
	for _, record := range h.carrying(addr) {
		pods = append(pods, record.Pod.String())
	}
	if err := h.answerer.Word(addr); err != nil {
		of := ""
		if len(pods) > 0 {
			of = " of pod " + strings.Join(pods, ", ")
		}
		return fmt.Errorf("node %s does not wait for the address %s%s: %w", h.Node.Name, addr, of, err)
	}
	klog.FromContext(ctx).Info("Somebody says that no other node answers for an address; the node answers for it", "ip", addr, "pods", pods)
	return nil
}
