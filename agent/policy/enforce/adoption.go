// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/socket"
)

// adopted are the connections that the kernel was made to track.
type adopted map[connection]bool

type connection struct {
	protocol byte
	from, to netip.AddrPort
}

// adopt makes the kernel track the open connections of pods when it begins to track connections for
// a target: policies depend on the side that began a connection. It is called before tracking
// begins, and again afterwards with the first call's result, for connections that began in between.
// The only harm of a failure is that such connections may survive a policy that forbids them.
func (e *Enforcer) adopt(ctx context.Context, key string, before adopted) adopted {
	e.mu.Lock()
	t, _ := e.target(key)
	namespaces := map[string]string{}
	direct := map[string]map[netip.Addr]string{}
	for c := range e.live() {
		if c.governed && c.NetNS != "" && (key == nodeKey || c.ID == key) {
			namespaces[c.ID], direct[c.ID] = c.NetNS, c.place.Addresses
		}
	}
	e.mu.Unlock()
	if t == nil {
		return nil
	}
	var seen []socket.Connection
	for id, netns := range namespaces {
		some, err := e.Kernel.Connections(netns)
		if err != nil && !isGone(err) {
			klog.FromContext(ctx).Error(err, "Cannot find the connections that are older than their network policies: these may survive a policy that forbids them", "containerID", id)
		}
		for _, c := range some {
			if _, isDirect := direct[id][c.Local]; isDirect == (key == nodeKey) {
				continue
			}
			seen = append(seen, c)
		}
	}
	now := adopted{}
	var found []socket.Connection
	for _, c := range each(seen) {
		like := connection{c.Protocol, c.From, c.To}
		now[like] = true
		if !before[like] {
			found = append(found, c)
		}
	}
	if err := t.table.Adopt(ctx, found, before != nil); err != nil && !isGone(err) {
		klog.FromContext(ctx).Error(err, "Cannot have connections tracked that are older than their network policies: these may survive a policy that forbids them", "namespace", t.netns)
	}
	return now
}

// each returns each connection once, although the sockets of both sides may have been seen.
func each(seen []socket.Connection) []socket.Connection {
	all := map[connection]socket.Connection{}
	for _, c := range seen {
		like := connection{c.Protocol, c.From, c.To}
		if c.From.Compare(c.To) > 0 {
			like.from, like.to = c.To, c.From
		}
		if other, is := all[like]; !is || isBetter(c, other) {
			all[like] = c
		}
	}
	return slices.Collect(maps.Values(all))
}

// isBetter reports whether c, one side's view of a connection, counts and not the other side's. If
// a socket listens on exactly one side, the other side began. Otherwise the side with the higher
// port began: servers have low ports.
func isBetter(c, other socket.Connection) bool {
	if c.Certain != other.Certain {
		return c.Certain
	}
	return cmp.Or(cmp.Compare(c.From.Port(), other.From.Port()), c.From.Compare(other.From)) > 0
}

// showBridge makes a bridge show its packets to the rules, also packets of older connections.
func (e *Enforcer) showBridge(ctx context.Context, bridge string) error {
	e.mu.Lock()
	err, known := e.bridges[bridge]
	e.mu.Unlock()
	shown := known && err == nil
	var before adopted
	if !shown {
		before = e.adopt(ctx, nodeKey, nil)
	}
	err = e.Kernel.Show(bridge)
	if !shown && err == nil {
		e.adopt(ctx, nodeKey, before)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bridges[bridge] = err
	if !shown && err == nil {
		e.node.reopen()
		e.sweeps.Add(nodeKey)
	}
	return err
}
