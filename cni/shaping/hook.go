// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// firstPriority is the priority of the first of our four filters. It must never change: by it a new
// version finds the filters of an old version. Our filters come after all others, also after
// filters whose priority the kernel chooses.
const firstPriority = 0xc098

// protocols are the limited protocols. ARP is not limited, because a full queue must not make
// neighbours forget the pod.
var protocols = [...]uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}

// priority returns the priority of our filter. It differs by direction, because the kernel lists
// filters of kind u32 with the same priority for both directions.
func (d direction) priority(protocol uint16) uint16 {
	priority := uint16(firstPriority)
	if d == egress {
		priority += uint16(len(protocols))
	}
	if protocol == unix.ETH_P_IPV6 {
		priority++
	}
	return priority
}

// parent returns the parent of the filters: packets to the pod leave the node's end of its
// interface.
func (d direction) parent() uint32 {
	if d == ingress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func (d direction) String() string {
	if d == ingress {
		return "ingress"
	}
	return "egress"
}

// Kinds of hooks. ingressHook is only for packets that the node's end of the interface receives.
const bothHooks, ingressHook = "clsact", "ingress"

func hookOf(qdiscs []netlink.Qdisc) string {
	for _, q := range qdiscs {
		if kind := q.Type(); kind == bothHooks || kind == ingressHook {
			return kind
		}
	}
	return ""
}

// applyHook sends the packets of one direction through the device with the index to, or through
// none if to is 0.
func applyHook(link netlink.Link, qdiscs map[int][]netlink.Qdisc, d direction, to int) error {
	index, name := link.Attrs().Index, link.Attrs().Name
	switch kind := hookOf(qdiscs[index]); {
	case kind == "" && to == 0, kind == ingressHook && d == ingress && to == 0:
		return nil
	case kind == ingressHook && d == ingress:
		return fmt.Errorf("%w: link %s has a queue of kind %s, so its %s cannot be limited", ErrConflict, name, ingressHook, d)
	case kind == "":
		hook := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		if err := netlink.QdiscAdd(hook); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("hook into link %s (does the kernel have the module sch_ingress?): %w", name, err)
		}
		qdiscs[index] = append(qdiscs[index], hook)
	}
	filters, err := netlinksafe.FilterList(link, d.parent())
	if isGone(err) {
		// The link went away, and its filters with it.
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the filters of link %s: %w", name, err)
	}
	return applyFilters(link, filters, d, to)
}

func applyFilters(link netlink.Link, filters []netlink.Filter, d direction, to int) error {
	name := link.Attrs().Name
	right := map[uint16]bool{}
	var conflict error
	for _, f := range filters {
		leads, ours := ourFilter(f, d)
		switch {
		case !ours:
			if to != 0 {
				conflict = fmt.Errorf("%w: link %s has a filter of kind %s with priority %d, and the limit of %s does not apply to packets for which that filter decides",
					ErrConflict, name, f.Type(), f.Attrs().Priority, d)
			}
		case leads == to && to != 0 && !right[f.Attrs().Protocol]:
			right[f.Attrs().Protocol] = true
		default:
			if err := netlink.FilterDel(f); err != nil && !isGone(err) {
				return fmt.Errorf("remove our filter from link %s: %w", name, err)
			}
		}
	}
	if to == 0 {
		return nil
	}
	for _, protocol := range protocols {
		if right[protocol] {
			continue
		}
		// With additional actions to RedirIndex the filter would redirect twice.
		filter := &netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: d.parent(), Priority: d.priority(protocol), Protocol: protocol},
			RedirIndex:  to,
		}
		if err := netlink.FilterAdd(filter); err != nil {
			return fmt.Errorf("redirect the %s of link %s (does the kernel have the modules cls_u32 and act_mirred?): %w", d, name, err)
		}
	}
	return conflict
}

// ourFilter reports whether a filter is ours, and returns the index of its target link, 0 if this
// link is gone.
func ourFilter(f netlink.Filter, d direction) (leads int, ours bool) {
	u32, ok := f.(*netlink.U32)
	if !ok || f.Attrs().Priority != d.priority(f.Attrs().Protocol) {
		return 0, false
	}
	return u32.RedirIndex, true
}
