// SPDX-License-Identifier: Apache-2.0

// Package linkwatch watches the links by which a node's pods are reached: the uplinks, the VLAN
// links on top of them, the devices of package shaping, and Berth's routes and rules. It reports
// changes, and makes none.
package linkwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/shaping"
)

// quiet is the wait after the last change of a burst.
const quiet = 300 * time.Millisecond

// Reactions are called when an uplink, a VLAN link on top of an uplink, a device of package shaping
// or an address of the node changes, or when a route or rule is deleted.
type Reactions struct {
	// Changed is called after a burst of changes: the kernel drops routes and proxy entries of a link
	// that goes down or loses its carrier or last address, and does not restore them. It is also
	// called after a burst of deletions of routes and rules, as by systemd-networkd, after forwarding
	// is switched off, and after the node gets or loses an address on any link.
	Changed func(context.Context)
	// Back is called at once when such a link comes up: the node may have been cut off.
	Back func()
	// Carrier is called at once when any link loses or regains its carrier, and once for each link
	// when the watch begins. It returns at once.
	Carrier func(link string, up bool)
	// Moved is called when such a link gets another MAC, which neighbours do not know, or is behind
	// another port of the network.
	Moved func(context.Context)
	// Unshaped is called when a device went away or down: packets that are led to it are dropped. It
	// returns at once.
	Unshaped func()
}

// Watch follows the links until ctx ends; uplinks returns the names of the uplinks. If the kernel
// drops events, because they come faster than they are read, it begins anew and acts as if
// everything had changed.
func Watch(ctx context.Context, uplinks func() ([]string, error), r Reactions) error {
	for {
		if err := watchLinks(ctx, uplinks, r); err != nil || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("Missed changes of links, will look at all")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(missedPause):
		}
		r.Back()
		r.Changed(ctx)
		r.Moved(ctx)
		r.Unshaped()
	}
}

// missedPause is the wait before all is looked at: the storm of events may go on.
const missedPause = time.Second

// receiveBuffer is the size of the buffer of events, in bytes. A node with many pods has
// bursts of them.
const receiveBuffer = 4 << 20

// events are the events of the kernel. A closed channel has lost events.
type events struct {
	changes chan netlink.LinkUpdate
	addrs   chan netlink.AddrUpdate
	losses  <-chan int
	moves   <-chan int
}

func subscribe(ctx context.Context) (*events, error) {
	missed := func(err error) {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Missed changes of links", "err", err)
		}
	}
	e := &events{changes: make(chan netlink.LinkUpdate, 256), addrs: make(chan netlink.AddrUpdate, 256)}
	if err := netlink.LinkSubscribeWithOptions(e.changes, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: missed, ListExisting: true, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true}); err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(e.addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: missed, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true}); err != nil {
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	var err, err2 error
	e.losses, err = rtnl.Losses(ctx, missed)
	e.moves, err2 = rtnl.Moves(ctx, missed)
	return e, errors.Join(err, err2)
}

// watchLinks returns nil when events were lost.
func watchLinks(ctx context.Context, uplinks func() ([]string, error), r Reactions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := subscribe(ctx)
	if err != nil {
		return err
	}
	// The subscriptions end when their channels are read.
	defer func() {
		cancel()
		go drain(e.changes)
		go drain(e.addrs)
	}()
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	known := links{uplinks: uplinks, byIndex: map[int]link{}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-e.changes:
			if !ok {
				return nil
			}
			if known.apply(ctx, u, r) {
				timer.Reset(quiet)
			}
		case u, ok := <-e.addrs:
			if !ok {
				return nil
			}
			if known.leadOut(u.LinkIndex) || known.changesNode(u) {
				timer.Reset(quiet)
			}
		case index, ok := <-e.losses:
			if !ok {
				return nil
			}
			if index == rtnl.OfNode || known.leadOut(index) {
				timer.Reset(quiet)
			}
		case index, ok := <-e.moves:
			if !ok {
				return nil
			}
			if known.leadOut(index) {
				r.Moved(ctx)
			}
		case <-timer.C:
			r.Changed(ctx)
		}
	}
}

// apply notes the change of a link and reacts to it at once. It returns whether the link leads out
// of the node.
func (l *links) apply(ctx context.Context, u netlink.LinkUpdate, r Reactions) bool {
	if shaping.IsDevice(u.Link) && (u.Header.Type == unix.RTM_DELLINK || u.IfInfomsg.Flags&unix.IFF_UP == 0) {
		r.Unshaped()
	}
	switch {
	case u.Family == unix.AF_BRIDGE:
		// Events of bridge ports say less about the link, and the end of a port is not the end of the
		// link.
	case u.Header.Type == unix.RTM_DELLINK:
		delete(l.byIndex, int(u.Index))
	default:
		l.note(ctx, u, r)
	}
	return l.leadOut(int(u.Index))
}

// note learns from an event of a link that is there, and tells what has changed.
func (l *links) note(ctx context.Context, u netlink.LinkUpdate, r Reactions) {
	a := u.Attrs()
	before, known := l.byIndex[a.Index]
	now := link{a.Name, u.Link.Type(), a.ParentIndex, rtnl.HasCarrier(u.Link), u.IfInfomsg.Flags&unix.IFF_RUNNING != 0, a.HardwareAddr.String()}
	l.byIndex[a.Index] = now
	if !known || now.carrier != before.carrier || now.name != before.name {
		r.Carrier(now.name, now.carrier)
	}
	if !known || !l.leadOut(a.Index) {
		return
	}
	if now.running && !before.running {
		r.Back()
	}
	if now.mac != before.mac {
		r.Moved(ctx)
	}
}

// changesNode reports whether an address that came or went is the node's own, to which its pods may
// have a route. Pods have no routes to link-local IPv6 addresses, which each new link gets.
func (l *links) changesNode(u netlink.AddrUpdate) bool {
	one, ok := l.byIndex[u.LinkIndex]
	ip := u.LinkAddress.IP
	return ok && rtnl.HasNodeAddresses(one.name) && !(ip.To4() == nil && ip.IsLinkLocalUnicast())
}

func drain[T any](events <-chan T) {
	for range events {
	}
}

// links has the node's links, as known from events. An ADD causes a dozen events, and to ask the
// kernel after each would delay the plugins, which wait for the same lock of the kernel.
type links struct {
	uplinks func() ([]string, error)
	byIndex map[int]link
	// names are the names of the uplinks, as read at asked.
	names []string
	asked time.Time
}

type link struct {
	name, kind string
	parent     int
	// carrier: the cable is in. running: the link may send, too.
	carrier, running bool
	mac              string
}

// askAgain is how long the names of the uplinks are used. They are in the node's configuration and
// in records.
const askAgain = time.Second

// leadOut reports whether the link is an uplink or a VLAN link on top of one.
func (l *links) leadOut(index int) bool {
	if time.Since(l.asked) > askAgain {
		// After an error the earlier names count: the uplink's address may be gone with its link.
		if names, err := l.uplinks(); err == nil {
			l.names = names
		}
		l.asked = time.Now()
	}
	one, ok := l.byIndex[index]
	if !ok {
		return false
	}
	return slices.Contains(l.names, one.name) || one.kind == "vlan" && slices.Contains(l.names, l.byIndex[one.parent].name)
}
