// SPDX-License-Identifier: Apache-2.0

package answerer_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/cni/conflict"
)

// A host that is no node, and has the address of a pod, keeps the node from answering for as long
// as it does, and is named after three seconds. Of a proxy that is so only where another node may
// answer by proxy.
func TestForeignHost(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 9, 9}
	for name, c := range map[string]struct {
		proxy, again bool
		leaves       time.Duration
		foreign      bool
		within       time.Duration
	}{
		"it stays":                           {foreign: true, within: 4 * time.Second},
		"it gives the address up":            {leaves: 2 * time.Second, within: 3 * time.Second},
		"a proxy":                            {proxy: true, within: 400 * time.Millisecond},
		"it took it while the cable was out": {again: true, within: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				n := w.add("node")
				w.strangers, w.proxies = map[netip.Addr]net.HardwareAddr{address: mac}, c.proxy
				a := start(n)
				h := Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}
				if c.again {
					a.Carry(h, false, 0)
				} else {
					a.Take(h)
				}
				if c.leaves > 0 {
					time.AfterFunc(c.leaves, func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						clear(w.strangers)
					})
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				foreign, err := a.Wait(ctx, []netip.Addr{address})
				if (err != nil) != c.again || (len(foreign) == 1) != c.foreign || time.Since(began) > c.within {
					t.Errorf("after %v: %v, %v", time.Since(began), foreign, err)
				}
				for _, f := range foreign {
					if f.Address != address || f.MAC.String() != mac.String() {
						t.Errorf("it is %v", f)
					}
				}
				if answers := n.answers(address); answers != (!c.foreign && !c.again) {
					t.Errorf("the node answers: %t", answers)
				}
				// Nothing of that is believed about the next pod.
				w.mu.Lock()
				clear(w.strangers)
				w.mu.Unlock()
				a.Leave("p")
				a.Take(h)
				if took, err := wait(t, a, time.Second); err != nil || took < 300*time.Millisecond {
					t.Errorf("the next pod waits for %v, %v", took, err)
				}
			})
		})
	}
}

// Foreign finds the host that goes on to have an address of a pod that runs, and no other.
func TestForeign(t *testing.T) {
	mac, other := net.HardwareAddr{2, 0, 0, 0, 9, 9}, netip.MustParseAddr("10.0.70.6")
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		synctest.Wait()
		targets := []conflict.Target{{Address: address, Link: 1}, {Address: other, Link: 1}}
		find := func(want ...string) {
			t.Helper()
			found, err := a.Foreign(t.Context(), targets)
			var got []string
			for _, f := range found {
				got = append(got, f.Address.String()+" "+f.MAC.String())
			}
			if err != nil || len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
				t.Errorf("Foreign() = %v, %v, want %v", got, err, want)
			}
		}
		has := func(strangers map[netip.Addr]net.HardwareAddr) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.strangers = strangers
		}
		find()
		has(map[netip.Addr]net.HardwareAddr{address: mac})
		find(address.String() + " " + mac.String())
		targets[0].Own = mac
		find()
		targets[0].Own = nil
		time.AfterFunc(2*time.Second, func() { has(nil) })
		find()
		if _, err := a.Foreign(t.Context(), []conflict.Target{{Address: address, Link: 2}}); err == nil {
			t.Error("of a link on which nobody is heard there is no error")
		}
	})
}

// Claims are heard of the addresses that are defended now, also on a link that is opened anew.
func TestClaims(t *testing.T) {
	own := net.HardwareAddr{2, 0, 0, 0, 5, 5}
	claim := conflict.Conflict{Address: address, MAC: net.HardwareAddr{2, 0, 0, 0, 9, 9}, Link: "eth0"}
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		defends := func(want ...conflict.Target) {
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if diff := cmp.Diff(want, n.defends, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
				t.Errorf("the segment defends (-want +got):\n%s", diff)
			}
		}
		h := Holding{Address: address, Pod: "p", Link: 1, Version: 5, OwnMAC: own, Defended: true}
		target := conflict.Target{Address: address, Link: 1, Own: own}
		a.Take(h)
		defends(target)
		a.Take(Holding{Address: gateway, Pod: "NodeAssignment", Link: 1, Version: 5})
		defends(target)
		w.mu.Lock()
		n.mac, n.defends = net.HardwareAddr{2, 0, 0, 0, 0, 8}, nil
		w.mu.Unlock()
		a.Recheck()
		defends(target)
		w.mu.Lock()
		n.defends, n.defendErr = nil, errors.New("no buffer space available")
		w.mu.Unlock()
		a.Carry(h, true, 0)
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
		defends(target)
		w.mu.Lock()
		n.claimed(claim)
		w.mu.Unlock()
		if got := <-a.Claims(); got.String() != claim.String() || got.Pod != "p" {
			t.Errorf("%s is heard, of pod %s", got, got.Pod)
		}
		for range 1000 { // Anybody may claim at any rate.
			n.claimed(claim)
		}
		a.Leave("p")
		defends()
	})
}
