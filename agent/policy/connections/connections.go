// SPDX-License-Identifier: Apache-2.0

// Package connections ends the connections that a ruleset would not let begin, and lets them
// continue if a later ruleset would. It sets a bit of the kernel's connection mark, which the rules
// of every backend check. The marked connection stays in the kernel's table as long as packets
// come. So no packet of the other side can begin it anew in the other direction, which may be
// allowed.
package connections

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
)

// EndedMark is the bit of the connection mark by which rules recognize an ended connection.
// Programs that share the mark do not use this bit: kube-proxy uses the bits 0x4000 and 0x8000 of
// the packet's mark, Calico 0xffff0000, Cilium 0x0f00.
const EndedMark = 0x2000

// Namespace is the path of a network namespace; empty is the namespace of the calling process.
// Methods block for the kernel and may be called in parallel.
type Namespace string

// Do calls f on a thread in the namespace.
func (n Namespace) Do(f func() error) error {
	if n == "" {
		return f()
	}
	return rtnl.InNetNS(string(n), f)
}

// IsGone reports whether an error says that the namespace no longer exists at its path.
func IsGone(err error) bool {
	var missing ns.NSPathNotExistErr
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &missing)
}

// EndConnections ends the connections of addresses whose first packet the ruleset would drop. It
// lets connections continue that an earlier call ended and the ruleset would allow. It returns how
// many it ended, and how many are ended now. It changes no other connection. It reads all
// connections of the namespace. In the namespace of a pod each address has the name of its
// interface; on the node the names are empty.
func (n Namespace) EndConnections(ctx context.Context, rs *ruleset.Ruleset, addresses map[netip.Addr]string) (ended, all int, err error) {
	judge := &judge{
		rs: rs, forward: ruleset.NewWalker(rs, ruleset.Forward), in: ruleset.NewWalker(rs, ruleset.Input), out: ruleset.NewWalker(rs, ruleset.Output),
		addresses: addresses, onNode: len(rs.Bases(ruleset.Forward)) > 0,
	}
	err = n.Do(func() error {
		if err := judge.readNode(); err != nil {
			return err
		}
		// Each flow is marked as soon as it is read, because a ruleset may forbid a million flows.
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

type judge struct {
	rs               *ruleset.Ruleset
	forward, in, out *ruleset.Walker
	// addresses has the interface of each address.
	addresses map[netip.Addr]string
	// onNode is true for a ruleset of the hook forward. Then node has the addresses of the node:
	// packets from and to them do not pass the hook forward. This includes addresses of Services on a
	// link of the node: a flow from there to a pod has the pod's address in Reply.
	onNode bool
	node   map[netip.Addr]bool
}

func (j *judge) readNode() error {
	j.node = map[netip.Addr]bool{}
	if !j.onNode {
		return nil
	}
	found, err := rtnl.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			j.node[addr.Unmap()] = true
		}
	}
	return nil
}

// drops reports whether the first packet of a connection would be dropped. from and to are as the
// hooks see them: after the translation of the destination and before the translation of the
// source.
func (j *judge) drops(protocol byte, from, to netip.AddrPort) bool {
	packet := ruleset.Packet{Source: from.Addr(), Destination: to.Addr(), Protocol: ruleset.Protocol(protocol), Port: to.Port()}
	if j.onNode {
		switch {
		case j.node[from.Addr()]:
			return false
		case j.rs.IsNode(to.Addr()):
			return j.in.Walk(packet).Verdict == ruleset.Drop
		}
		// A pod calls itself by its own link, but conntrack does not know links.
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

// decides reports whether the ruleset decides about a connection. The node's ruleset decides about
// all connections ended there, because their pod may not be governed any more.
func (j *judge) decides(f *conntrack.Flow) bool {
	_, source := j.addresses[f.Original.Source.Addr()]
	_, destination := j.addresses[f.Reply.Source.Addr()]
	return source || destination || j.onNode && f.Mark&EndedMark != 0
}

// Adopt makes the kernel track connections that are older than the tracking, each with the side
// that began it. Otherwise the kernel would take the side of the next packet for the side that
// began. A tracked connection stays unchanged, unless the kernel did not see its begin and has the
// wrong side, and the connection is certain or replace is true. The kernel's knowledge counts more
// than sockets: a socket that no longer listens looks like a client.
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
