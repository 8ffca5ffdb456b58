// SPDX-License-Identifier: Apache-2.0

// Package connections ends the connections that a ruleset would not let begin, and lets them go on
// where a later ruleset would. It does so by a bit of the kernel's connection mark, which the rules
// of every backend ask for: a connection that is marked stays in the kernel's table, so its packets
// keep it there, and no packet of its other side begins it anew in that direction, which may be
// allowed.
package connections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/conntrack"
)

// EndedMark is the bit of the connection mark by which rules know a connection that was ended.
// Programs that share the mark leave it alone: kube-proxy uses the bits 0x4000 and 0x8000 of the
// packet's mark, Calico 0xffff0000, Cilium 0x0f00.
const EndedMark = 0x2000

// EndConnections ends the connections of addresses whose first packet the ruleset would drop, lets
// connections go on that an earlier call ended and that it would allow, and returns how many it
// ended and how many are ended now. It touches no other one. It reads all connections of the
// namespace. Each address has the name of its interface in the namespace of a pod; on the node the
// names are empty.
func (n Namespace) EndConnections(ctx context.Context, rs *ruleset.Ruleset, addresses map[netip.Addr]string) (ended, all int, err error) {
	judge := &judge{
		rs: rs, forward: ruleset.NewWalker(rs, ruleset.Forward), in: ruleset.NewWalker(rs, ruleset.Input), out: ruleset.NewWalker(rs, ruleset.Output),
		addresses: addresses, onNode: len(rs.Bases(ruleset.Forward)) > 0,
	}
	err = n.Do(func() error {
		if err := judge.readNode(); err != nil {
			return err
		}
		// A flow is marked as it is read: a ruleset may forbid a million.
		var failed error
		err := conntrack.List(conntrack.Families(maps.Keys(addresses)), func(f *conntrack.Flow) bool {
			isEnded := f.Mark&EndedMark != 0
			switch {
			case !judge.decides(f):
			case judge.drops(f.Protocol, f.Original.Source, f.Reply.Source):
				all++
				if !isEnded {
					ended++
					failed = cmp.Or(failed, conntrack.SetMark(f, EndedMark, EndedMark))
				}
			case isEnded:
				failed = cmp.Or(failed, conntrack.SetMark(f, 0, EndedMark))
			}
			return true
		})
		return errors.Join(err, failed, ctx.Err())
	})
	return ended, all, err
}

// judge says which connections a ruleset would drop.
type judge struct {
	rs               *ruleset.Ruleset
	forward, in, out *ruleset.Walker
	// addresses have their interfaces.
	addresses map[netip.Addr]string
	// onNode is true for a ruleset of hook forward, and node has the addresses of the node then:
	// packets from and to them do not pass hook forward. That is so of addresses of Services on a link
	// of the node as well: what is sent on from there to a pod has the pod's address in Reply.
	onNode bool
	node   map[netip.Addr]bool
}

func (j *judge) readNode() error {
	j.node = map[netip.Addr]bool{}
	if !j.onNode {
		return nil
	}
	found, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			j.node[addr.Unmap()] = true
		}
	}
	return nil
}

// drops returns whether the first packet of a connection would be dropped, as the hooks see it:
// after the translation of its destination and before the translation of its source.
func (j *judge) drops(protocol byte, from, to netip.AddrPort) bool {
	packet := ruleset.Packet{Source: from.Addr(), Destination: to.Addr(), Protocol: ruleset.Protocol(protocol), Port: to.Port()}
	if j.onNode {
		switch {
		case j.node[from.Addr()]:
			return false
		case j.rs.IsNode(to.Addr()):
			return j.in.Walk(packet).Verdict == ruleset.Drop
		}
		// A pod calls itself by its own link, of which conntrack does not know.
		return !j.node[to.Addr()] && !j.rs.IsSelf(from.Addr(), to.Addr()) && j.forward.Walk(packet).Verdict == ruleset.Drop
	}
	source, isSource := j.addresses[from.Addr()]
	destination, isDestination := j.addresses[to.Addr()]
	// Connections from the node may use the interface that leads there, which has no rules.
	if isSource && isDestination || j.rs.IsNode(from.Addr()) {
		return false
	}
	if isSource {
		packet.OutInterface = source
		return j.out.Walk(packet).Verdict == ruleset.Drop
	}
	packet.InInterface = destination
	return isDestination && j.in.Walk(packet).Verdict == ruleset.Drop
}

// decides returns whether the ruleset decides about a connection. The node's decides about all that
// were ended there: the pod may be governed no more.
func (j *judge) decides(f *conntrack.Flow) bool {
	_, source := j.addresses[f.Original.Source.Addr()]
	_, destination := j.addresses[f.Reply.Source.Addr()]
	return source || destination || j.onNode && f.Mark&EndedMark != 0
}

// Adopt has the kernel track connections that began before tracking, each as begun by the side that
// began it: else the kernel takes the side whose packet comes next for that. A tracked connection
// stays as it is, unless the kernel did not see it begin and has the other side as the one that
// began, and the connection is certain or replace is true. What the kernel saw counts for more than
// sockets, of which one that listens no more looks like one that began its connections.
func (n Namespace) Adopt(_ context.Context, all []socket.Connection, replace bool) error {
	if len(all) == 0 {
		return nil
	}
	return n.Do(func() error {
		var errs []error
		for _, c := range all {
			_, err := conntrack.Adopt(c.Protocol, conntrack.Tuple{Source: c.From, Destination: c.To}, replace || c.Certain)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}
