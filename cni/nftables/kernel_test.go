// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// sample has each statement, and sets of each kind.
func sample() *Table {
	addr := netip.MustParseAddr("10.0.0.1")
	port := AppendPort(AppendProto(nil, 6), 80)
	return &Table{
		Family: INet, Name: "berth-test", Counters: []string{"counted"},
		Sets: []*Set{
			{Name: "links", Key: []Type{IfName}},
			{Name: "addrs", Key: []Type{IPv4Addr}, Elements: Keys(addr.AsSlice(), addr.Next().AsSlice())},
			{Name: "blocks", Key: []Type{IPv4Addr}, Interval: true, Elements: Elements(Element{Key: []byte{10, 0, 0, 0}}, Element{Key: []byte{11, 0, 0, 0}, End: true})},
			{Name: "ports", Key: []Type{InetProto, InetService}, Data: []Type{IPv4Addr, InetService}, Elements: Elements(Element{Key: port, Data: AppendPort(addr.AsSlice(), 8080)})},
			{Name: "verdicts", Key: []Type{IPv4Addr}, Verdicts: true, Elements: Elements(Element{Key: addr.AsSlice(), Goto: "inner"})},
		},
		Chains: []*Chain{
			{Name: "inner", Rules: Rules(NewRule("end", Return))},
			{Name: "filter", Base: Filter(Forward, PriorityFilter), Rules: Rules(
				NewRule("links", In("links", IIFName), OIFName.IsNotLink("lo"), Accept),
				NewRule("IPv4", V4.Is, NotIn("blocks", V4.SAddr), V4.DAddr.And(0xf0).IsNot(224), Drop),
				NewRule("IPv6", V6.Is, FromLinkLocal, ICMPv6(RouterAdvertisement), IPv6Fragment, Jump("inner")),
				NewRule("connections", Established, IsReply, DestinationTranslated, Goto("inner")),
				NewRule("ports", L4Proto.Is(6), DPort.Between([]byte{0, 1}, []byte{0, 9}), CounterNamed("counted")),
				NewRule("map", Vmap("verdicts", V4.DAddr)),
				NewRule("mark", HasMark(0x1020, 0x1070), V4.CTReplyDAddr().Is(addr.AsSlice()...), Accept),
				NewRule("set", NotByLoopback, Counter, SetMark(0x1000, 0x1010), V4.SetDSCP(46), V6.SetDSCP(46)),
			)},
			{Name: "prerouting", Base: NAT(Prerouting, -90), Rules: Rules(NewRule("to a pod", V4.Is, ToNode, V4.DNAT("ports", L4Proto, DPort)))},
			{Name: "before_routing", Base: Filter(Prerouting, 290), Rules: Rules(
				NewRule("nowhere", WayOut.IsIndex(0), V6.CTReplyDAddr().Is(make([]byte, 16)...), Accept), NewRule("somewhere", WayOut.IsNotIndex(7), Accept))},
			{Name: "postrouting", Base: NAT(Postrouting, PrioritySrcNAT), Rules: Rules(
				NewRule("own", V6.Is, V6.KeepSource()), NewRule("ports", CTOriginalDPort.Is(0, 80), Masquerade), NewRule("random", MasqueradeRandom),
				NewRule("fixed", V4.Is, V4.SNAT(addr)), NewRule("fixed", V6.Is, V6.SNAT(netip.IPv6LinkLocalAllNodes())))},
		},
	}
}

// The kernel lists each statement as it was written, and a second Sync changes nothing.
func TestSync(t *testing.T) {
	node := netnstest.New(t)
	node.Run(func() error {
		table := sample()
		for _, want := range []bool{true, false} {
			changed, err := table.Sync()
			if err != nil {
				return err
			}
			if changed != want {
				t.Errorf("Sync changed something is %t, want %t", changed, want)
			}
			if err := errors.Join(table.Check(), table.CheckRules()); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
}

// Check reports every difference and Sync fixes it; elements that others own stay where the rules
// are right.
func TestSyncMends(t *testing.T) {
	link := AppendName(nil, "eth0")
	other := Element{Key: []byte{10, 0, 0, 9}}
	for name, tc := range map[string]struct {
		change func(tx *Transaction, of *Table)
		keeps  bool
	}{
		"nothing":         {func(*Transaction, *Table) {}, true},
		"element more":    {func(tx *Transaction, of *Table) { tx.AddElements(of, "addrs", Elements(other)) }, true},
		"element less":    {func(tx *Transaction, of *Table) { tx.DeleteElements(of, "addrs", Keys([]byte{10, 0, 0, 1})) }, true},
		"interval less":   {func(tx *Transaction, of *Table) { tx.flushSet(of, "blocks") }, true},
		"map less":        {func(tx *Transaction, of *Table) { tx.flushSet(of, "verdicts") }, true},
		"rules gone":      {func(tx *Transaction, of *Table) { tx.FlushChain(of, "filter") }, false},
		"set more":        {func(tx *Transaction, of *Table) { tx.AddSet(of, &Set{Name: "more", Key: []Type{IPv4Addr}}) }, false},
		"chain more":      {func(tx *Transaction, of *Table) { tx.AddChain(of, &Chain{Name: "more"}) }, false},
		"table gone":      {func(tx *Transaction, of *Table) { tx.DeleteTable(of) }, false},
		"policy of chain": {func(tx *Transaction, of *Table) { tx.AddChain(of, drops(of.Chains[1])) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			node := netnstest.New(t)
			node.Run(func() error {
				table := sample()
				if _, err := table.Sync(); err != nil {
					return err
				}
				var tx Transaction
				tx.AddElements(table, "links", Keys(link))
				tc.change(&tx, table)
				if err := tx.Commit(); err != nil {
					return err
				}
				if err := table.Check(); errors.Is(err, ErrDiffers) != (name != "nothing") {
					t.Errorf("Check() = %v", err)
				}
				changed, err := table.Sync()
				if err != nil || changed != (name != "nothing") {
					t.Errorf("Sync() = %t, %v", changed, err)
				}
				links, err := table.Keys("links")
				if links[string(link)] != tc.keeps {
					t.Errorf("the link stayed is %t, want %t", links[string(link)], tc.keeps)
				}
				return errors.Join(err, table.Check())
			})
		})
	}
}

func drops(c *Chain) *Chain {
	base := *c.Base
	base.Drops = true
	return &Chain{Name: c.Name, Base: &base}
}

// A rule with the comment of ours that does something else is found where comments are not trusted.
func TestCheckRules(t *testing.T) {
	node := netnstest.New(t)
	node.Run(func() error {
		table := sample()
		if _, err := table.Sync(); err != nil {
			return err
		}
		var tx Transaction
		tx.FlushChain(table, "inner")
		tx.AddRules(table, &Chain{Name: "inner", Rules: func(yield func(Rule) bool) {
			for r := range table.Chains[0].Rules {
				r.statements = Accept.encoded
				yield(r)
			}
		}})
		if err := tx.Commit(); err != nil {
			return err
		}
		if err := table.CheckRules(); !errors.Is(err, ErrDiffers) {
			t.Errorf("CheckRules() = %v, want ErrDiffers", err)
		}
		return nil
	})
}

// A transaction is the first one since a moment only where it changed something, and none came
// before it.
func TestCommitAfter(t *testing.T) {
	table := sample()
	element := func(last byte) *Transaction {
		tx := &Transaction{}
		tx.AddElements(table, "addrs", Keys([]byte{10, 1, 0, last}))
		return tx
	}
	for name, c := range map[string]struct {
		since   func(Moment) Moment
		between *Transaction
		change  *Transaction
		want    bool
	}{
		"the first one":        {change: element(1), want: true},
		"the second one":       {between: element(2), change: element(1)},
		"changes nothing":      {change: element(0)},
		"the first, no change": {between: element(1), change: element(0)},
		"of an unknown moment": {since: func(Moment) Moment { return Moment{} }, change: element(1)},
	} {
		t.Run(name, func(t *testing.T) {
			node := netnstest.New(t)
			node.Run(func() error {
				var tx Transaction
				tx.Make(table)
				tx.AddElements(table, "addrs", Keys([]byte{10, 1, 0, 0}))
				if err := tx.Commit(); err != nil {
					return err
				}
				before, known := Now()
				if !known {
					t.Skip("the kernel gives namespaces no cookies")
				}
				if c.since != nil {
					before = c.since(before)
				}
				if c.between != nil {
					if err := c.between.Commit(); err != nil {
						return err
					}
				}
				after, first, err := c.change.CommitAfter(before)
				if err != nil {
					return err
				}
				now, _ := Now()
				if first != c.want || first && after != now {
					t.Errorf("the transaction is the first one: %t, want %t; after %+v it makes %+v, now it is %+v", first, c.want, before, after, now)
				}
				return nil
			})
		})
	}
}
