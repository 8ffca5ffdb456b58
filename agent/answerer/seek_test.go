// SPDX-License-Identifier: Apache-2.0

package answerer_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	. "github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
)

// A node that may be lost is asked for. Only an answer of another host than it says that this node
// hears anything.
func TestSeek(t *testing.T) {
	macs, none := map[netip.Addr][]string{address: {"02:00:00:00:00:01"}}, map[netip.Addr][]string{}
	for name, c := range map[string]struct {
		// dead: the agent of the lost node; off: the node; out: the cable of the witness. gateway and
		// third are hosts of the segment. moved: others have all addresses of the node.
		dead, off, out, gateway, third, moved bool
		want                                  Sighting
	}{
		"it lives":                              {gateway: true, want: Sighting{Control: true, Node: true, MACs: macs}},
		"it lives, and hears the witness alone": {want: Sighting{Node: true, MACs: macs}},
		"its agent is dead":                     {dead: true, gateway: true, want: Sighting{Control: true, MACs: macs}},
		"it is off":                             {off: true, gateway: true, want: Sighting{Control: true, MACs: none}},
		"it is off, and there is no gateway":    {off: true, third: true, want: Sighting{Control: true, MACs: none}},
		"it is off, and nobody is there":        {off: true, want: Sighting{MACs: none}},
		"the witness' cable is out":             {out: true, gateway: true, third: true, want: Sighting{MACs: none}},
		"it is off, without an address":         {off: true, moved: true, gateway: true, want: Sighting{Control: true, MACs: none}},
		"it is off, without address or gateway": {off: true, moved: true, third: true, want: Sighting{Control: true, MACs: none}},
		"nobody is there, nor an address":       {off: true, moved: true, want: Sighting{MACs: none}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				lost, witness := w.add("lost"), w.add("witness")
				lost.own, witness.own = netip.MustParseAddr("10.0.60.1"), netip.MustParseAddr("10.0.60.2")
				if c.third {
					third := w.add("third")
					third.own = netip.MustParseAddr("10.0.60.3")
					start(third).Join(1, "eth0", netip.Addr{})
					synctest.Wait()
				}
				a := start(witness)
				known := netip.Addr{}
				if c.gateway {
					known = gateway
				}
				a.Join(1, "eth0", known)
				synctest.Wait()
				start(lost).Join(1, "eth0", netip.Addr{})
				lost.set(address, true)
				time.Sleep(50 * time.Second) //nolint:forbidigo // the clock is the test's
				w.mu.Lock()
				if c.dead {
					lost.heard = nil
				}
				lost.out, witness.out = c.off, c.out
				w.mu.Unlock()
				began := time.Now()
				addresses := []netip.Addr{address}
				if c.moved {
					addresses = nil
				}
				got := a.Seek(t.Context(), "lost", addresses, []int{1})
				if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("Seek() (-want +got):\n%s", diff)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A host of one network vouches for no silence in another one, and a host that answers there for an
// address, as routers do for all that they have routes for, is not asked.
func TestSeekInAnotherNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		nodes, pool := &wire{}, &wire{noGateway: true}
		onNodes, onPool := nodes.add("witness"), pool.add("witness")
		router, lost := nodes.add("router"), pool.add("lost")
		router.set(address, true)
		lost.set(address, true)
		lost.out = true
		a := New(answering.Node{Name: "witness"}, func(link int) (Segment, error) {
			return port{map[int]*host{1: onNodes, 2: onPool}[link]}, nil
		}, onNodes, false)
		group.Go(func() { a.Run(ctx) })
		a.Join(1, "eth0", gateway)
		a.Join(2, "eth0", gateway)
		synctest.Wait()
		says := func(when string, control bool, links ...int) {
			t.Helper()
			got := a.Seek(ctx, "lost", []netip.Addr{address}, links)
			if got.Control != control || got.Node {
				t.Errorf("%s, links %v: Seek() = %+v", when, links, got)
			}
			if len(links) == 1 && links[0] == 2 && len(got.MACs) > 0 {
				t.Errorf("%s: %v answers on a link where it was not asked", when, got.MACs)
			}
		}
		says("the pool's network is broken", false, 2)
		says("the pool's network is broken", false, 1, 2)
		says("the network is not at the node", false)
		says("the other network is asked for", true, 1)
		pool.mu.Lock()
		pool.noGateway = false
		pool.mu.Unlock()
		says("its gateway answers", true, 2)
		says("both answer", true, 1, 2)
	})
}

// Of addresses alone it says by which MACs hosts answer, of a gateway's, too, and for which links
// nobody can be asked.
func TestSeekAddresses(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n, other := w.add("node"), w.add("other")
		other.set(address, true)
		w.strangers = map[netip.Addr]net.HardwareAddr{address: {2, 0, 0, 0, 9, 9}}
		a := start(n)
		if err := a.Check(1); err == nil {
			t.Error("a link can be asked on which the node hears nobody")
		}
		a.Join(1, "eth0", gateway)
		got := a.Seek(t.Context(), "", []netip.Addr{address, gateway, address.Next()}, []int{1})
		want := map[netip.Addr][]string{address: {"02:00:00:00:00:02", "02:00:00:00:09:09"}, gateway: {"02:00:00:00:00:fe"}}
		if diff := cmp.Diff(want, got.MACs, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("Seek() (-want +got):\n%s", diff)
		}
		if err := a.Check(1); err != nil {
			t.Error(err)
		}
		n.plug(a, false)
		synctest.Wait()
		if err := a.Check(1); err == nil {
			t.Error("a link without a carrier can be asked")
		}
		n.plug(a, true)
		w.mu.Lock()
		n.openErr = ErrNobodyToAsk
		w.mu.Unlock()
		a.Join(2, "wg0")
		synctest.Wait()
		if err := a.Check(2); !errors.Is(err, ErrNobodyToAsk) {
			t.Errorf("a link that is no Ethernet: %v", err)
		}
	})
}

// A host is asked alone by its MAC, all hosts without one, and whoever answers is heard; on a link
// where the node hears nobody, nobody is.
func TestAsk(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n, other := w.add("node"), w.add("other")
		other.set(address, true)
		a := start(n)
		ask := func(mac string) map[netip.Addr][]string {
			return a.Ask(t.Context(), 1, map[netip.Addr]string{address: mac, gateway: "", address.Next(): ""}, 300*time.Millisecond)
		}
		if got := ask(""); got != nil {
			t.Errorf("on no link %v answer", got)
		}
		a.Join(1, "eth0", gateway)
		synctest.Wait()
		want := map[netip.Addr][]string{address: {"02:00:00:00:00:02"}, gateway: {"02:00:00:00:00:fe"}}
		for _, mac := range []string{"", "02:00:00:00:00:02"} {
			w.mu.Lock()
			n.polls = 0
			w.mu.Unlock()
			if diff := cmp.Diff(want, ask(mac), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("Ask() of %q (-want +got):\n%s", mac, diff)
			}
			w.mu.Lock()
			if alone := n.polls == 1; alone != (mac != "") {
				t.Errorf("of %q the host is asked alone: %t", mac, alone)
			}
			w.mu.Unlock()
		}
		n.plug(a, false)
		if got := ask(""); len(got) > 0 {
			t.Errorf("without its cable it hears %v", got)
		}
	})
}
