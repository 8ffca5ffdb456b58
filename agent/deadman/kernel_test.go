// SPDX-License-Identifier: Apache-2.0

package deadman

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/conflict/conflicttest"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const (
	moves4, moves6 = "10.0.70.5", "2001:db8:70::5"
	stays4, stays6 = "10.0.70.6", "2001:db8:70::6"
	// after is long beside what the tests do at once, and short beside their patience.
	after = 5 * time.Second
)

// lab is a node with two pods, and a client on its network.
type lab struct {
	t            *testing.T
	node, client *netnstest.Host
	moves, stays wire.Spec
}

func newLab(t *testing.T) *lab {
	t.Helper()
	t.Parallel()
	netnstest.Need(t)
	l := &lab{t: t, node: netnstest.New(t), client: netnstest.New(t)}
	segment := netnstest.NewWire(t)
	segment.Plug(l.node, "eth0", netip.MustParsePrefix("10.0.70.11/24"), netip.MustParsePrefix("2001:db8:70::11/64"))
	segment.Plug(l.client, "eth0", netip.MustParsePrefix("10.0.70.50/24"), netip.MustParsePrefix("2001:db8:70::50/64"))
	l.moves, l.stays = l.pod("moves", moves4, moves6), l.pod("stays", stays4, stays6)
	return l
}

func (l *lab) pod(id string, addrs ...string) wire.Spec {
	spec := wire.Spec{ContainerID: id, IfName: "eth0", NetNS: netnstest.New(l.t).Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(addrs[0]))}
	for _, text := range addrs {
		addr := netip.MustParseAddr(text)
		bits := map[bool]int{true: 24, false: 64}[addr.Is4()]
		spec.Addresses = append(spec.Addresses, api.Address{Address: addr, Subnet: netip.PrefixFrom(addr, bits).Masked()})
	}
	l.node.Run(func() error {
		_, err := wire.New("").Setup(spec)
		return err
	})
	return spec
}

// watched are the addresses of the pod that moves.
func watched() map[netip.Addr]bool {
	return map[netip.Addr]bool{netip.MustParseAddr(moves4): true, netip.MustParseAddr(moves6): true}
}

// keep calls Keep, and compares the addresses that expired.
func (l *lab) keep(s *Switch, want ...string) {
	l.t.Helper()
	l.node.Run(func() error {
		expired, err := s.Keep(watched())
		var got []string
		for _, addr := range expired {
			got = append(got, addr.String())
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			l.t.Errorf("expired (-want +got):\n%s", diff)
		}
		return err
	})
}

func (l *lab) change(change func(*wire.Wirer, wire.Spec) error) {
	l.t.Helper()
	l.node.Run(func() error { return change(wire.New(""), l.moves) })
}

// answered compares the addresses for which the node answers.
func (l *lab) answered(want ...string) {
	l.t.Helper()
	var got []string
	l.client.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		var addrs []netip.Addr
		for _, text := range []string{moves4, stays4, moves6, stays6} {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		macs, err := conflicttest.Ask(l.t, link.Index, addrs...)
		for _, addr := range addrs {
			if len(macs[addr]) > 0 {
				got = append(got, addr.String())
			}
		}
		return err
	})
	if diff := cmp.Diff(want, got); diff != "" {
		l.t.Errorf("the node answers for (-want +got):\n%s", diff)
	}
}

// dies waits until nobody has said for too long that the agent lives.
func (l *lab) dies() {
	l.t.Helper()
	netnstest.Eventually(l.t, func() error {
		return l.node.Try(func() error {
			for _, g := range guards {
				left, err := g.table(nil, nil, 0).Keys(g.alive())
				if err != nil || len(left) > 0 {
					return errors.Join(err, fmt.Errorf("%d addresses of table %s are alive", len(left), g.family))
				}
			}
			return nil
		})
	})
}

// elapse waits until a time has passed by the kernel's clock.
func (l *lab) elapse(d time.Duration) {
	l.t.Helper()
	table := &nftables.Table{Family: nftables.IPv4, Name: "clock", Sets: []*nftables.Set{{
		Name: "s", Key: []nftables.Type{nftables.IPv4Addr}, Timeout: d, Elements: nftables.Keys([]byte{1, 2, 3, 4}),
	}}}
	l.client.Run(func() error {
		var tx nftables.Transaction
		tx.Replace(table)
		return tx.Commit()
	})
	netnstest.Eventually(l.t, func() error {
		return l.client.Try(func() error {
			left, err := table.Keys("s")
			if len(left) > 0 {
				return errors.New("the time has not passed")
			}
			return err
		})
	})
}

// tables lists the switch's tables.
func (l *lab) tables() (names []string) {
	l.t.Helper()
	l.node.Run(func() error {
		all, err := nftables.Tables(0)
		for _, table := range all {
			if table.Name == tableName {
				names = append(names, table.Family.String())
			}
		}
		slices.Sort(names)
		return err
	})
	return names
}

// The agent dies: the node falls silent for the addresses that are watched, and for no others, and
// stays silent for them when an agent is back, until it answers for them anew.
func TestAgentDies(t *testing.T) {
	l := newLab(t)
	l.keep(New(after))
	l.answered(moves4, stays4, moves6, stays6)
	l.dies()
	l.answered(stays4, stays6)

	next := New(after)
	for range 2 {
		l.keep(next, moves4, moves6)
		l.answered(stays4, stays6)
	}
	l.change((*wire.Wirer).Close)
	l.keep(next)
	if got := l.tables(); len(got) > 0 {
		t.Errorf("no address is watched, and there are tables: %v", got)
	}
	l.answered(stays4, stays6)
	l.change((*wire.Wirer).Repair)
	l.keep(next)
	l.answered(moves4, stays4, moves6, stays6)
}

// While agents come and go within the time, and each renews it twice, no question stays without an
// answer.
func TestNeverSilent(t *testing.T) {
	l := newLab(t)
	var asker *conflict.Asker
	l.client.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			asker, err = conflict.OpenAsker(link.Index, nil)
		}
		return err
	})
	defer asker.Close()
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan netip.Addr, 10000)
	var group sync.WaitGroup
	group.Go(func() {
		if err := asker.Hear(ctx, func(a conflict.Answer) { answers <- a.Address }, func(conflict.Conflict) {}); err != nil {
			t.Error(err)
		}
	})
	defer group.Wait()
	defer cancel()
	addrs := []netip.Addr{netip.MustParseAddr(moves4), netip.MustParseAddr(moves6)}
	l.keep(New(time.Minute))
	count := 200
	if testing.Short() {
		count = 40
	}
	agents := make(chan error, 1)
	go func() {
		agents <- l.node.Try(func() error {
			for range count {
				s := New(time.Minute) // another agent
				expired, err := s.Keep(watched())
				if len(expired) > 0 {
					err = fmt.Errorf("%v expired", expired)
				}
				if err = errors.Join(err, s.Park(watched())); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	asked := 0
	for running := true; running; asked++ {
		l.client.Run(func() error { return asker.Question(addrs) })
		left := map[netip.Addr]bool{addrs[0]: true, addrs[1]: true}
		lost := time.After(time.Minute)
		for len(left) > 0 {
			select {
			case addr := <-answers:
				delete(left, addr)
			case <-lost:
				t.Fatalf("question %d for %v has no answer", asked, left)
			}
		}
		select {
		case err := <-agents:
			running = false
			if err != nil {
				t.Error(err)
			}
		default:
		}
	}
	t.Logf("%d questions were answered", asked)
}

// An agent that ends in order leaves the next one more time.
func TestPark(t *testing.T) {
	l := newLab(t)
	s := newSwitch(after, 20*after)
	l.keep(s)
	l.node.Run(func() error { return s.Park(watched()) })
	l.elapse(2 * after)
	l.answered(moves4, stays4, moves6, stays6)
	// The next one may die.
	l.keep(New(after))
	l.answered(moves4, stays4, moves6, stays6)
	l.dies()
	l.answered(stays4, stays6)
}

// An agent without the switch ends what an earlier one began, but for addresses for which the node
// is silent.
func TestOff(t *testing.T) {
	for name, dies := range map[string]bool{"the agent is changed": false, "the agent dies": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			off := New(0)
			l.keep(off)
			if got := l.tables(); len(got) > 0 {
				t.Errorf("without a switch there are tables: %v", got)
			}
			l.keep(New(after))
			off = New(0)
			if dies {
				l.dies()
				l.keep(off, moves4, moves6)
				l.answered(stays4, stays6)
				l.change((*wire.Wirer).Close)
			}
			l.keep(off)
			if got := l.tables(); len(got) > 0 {
				t.Errorf("without a switch there are tables: %v", got)
			}
			if off.Interval() != 0 || off.Err() != nil {
				t.Errorf("Interval() = %v, Err() = %v", off.Interval(), off.Err())
			}
		})
	}
}

// No address is watched that the node does not answer for, and no table made.
func TestNothingWatched(t *testing.T) {
	l := newLab(t)
	s := New(after)
	l.node.Run(func() error {
		_, err := s.Keep(map[netip.Addr]bool{netip.MustParseAddr("10.0.70.9"): true})
		return err
	})
	if got := l.tables(); len(got) > 0 {
		t.Errorf("there are tables: %v", got)
	}
	l.keep(s)
	if diff := cmp.Diff([]string{"arp", "inet"}, l.tables()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	l.change((*wire.Wirer).Withdraw)
	l.keep(s)
	if got := l.tables(); len(got) > 0 {
		t.Errorf("there are tables: %v", got)
	}
	l.node.Run(func() error { _, err := wire.New("").Setup(l.moves); return err })
	l.keep(s)
	l.dies()
	l.answered(stays4, stays6)
}

// What another program takes away is put back, and does not end the silence for an address.
func TestMends(t *testing.T) {
	l := newLab(t)
	l.keep(New(after))
	l.dies()
	l.node.Run(func() error {
		var tx nftables.Transaction
		for _, g := range guards {
			tx.FlushChain(g.table(nil, nil, 0), "silence")
		}
		return tx.Commit()
	})
	l.answered(moves4, stays4, moves6, stays6)
	s := New(after)
	l.keep(s, moves4, moves6)
	l.answered(stays4, stays6)
	l.node.Run(func() error {
		items, err := netfilter.Leftovers()
		left := 0
		for _, item := range items {
			if strings.HasSuffix(item.Name, " "+tableName) {
				left++
				err = errors.Join(err, item.Remove())
			}
		}
		if left != 2 {
			t.Errorf("a cleanup finds %d tables, want 2: %v", left, items)
		}
		return err
	})
	if got := l.tables(); len(got) > 0 {
		t.Errorf("after a cleanup there are tables: %v", got)
	}
	l.answered(moves4, stays4, moves6, stays6)
	l.keep(s)
	l.dies()
	l.answered(stays4, stays6)
}
