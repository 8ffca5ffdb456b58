// SPDX-License-Identifier: Apache-2.0

package answerer_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/cni/conflict"
)

// move has the address at another node, fresh, of a version that is newer, and fails the test where
// both answer.
func move(t *testing.T, old, fresh *host, b *Answerer, last string) {
	t.Helper()
	b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: answering.Node{Name: last}})
	took, err := wait(t, b, 10*time.Second)
	if err != nil || took > time.Second || old.answers(address) {
		t.Errorf("the new holder waited %v: %v; the old one answers: %t, and denied %d times", took, err, old.answers(address), old.denials())
	}
	fresh.set(address, true)
	time.Sleep(time.Hour) //nolint:forbidigo // the clock is the test's
	if old.answers(address) || !fresh.answers(address) {
		t.Errorf("an hour later the old node answers: %t, the new one: %t", old.answers(address), fresh.answers(address))
	}
}

// A link that was made anew has another index. Its addresses are asked for there, and given up
// there.
func TestLinkMadeAnew(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		a, b := start(old), start(fresh)
		a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		a.Join(1, "eth0", gateway)
		synctest.Wait()
		old.remake(a)
		if !a.Waits(address) && old.answers(address) {
			t.Fatal("the node answers on a link that it has not asked on")
		}
		a.Carry(Holding{Address: address, Pod: "p", Link: 2, Gateway: gateway, Version: 5}, false, 0)
		if !a.Waits(address) {
			t.Error("the node may answer before it has asked")
		}
		synctest.Wait()
		if got := a.Unanswered(); len(got) != 1 || got[0].Address != address {
			t.Errorf("Unanswered() = %+v", got)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
		if link, has := a.Link(address); !has || link != 2 || !old.answers(address) {
			t.Errorf("the address is on link %d: %t, and the node answers: %t", link, has, old.answers(address))
		}
		if got := a.Hearings(); len(got) != 1 || got[0].Error != "" {
			t.Errorf("Hearings() = %+v", got)
		}
		move(t, old, fresh, b, "old")
	})
}

// A node whose MAC changes hears answers to the new one, and says it to the others.
func TestAnotherMAC(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n, other := w.add("node"), w.add("other")
		a, b := start(n), start(other)
		a.Join(1, "eth0", gateway)
		b.Join(1, "eth0", gateway)
		synctest.Wait()
		other.set(address, true)
		w.mu.Lock()
		n.mac = net.HardwareAddr{2, 0, 0, 0, 0, 0x99}
		w.mu.Unlock()
		a.Recheck()
		time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
		if heard := b.Hearings(); len(heard) != 1 || len(heard[0].Nodes) != 1 || heard[0].Nodes[0].MAC != n.mac.String() {
			t.Errorf("the other node hears %+v", heard)
		}
		a.Take(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5, Last: answering.Node{Name: "lost"}})
		if _, err := wait(t, a, time.Minute); err == nil || !strings.Contains(err.Error(), "a host with MAC 02:00:00:00:00:02 still answers") {
			t.Errorf("beside another host Wait() = %v", err)
		}
		if n.opens != 2 || n.closed != 1 {
			t.Errorf("the segment was opened %d times, and closed %d times", n.opens, n.closed)
		}
	})
}

// A node says its own address on the segment, which others ask for as a control, as it is now.
func TestAnotherAddress(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		a.Join(1, "eth0")
		synctest.Wait()
		w.mu.Lock()
		n.own = netip.MustParseAddr("10.0.70.9")
		w.mu.Unlock()
		a.Recheck()
		synctest.Wait()
		if last := n.sent[len(n.sent)-1]; last.Kind != answering.Call || last.Address != n.own || n.opens != 1 {
			t.Errorf("the node said %+v, and opened the segment %d times", last, n.opens)
		}
	})
}

// A node that cannot open its sockets, or that reads errors from them, tries again, answers on for
// the addresses that it has, and for no others before it has asked. It says so.
func TestBroken(t *testing.T) {
	for name, reads := range map[string]bool{"open": false, "read": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				n, other := w.add("node"), w.add("other")
				served := netip.MustParseAddr("10.0.70.8")
				n.set(served, true)
				other.set(address, true)
				fail := errors.New("no buffer space available")
				n.openErr = fail
				if reads {
					n.openErr = nil
				}
				a := start(n)
				a.Carry(Holding{Address: served, Pod: "s", Link: 1, Gateway: gateway, Version: 5}, true, 0)
				synctest.Wait()
				if reads {
					w.mu.Lock()
					n.openErr = fail
					w.mu.Unlock()
					n.broken <- errors.New("permission denied")
				}
				a.Take(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5})
				a.Carry(Holding{Address: address.Next(), Pod: "r", Link: 1, Gateway: gateway, Version: 5}, false, 0)
				if _, err := wait(t, a, 10*time.Minute); err == nil || !strings.Contains(err.Error(), fail.Error()) {
					t.Errorf("while nobody is heard Wait() = %v", err)
				}
				if n.answers(address.Next()) || !n.answers(served) || a.Failing() != 1 {
					t.Errorf("the node answers without asking: %t; for the address that it had: %t; links that fail: %d", n.answers(address.Next()), n.answers(served), a.Failing())
				}
				if got := a.Hearings(); len(got) != 1 || got[0].Error != fail.Error() {
					t.Errorf("Hearings() = %+v", got)
				}
				if n.opens < 15 || n.opens > 40 {
					t.Errorf("in ten minutes the segment was opened %d times", n.opens)
				}
				// Somebody else has the one that it serves.
				a.Heard(answering.Message{Kind: answering.Assert, From: answering.Node{Name: "other"}, To: answering.Node{Name: "node"}, Address: served, Version: 6})
				synctest.Wait()
				if n.answers(served) {
					t.Error("a node that hears nobody on the segment does not heed what it hears beside it")
				}
				w.mu.Lock()
				n.openErr = nil
				w.mu.Unlock()
				other.set(address, false)
				if took, err := wait(t, a, time.Minute); err != nil || took > 31*time.Second || a.Failing() != 0 {
					t.Errorf("Wait() = %v after %v", err, took)
				}
			})
		})
	}
}

// A node whose kernel answers for an address that its Answerer does not know, or closed, denies
// nothing.
func TestKernelAnswers(t *testing.T) {
	for name, known := range map[string]bool{"unknown": false, "opened by another program": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				old, fresh := w.add("old"), w.add("fresh")
				old.set(address, true)
				a, b := start(old), start(fresh)
				a.Join(1, "eth0", gateway)
				if known {
					a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 6)
					synctest.Wait()
					old.set(address, true)
				}
				last := answering.Node{Name: "old"}
				b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: last})
				_, err := wait(t, b, 10*time.Second)
				if got := old.denials(); !known && (err == nil || got > 0) {
					t.Errorf("Wait() = %v, and the node that answers denied %d times", err, got)
				}
				if known && (err != nil || old.answers(address)) {
					t.Errorf("Wait() = %v; the node still answers: %t", err, old.answers(address))
				}
				if known {
					return
				}
				// It is carried at last.
				a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
				if _, err := wait(t, b, 10*time.Second); err != nil || old.answers(address) {
					t.Errorf("Wait() = %v; the node still answers: %t", err, old.answers(address))
				}
			})
		})
	}
}

// Whatever anybody sends while the node is busy, only answers to questions that were asked are
// kept, and few for an address.
func TestUnaskedAnswers(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n, other := w.add("node"), w.add("other")
		served := netip.MustParseAddr("10.0.70.8")
		n.set(served, true)
		other.set(address, true)
		a := start(n)
		busy := make(chan struct{})
		w.mu.Lock()
		n.closing = func() { <-busy }
		w.mu.Unlock()
		a.Carry(Holding{Address: served, Pod: "s", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		a.Take(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5, Last: answering.Node{Name: "lost"}})
		time.Sleep(3 * time.Second) //nolint:forbidigo // the clock is the test's
		w.mu.Lock()
		heard, answered := n.heard, n.answered
		w.mu.Unlock()
		heard(answering.Message{Kind: answering.Assert, From: answering.Node{Name: "other"}, Address: served, Version: 6})
		synctest.Wait()
		for i := range 1000 {
			mac := net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)}
			answered(conflict.Answer{Address: address, MAC: mac})
			answered(conflict.Answer{Address: gateway, MAC: mac})
			answered(conflict.Answer{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), MAC: mac})
		}
		if got := a.Pending(1); got == 0 || got > 40 {
			t.Errorf("%d inputs wait", got)
		}
		close(busy)
		if _, err := wait(t, a, time.Minute); err == nil || !strings.Contains(err.Error(), "still answers") {
			t.Errorf("Wait() = %v", err)
		}
	})
}

// What closes an address is known before it is closed: a repair that comes then does not open it
// again.
func TestClosedIsKnown(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		a, b := start(old), start(fresh)
		var waited []bool
		old.closing = func() { waited = append(waited, a.Waits(address)) }
		a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		synctest.Wait()
		move(t, old, fresh, b, "old")
		if len(waited) == 0 || slices.Contains(waited, false) {
			t.Errorf("while it is closed the node may answer: %v", cmp.Diff([]bool{true}, waited))
		}
	})
}

// Of the messages of a large segment those count that may change something here.
func TestWants(t *testing.T) {
	other, mine, left := netip.MustParseAddr("10.0.70.99"), address, netip.MustParseAddr("10.0.70.8")
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		a.Carry(Holding{Address: mine, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		a.Carry(Holding{Address: left, Pod: "q", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		a.Leave("q")
		synctest.Wait()
		w.mu.Lock()
		wants := n.wants
		w.mu.Unlock()
		self, peer := answering.Node{Name: "node"}, answering.Node{Name: "peer"}
		for _, test := range []struct {
			message answering.Message
			want    bool
		}{
			{answering.Message{Kind: answering.Hello}, true},
			{answering.Message{Kind: answering.Call, To: peer}, true},
			{answering.Message{Kind: answering.Assert, Address: other}, false},
			{answering.Message{Kind: answering.Assert, Address: other, To: peer}, false},
			{answering.Message{Kind: answering.Assert, Address: other, To: self}, true},
			{answering.Message{Kind: answering.Assert, Address: mine, To: peer}, true},
			{answering.Message{Kind: answering.Assert, Address: left}, true},
			{answering.Message{Kind: answering.Deny, Address: mine, To: peer}, false},
			{answering.Message{Kind: answering.Deny, Address: mine, To: self}, true},
			{answering.Message{Kind: answering.TakeOver, Address: other, To: peer}, false},
			{answering.Message{Kind: answering.TakeOver, Address: mine, To: peer}, true},
			{answering.Message{Kind: answering.Yield, Address: mine, To: peer}, false},
			{answering.Message{Kind: answering.Yield, Address: mine, To: self}, true},
		} {
			if got := wants(test.message); got != test.want {
				t.Errorf("it wants %+v: %t", test.message, got)
			}
		}
		time.Sleep(121 * time.Minute) //nolint:forbidigo // the clock is the test's
		a.Leave("r")
		if wants(answering.Message{Kind: answering.Assert, Address: left}) {
			t.Error("two hours later it wants to hear of an address that it gave up")
		}
	})
}
