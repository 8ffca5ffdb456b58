// SPDX-License-Identifier: Apache-2.0

package table

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
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/nftables"
)

// EndConnections ends the connections of addresses whose first packet the ruleset that was applied
// last would drop, and lets connections begin again that an earlier call ended and that it would allow.
// Connections that it still allows are not touched. It is for the time after each Apply that may forbid or
// allow something; it reads all connections of the namespace. Each address has the name of its interface in the
// namespace of a pod; on the node the names are empty.
func (t *Table) EndConnections(_ context.Context, addresses map[netip.Addr]string) (ended int, err error) {
	if t.applied == nil {
		return 0, fmt.Errorf("end connections: %w: nothing was applied", ErrChanged)
	}
	judge := newJudge(t.applied.rs, addresses)
	err = t.do(func() error {
		if err := judge.readNode(); err != nil {
			return err
		}
		denied, err := judge.denied()
		if err != nil {
			return err
		}
		// In this order, or a packet between the two would begin the connection again.
		if err := t.cut(denied); err != nil {
			return err
		}
		var errs []error
		for _, flow := range denied {
			errs = append(errs, conntrack.End(flow))
		}
		ended = len(denied)
		return errors.Join(append(errs, t.mend(judge))...)
	})
	return ended, err
}

// judge says which connections a ruleset would drop.
type judge struct {
	forward, in, out *ruleset.Walker
	// addresses have their interfaces.
	addresses map[netip.Addr]string
	// onNode is true for a ruleset of hook forward, and node has the addresses of the node then:
	// packets from and to them do not pass hook forward.
	onNode bool
	node   map[netip.Addr]bool
}

func newJudge(rs *ruleset.Ruleset, addresses map[netip.Addr]string) *judge {
	return &judge{
		forward: ruleset.NewWalker(rs, ruleset.Forward), in: ruleset.NewWalker(rs, ruleset.Input), out: ruleset.NewWalker(rs, ruleset.Output),
		addresses: addresses,
		onNode:    slices.ContainsFunc(baseChains(rs), func(c *ruleset.Chain) bool { return c.Hook == ruleset.Forward }),
	}
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
		return !j.node[from.Addr()] && !j.node[to.Addr()] && j.forward.Walk(packet).Verdict == ruleset.Drop
	}
	source, isSource := j.addresses[from.Addr()]
	destination, isDestination := j.addresses[to.Addr()]
	if isSource && isDestination {
		return false
	}
	if isSource {
		packet.OutInterface = source
		return j.out.Walk(packet).Verdict == ruleset.Drop
	}
	packet.InInterface = destination
	return isDestination && j.in.Walk(packet).Verdict == ruleset.Drop
}

// denied lists the connections of the addresses that the ruleset would drop.
func (j *judge) denied() ([]*conntrack.Flow, error) {
	var all []*conntrack.Flow
	families := map[int]bool{}
	for a := range j.addresses {
		if a.Is4() {
			families[unix.AF_INET] = true
		} else {
			families[unix.AF_INET6] = true
		}
	}
	for family := range families {
		err := conntrack.List(family, func(f *conntrack.Flow) bool {
			_, source := j.addresses[f.Original.Source.Addr()]
			_, destination := j.addresses[f.Reply.Source.Addr()]
			if (source || destination) && j.drops(f.Protocol, f.Original.Source, f.Reply.Source) {
				all = append(all, f)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// cut drops further packets of connections, in both directions. A packet without ports begins a connection only
// in the direction that the rules forbid.
func (t *Table) cut(flows []*conntrack.Flow) error {
	elements := map[string][]nftables.Element{}
	for _, flow := range flows {
		if flow.Reply.Source.Port() == 0 {
			continue
		}
		set := cutOf(flow.Reply.Source.Addr())
		comment := connection{flow.Original.Source, flow.Reply.Source}.String()
		for _, packet := range []conntrack.Tuple{{Source: flow.Original.Source, Destination: flow.Reply.Source}, flow.Reply} {
			key := nftables.AppendAddr(nftables.AppendAddr(nil, packet.Source.Addr()), packet.Destination.Addr())
			key = nftables.AppendPort(nftables.AppendPort(nftables.AppendProto(key, flow.Protocol), packet.Source.Port()), packet.Destination.Port())
			elements[set] = append(elements[set], nftables.Element{Key: key, Comment: comment})
		}
	}
	tx := &nftables.Transaction{}
	for _, f := range families {
		tx.AddElements(identity, f.cut, slices.Values(elements[f.cut]))
	}
	if err := t.commitOne(tx); err != nil {
		return fmt.Errorf("drop the packets of connections that end: %w", err)
	}
	return nil
}

// commitOne makes a change that is none of the ruleset's.
func (t *Table) commitOne(tx *nftables.Transaction) error {
	if tx.IsEmpty() {
		return nil
	}
	verified := t.verified
	t.verified = 0
	if err := tx.Commit(); err != nil {
		return err
	}
	t.verifiedAfter(verified, 1)
	return nil
}

// cutOf names the set for a family.
func cutOf(a netip.Addr) string { return familyOf(ruleset.FamilyOf(a)).cut }

// connection is one that was ended. It stands in the comments of both of its elements.
type connection struct{ from, to netip.AddrPort }

const arrow = " > "

func (c connection) String() string { return c.from.String() + arrow + c.to.String() }

func parseConnection(text string) (c connection, err error) {
	from, to, _ := strings.Cut(text, arrow)
	if c.from, err = netip.ParseAddrPort(from); err == nil {
		c.to, err = netip.ParseAddrPort(to)
	}
	return c, err
}

// leavesSoon is when an element is left to leave by itself, so that it does not do so between
// a list and a transaction, which would fail.
const leavesSoon = 10 * time.Second

// mend takes the connections that the ruleset allows out of the sets.
func (t *Table) mend(j *judge) error {
	tx := &nftables.Transaction{}
	for _, f := range families {
		// An element may be listed twice, and is deleted once.
		allowed := map[string]nftables.Element{}
		err := identity.Elements(f.cut, func(e nftables.Element) {
			c, err := parseConnection(e.Comment)
			protocol := 2 * f.Addr.Size()
			if err != nil || e.Timeout < leavesSoon || protocol >= len(e.Key) || !j.knows(c) || j.drops(e.Key[protocol], c.from, c.to) {
				return
			}
			allowed[string(e.Key)] = nftables.Element{Key: e.Key}
		})
		if err != nil {
			return err
		}
		tx.DeleteElements(identity, f.cut, maps.Values(allowed))
	}
	if err := t.commitOne(tx); err != nil {
		return fmt.Errorf("let connections begin again: %w", err)
	}
	return nil
}

// knows returns whether the ruleset decides about a connection: in a pod's namespace only where an
// interface has one of the addresses.
func (j *judge) knows(c connection) bool {
	_, from := j.addresses[c.from.Addr()]
	_, to := j.addresses[c.to.Addr()]
	return j.onNode || from || to
}

// Adopt has the kernel track connections that began before tracking, each as begun by the side that began it:
// else the kernel takes the side whose packet comes next for that. A tracked connection stays as it is, unless
// replace is true and the kernel has the other side as the one that began. It may be called in parallel.
func (t *Table) Adopt(_ context.Context, connections []socket.Connection, replace bool) error {
	if len(connections) == 0 {
		return nil
	}
	return t.do(func() error {
		var errs []error
		for _, c := range connections {
			_, err := conntrack.Adopt(c.Protocol, conntrack.Tuple{Source: c.From, Destination: c.To}, replace)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}
