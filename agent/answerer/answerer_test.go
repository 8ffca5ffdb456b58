// SPDX-License-Identifier: Apache-2.0

package answerer_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/berth-dev/berth/agent/answerer"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/cni/conflict"
)

var (
	address = netip.MustParseAddr("10.0.70.5")
	gateway = netip.MustParseAddr("10.0.70.1")
)

// wire is a segment with a gateway and hosts.
type wire struct {
	mu    sync.Mutex
	hosts []*host
	// beside is another network, by which nodes reach the ones of these names.
	beside map[string]*Answerer
	// noGateway: it is off.
	noGateway bool
	// strangers are the MACs of hosts that are no nodes, by the addresses that they have, or answer
	// for where proxies is true.
	strangers map[netip.Addr]net.HardwareAddr
	proxies   bool
}

// host is a node as its segment and its kernel are.
type host struct {
	wire *wire
	name string
	uid  string
	mac  net.HardwareAddr

	wants    func(answering.Message) bool
	heard    func(answering.Message)
	answered func(conflict.Answer)
	claimed  func(conflict.Conflict)
	// defends are the addresses of which it hears claims; the next try to have it hear others fails
	// with defendErr.
	defends   []conflict.Target
	defendErr error
	// out: its cable is out.
	out bool
	// polls counts its questions to the gateway alone, apiTries the ones whether the API server is
	// there.
	polls, apiTries int
	// own is its address on the segment.
	own netip.Addr
	// kernel has the addresses for which it answers, log the changes.
	kernel map[netip.Addr]bool
	log    []string
	// denied are the messages that it sent.
	sent []answering.Message
	// api is the error of the API, mine its answer.
	api     error
	mine    bool
	version answering.Version
	// gone is the error of Send and Check, closed how often the segment was closed.
	gone   error
	closed int
	// closing, if given, is called by Close.
	closing func()
	// stuck: the kernel cannot be changed. tries counts the calls of Close.
	stuck error
	tries int
	// hang, if given, keeps the API's answers on their way while it is open.
	hang chan struct{}
	// most is the number of addresses that the host asked for at once.
	most int
	// link is the index of its link. Another one was there before.
	link int
	// opened is its MAC when the segment was opened last: it hears answers to that one alone, and
	// messages to all.
	opened net.HardwareAddr
	// opens counts the tries to open it, and openErr is their error.
	opens   int
	openErr error
	// broken is sent the error that ends its hearing.
	broken chan error
	// cut: nothing comes from the segment to the host, or from it, though its link has its carrier.
	cut bool
}

var errAway = errors.New("the API server is away")

func (w *wire) add(name string) *host {
	h := &host{wire: w, link: 1, broken: make(chan error), name: name, mac: net.HardwareAddr{2, 0, 0, 0, 0, byte(len(w.hosts) + 1)}, opened: net.HardwareAddr{2, 0, 0, 0, 0, byte(len(w.hosts) + 1)}, kernel: map[netip.Addr]bool{}, api: errAway}
	w.hosts = append(w.hosts, h)
	return h
}

func (h *host) start(ctx context.Context, group *sync.WaitGroup) *Answerer {
	a := New(answering.Node{Name: h.name, UID: h.uid}, h.open, h, false)
	group.Go(func() { a.Run(ctx) })
	return a
}

// port is a host as its Segment.
type port struct{ *host }

func (p port) Close() error {
	p.wire.mu.Lock()
	defer p.wire.mu.Unlock()
	p.closed++
	return nil
}

func (h *host) open(link int) (Segment, error) {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	h.opens++
	if h.openErr != nil {
		return nil, h.openErr
	}
	if link < h.link || errors.Is(h.gone, unix.ENXIO) {
		return nil, fmt.Errorf("find link %d: %w", link, unix.ENODEV)
	}
	h.opened = h.mac
	return port{h}, nil
}

func (h *host) Defend(targets []conflict.Target) error {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	err := h.defendErr
	h.defendErr = nil
	if err == nil {
		h.defends = targets
	}
	return err
}

func (h *host) Own() (net.HardwareAddr, netip.Addr) {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	return h.opened, h.own
}

func (h *host) Check() error {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	if !slices.Equal(h.opened, h.mac) {
		return errors.New("it has another MAC")
	}
	return h.gone
}

func (h *host) Run(ctx context.Context, wants func(answering.Message) bool, heard func(answering.Message), answered func(conflict.Answer), claimed func(conflict.Conflict)) error {
	h.wire.mu.Lock()
	h.wants = wants
	h.heard, h.answered, h.claimed = func(m answering.Message) {
		if wants(m) {
			heard(m)
		}
	}, answered, claimed
	h.wire.mu.Unlock()
	select {
	case err := <-h.broken:
		return err
	case <-ctx.Done():
		return nil
	}
}

// remake gives the node another link in the place of its own: the kernel answers for nothing there.
func (h *host) remake(a *Answerer) {
	h.wire.mu.Lock()
	h.link++
	h.gone = os.NewSyscallError("sendto", unix.ENXIO)
	clear(h.kernel)
	h.wire.mu.Unlock()
	a.Recheck()
	synctest.Wait()
	h.wire.mu.Lock()
	h.gone = nil
	h.wire.mu.Unlock()
}

func (h *host) Send(messages []answering.Message) error {
	if err := h.broadcast(messages); err != nil {
		return err
	}
	for _, m := range messages {
		if to := h.wire.beside[m.To.Name]; to != nil {
			to.Heard(m)
		}
	}
	return nil
}

func (h *host) broadcast(messages []answering.Message) error {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	if h.gone != nil {
		return h.gone
	}
	h.sent = append(h.sent, messages...)
	if h.out || h.cut {
		return nil
	}
	for _, other := range h.wire.hosts {
		for _, m := range messages {
			if other != h && other.heard != nil && !other.out && !other.cut {
				other.heard(m)
			}
		}
	}
	return nil
}

func (h *host) Question(addrs []netip.Addr) error {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	h.most = max(h.most, len(addrs))
	for _, addr := range addrs {
		// A reply goes to the MAC that asked, and the card drops it where it has another one by now.
		if h.answered == nil || h.out || h.cut || !slices.Equal(h.opened, h.mac) {
			break
		}
		if addr == gateway && !h.wire.noGateway {
			h.answered(conflict.Answer{Address: addr, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xfe}})
		}
		for _, other := range h.wire.hosts {
			if other != h && !other.out && !other.cut && (other.kernel[addr] || addr == other.own) {
				h.answered(conflict.Answer{Address: addr, MAC: other.mac})
			}
		}
		h.ofStranger(addr, false)
	}
	return nil
}

// ofStranger has the host hear the one that is no node, if that has the address. The caller holds
// mu.
func (h *host) ofStranger(addr netip.Addr, owner bool) {
	if mac := h.wire.strangers[addr]; mac != nil && h.answered != nil && !h.out && !h.cut {
		h.answered(conflict.Answer{Address: addr, MAC: mac, Owner: owner})
	}
}

func (h *host) Probe(addrs []netip.Addr) error {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	for _, addr := range addrs {
		h.ofStranger(addr, !h.wire.proxies)
	}
	return nil
}

func (h *host) AskHost(addr netip.Addr, _ net.HardwareAddr) error {
	h.wire.mu.Lock()
	h.polls++
	h.wire.mu.Unlock()
	return h.Question([]netip.Addr{addr})
}

func (h *host) Reachable(context.Context) error {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	h.apiTries++
	return h.api
}

func (h *host) set(addr netip.Addr, answers bool) {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	h.kernel[addr] = answers
}

func (h *host) answers(addr netip.Addr) bool {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	return h.kernel[addr]
}

func (h *host) denials() int {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(h.sent), func(m answering.Message) bool { return m.Kind != answering.Deny }))
}

func (h *host) Open(_ context.Context, addr netip.Addr) error {
	h.set(addr, true)
	h.log = append(h.log, "open")
	return nil
}

func (h *host) Close(_ context.Context, addr netip.Addr, _ answering.Version, _ answering.Cause, _ string) error {
	h.wire.mu.Lock()
	h.tries++
	stuck, closing := h.stuck, h.closing
	h.wire.mu.Unlock()
	if closing != nil {
		closing()
	}
	if stuck != nil {
		return stuck
	}
	h.set(addr, false)
	return nil
}

func (h *host) Whose(context.Context, netip.Addr) (answering.Verdict, error) {
	h.wire.mu.Lock()
	mine, version, err, hang := h.mine, h.version, h.api, h.hang
	h.wire.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return answering.Verdict{Mine: mine, Version: version}, err
}

func (h *host) IsCut(string) (bool, error) {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	return h.out, nil
}

// plug plugs the host's cable in or pulls it, and tells the node.
func (h *host) plug(a *Answerer, in bool) {
	h.wire.mu.Lock()
	h.out = !in
	h.wire.mu.Unlock()
	a.Carrier("eth0", in)
}

func (h *host) closes() int {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	return h.tries
}

func (h *host) Answers(addr netip.Addr) (bool, error) { return h.answers(addr), nil }

// run runs a test in virtual time.
func run(t *testing.T, test func(t *testing.T, start func(h *host) *Answerer, w *wire)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		test(t, func(h *host) *Answerer { return h.start(ctx, &group) }, &wire{})
	})
}

func wait(t *testing.T, a *Answerer, patience time.Duration) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	_, err := a.Wait(ctx, []netip.Addr{address})
	return time.Since(began), err
}

// A node that cannot ask the API falls silent when the new holder asserts the address, before that
// one answers.
func TestNewerRecord(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		a, b := start(old), start(fresh)
		a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: answering.Node{Name: "old"}})
		took, err := wait(t, b, 10*time.Second)
		if err != nil || took > time.Second {
			t.Errorf("the new holder waited %v: %v", took, err)
		}
		if old.answers(address) {
			t.Error("both answer")
		}
		// The API server is back, and says the same.
		w.mu.Lock()
		old.api = nil
		w.mu.Unlock()
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
		if old.answers(address) {
			t.Error("the old node answers again")
		}
	})
}

// A node whose agent is dead answers on: the new holder waits, and says for which node.
func TestDeadAgent(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		b := start(fresh)
		b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: answering.Node{Name: "old"}})
		_, err := wait(t, b, 10*time.Second)
		if err == nil || !strings.Contains(err.Error(), "a host with MAC 02:00:00:00:00:01 still answers for 10.0.70.5, which was on old last") {
			t.Errorf("Wait() = %v", err)
		}
		old.set(address, false)
		took, err := wait(t, b, 10*time.Second)
		if err != nil || took < 3*time.Second {
			t.Errorf("Wait() = %v after %v", err, took)
		}
	})
}

// A node that is cut off from the segment denies over another network, unless it carries the
// address without knowing it, or is another machine than the one that the record names. A UID that
// somebody does not know counts for any.
func TestUnicast(t *testing.T) {
	for name, c := range map[string]struct {
		recorded, own string
		carries       bool
		unknown       bool
		denies        bool
	}{
		"it answers":                    {"u1", "u1", true, false, true},
		"it does not have the address":  {"u1", "u1", false, false, true},
		"the record does not say which": {"", "u1", true, false, true},
		"it does not know its UID":      {"u1", "", true, false, true},
		"another machine of its name":   {"u1", "u2", true, false, false},
		"it has records of its own":     {"u1", "u1", false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				old, fresh := w.add("old"), w.add("fresh")
				old.uid, old.cut = c.own, true
				old.set(address, c.carries || c.unknown)
				a, b := start(old), start(fresh)
				w.beside = map[string]*Answerer{"old": a, "fresh": b}
				a.Join(2, "eth1", netip.Addr{})
				if c.carries {
					a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
				}
				b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: answering.Node{Name: "old", UID: c.recorded}})
				took, err := wait(t, b, 10*time.Second)
				if err != nil || took > time.Second == c.denies || old.denials() > 0 != c.denies {
					t.Errorf("the new holder waited %v: %v; the old one denied %d times", took, err, old.denials())
				}
				if c.denies && old.answers(address) {
					t.Error("both answer")
				}
			})
		})
	}
}

// A person's word ends the waiting.
func TestWord(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		b := start(fresh)
		b.Take(Holding{Address: address, Pod: "q", Link: 1, Uplink: "eth0", Gateway: gateway, Version: 6, Last: answering.Node{Name: "old"}})
		if _, err := wait(t, b, 10*time.Second); err == nil {
			t.Error("the new holder answers beside the old one")
		}
		for addr, h := range map[netip.Addr]*Answerer{gateway: b, address: start(old)} {
			if err := h.Word(addr); err == nil || !strings.Contains(err.Error(), "no pod of the node has it") {
				t.Errorf("a word about an address that the node does not have: %v", err)
			}
		}
		fresh.plug(b, false)
		synctest.Wait()
		if err := b.Word(address); err == nil || !strings.Contains(err.Error(), "has no carrier") {
			t.Errorf("a word while the cable is out: %v", err)
		}
		fresh.plug(b, true)
		synctest.Wait()
		if err := b.Word(address); err != nil {
			t.Error(err)
		}
		if took, err := wait(t, b, 10*time.Second); err != nil {
			t.Errorf("Wait() = %v after %v", err, took)
		}
		if err := b.Word(address); err == nil || !strings.Contains(err.Error(), "answers for it already") {
			t.Errorf("a second word: %v", err)
		}
	})
}

// An address whose pieces the kernel lost is opened again by the API's word soon, and without the
// API when nobody else answers for it.
func TestOpenAgain(t *testing.T) {
	for name, c := range map[string]struct {
		api     error
		another bool
		within  time.Duration
		opens   bool
	}{
		"the API says so": {within: time.Second, opens: true},
		"nobody answers":  {api: errAway, within: 6 * time.Second, opens: true},
		"another answers": {api: errAway, another: true, within: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				n, other := w.add("node"), w.add("other")
				n.api, n.mine, n.version = c.api, true, 5
				other.set(address, c.another)
				a := start(n)
				a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, false, 0)
				time.Sleep(c.within) //nolint:forbidigo // the clock is the test's
				if n.answers(address) != c.opens {
					t.Errorf("after %v the node answers: %t", c.within, n.answers(address))
				}
			})
		})
	}
}

// A node whose kernel cannot be changed denies nothing, and is tried again.
func TestCloseFails(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		old.stuck = errors.New("stuck")
		a, b := start(old), start(fresh)
		a.Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5}, true, 0)
		b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: answering.Node{Name: "old"}})
		if _, err := wait(t, b, 10*time.Second); err == nil || old.denials() > 0 {
			t.Errorf("Wait() = %v, denials %d", err, old.denials())
		}
		w.mu.Lock()
		old.stuck = nil
		w.mu.Unlock()
		if took, err := wait(t, b, 10*time.Second); err != nil || old.answers(address) {
			t.Errorf("Wait() = %v after %v; the old node answers: %t", err, took, old.answers(address))
		}
	})
}

// A pod waits while the cable is out, from its start or later, until nobody answers for its address
// when the cable is back.
func TestCarrierOut(t *testing.T) {
	for name, later := range map[string]bool{"from the start": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				n, other := w.add("node"), w.add("other")
				n.out = !later
				a := start(n)
				if later {
					a.Join(1, "eth0", netip.Addr{})
					synctest.Wait()
					n.plug(a, false)
				}
				a.Take(Holding{Address: address, Pod: "p", Link: 1, Uplink: "eth0", Gateway: gateway, Version: 5, Last: answering.Node{Name: "lost"}})
				if _, err := wait(t, a, 2*time.Minute); err == nil || !strings.Contains(err.Error(), "eth0 has no carrier") {
					t.Errorf("while the cable is out Wait() = %v", err)
				}
				other.set(address, true)
				n.plug(a, true)
				if _, err := wait(t, a, 2*time.Minute); err == nil || !strings.Contains(err.Error(), "a host with MAC 02:00:00:00:00:02 still answers") {
					t.Errorf("beside another host Wait() = %v", err)
				}
				other.set(address, false)
				if took, err := wait(t, a, 10*time.Second); err != nil || took < 2*time.Second {
					t.Errorf("Wait() = %v after %v", err, took)
				}
			})
		})
	}
}

// A node closes its addresses when its cable is out, and one that it finds open then. When the
// cable is back it opens them by an answer of the API that was asked for since, and by no older
// one.
func TestCarrierCut(t *testing.T) {
	for name, early := range map[string]bool{"while it answers": false, "before its agent starts": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				n, other := w.add("node"), w.add("other")
				n.api, n.mine, n.version, n.hang = nil, true, 5, make(chan struct{})
				n.set(address, true)
				n.out = early
				a := start(n)
				a.Carry(Holding{Address: address, Pod: "p", Link: 1, Uplink: "eth0", Gateway: gateway, Version: 5}, true, 0)
				synctest.Wait()
				if !early {
					n.plug(a, false)
					synctest.Wait()
				}
				if n.answers(address) {
					t.Fatal("the node answers on a link without its carrier")
				}
				flap := func() {
					n.plug(a, true)
					synctest.Wait()
					n.plug(a, false)
					synctest.Wait()
				}
				flap()
				old := n.hang
				w.mu.Lock()
				n.hang = make(chan struct{})
				w.mu.Unlock()
				// The address moves, and comes back.
				other.set(address, true)
				n.plug(a, true)
				synctest.Wait()
				close(old)
				time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
				if n.answers(address) {
					t.Error("the node opens by a word of the API from before its carrier was back")
				}
				other.set(address, false)
				close(n.hang)
				// Silence would take three seconds.
				time.Sleep(200 * time.Millisecond) //nolint:forbidigo // the clock is the test's
				if !n.answers(address) {
					t.Error("the node does not open by the API's word")
				}
			})
		})
	}
}

// An address that cannot be closed is not tried again and again, and nothing is denied.
func TestCannotClose(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		old, fresh := w.add("old"), w.add("fresh")
		old.set(address, true)
		old.stuck = fmt.Errorf("%w: a link in the container", ErrCannotClose)
		a, b := start(old), start(fresh)
		a.Carry(Holding{Address: address, Pod: "p", Link: 1, Uplink: "eth0", Gateway: gateway, Version: 5}, true, 0)
		synctest.Wait()
		for round := 1; round < 3; round++ {
			old.plug(a, false)
			time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
			old.plug(a, true)
			time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
			if got := old.closes(); got != round {
				t.Errorf("after %d cuts it was tried %d times", round, got)
			}
		}
		b.Take(Holding{Address: address, Pod: "q", Link: 1, Gateway: gateway, Version: 6, Last: answering.Node{Name: "old"}})
		if _, err := wait(t, b, time.Minute); err == nil || old.denials() > 0 || old.closes() != 3 {
			t.Errorf("Wait() = %v, %d denials, tried %d times", err, old.denials(), old.closes())
		}
	})
}

// A link that went away is left, and its address is asked for on the link that comes then.
func TestLinkGoes(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		a.Take(Holding{Address: address, Pod: "p", Link: 1, Version: 5})
		if _, err := wait(t, a, time.Second); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		n.gone = os.NewSyscallError("sendto", unix.ENXIO)
		w.mu.Unlock()
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the clock is the test's
		if got := a.Hearings(); len(got) != 1 || got[0].Error == "" || a.Failing() != 1 {
			t.Errorf("while an address is on the link Hearings() = %+v", got)
		}
		a.Leave("p", address.Next())
		if _, has := a.Link(address); !has {
			t.Error("the address left with another one")
		}
		a.Leave("p", address)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the clock is the test's
		if got := a.Hearings(); len(got) != 0 || a.Failing() != 0 {
			t.Errorf("on a link without an address Hearings() = %+v", got)
		}
		w.mu.Lock()
		n.gone = nil
		closed := n.closed
		w.mu.Unlock()
		if closed != 1 {
			t.Errorf("the segment was closed %d times", closed)
		}
		a.Take(Holding{Address: address, Pod: "q", Link: 2, Version: 6})
		if took, err := wait(t, a, time.Second); err != nil || took == 0 || a.Standing(address).Phase != answering.Answering {
			t.Errorf("on the new link Wait() = %v after %v, %+v", err, took, a.Standing(address))
		}
	})
}

// A pod whose address left meanwhile does not wait, nor does one on a link that has no segment.
func TestWaitEnds(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		a.Take(Holding{Address: address, Pod: "p", Link: 1, Version: 5})
		a.Leave("another")
		if took, err := wait(t, a, time.Second); err != nil {
			t.Errorf("Wait() = %v after %v", err, took)
		}
		a.Leave("p")
		if _, err := wait(t, a, time.Second); err == nil {
			t.Error("Wait() for an address that left is nil")
		}
		none := New(answering.Node{Name: "none"}, func(int) (Segment, error) { return nil, ErrNobodyToAsk }, n, false)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { none.Run(ctx) })
		defer group.Wait()
		defer cancel()
		none.Take(Holding{Address: address, Pod: "p", Link: 1, Version: 5, Last: answering.Node{Name: "old"}})
		if took, err := wait(t, none, time.Second); err != nil || took > 0 {
			t.Errorf("without a segment Wait() = %v after %v", err, took)
		}
		none.Carry(Holding{Address: address, Pod: "p", Link: 1, Version: 5}, false, 0)
		synctest.Wait()
		if !n.answers(address) || none.Waits(address) || none.Failing() > 0 {
			t.Error("without a segment the node does not answer again")
		}
	})
}

// The node says which others it hears on each link, since when, and why it says nothing itself; not
// on a link that it has left.
func TestHearings(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n, other := w.add("node"), w.add("other")
		a := start(n)
		a.Join(1, "eth0", netip.Addr{})
		start(other).Join(1, "eth0", netip.Addr{})
		synctest.Wait()
		began := time.Now()
		time.Sleep(90 * time.Second) //nolint:forbidigo // the clock is the test's
		w.mu.Lock()
		n.gone, other.cut = errors.New("no key"), true
		w.mu.Unlock()
		time.Sleep(time.Hour / 2) //nolint:forbidigo // the clock is the test's
		got := a.Hearings()
		if len(got) != 1 || got[0].Seconds != 90+30*60 || got[0].Error == "" || len(got[0].Nodes) != 1 {
			t.Fatalf("Hearings() = %+v", got)
		}
		if of := got[0].Nodes[0]; of.Name != "other" || of.MAC != other.mac.String() || of.Heard.Before(began.Add(time.Minute)) || of.Heard.After(began.Add(90*time.Second)) {
			t.Errorf("it hears %+v", of)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // the clock is the test's
		if got := a.Hearings(); len(got) != 1 || len(got[0].Nodes) != 0 {
			t.Errorf("after an hour Hearings() = %+v", got)
		}
		w.mu.Lock()
		n.gone = os.NewSyscallError("sendto", unix.ENXIO)
		w.mu.Unlock()
		time.Sleep(time.Hour) //nolint:forbidigo // the clock is the test's
		if got := a.Hearings(); len(got) != 0 {
			t.Errorf("on a link that is gone Hearings() = %+v", got)
		}
	})
}

// A node that asks for many addresses asks for their controls once: after the restart of a switch
// thousands of nodes ask at once.
func TestQuestions(t *testing.T) {
	run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
		n := w.add("node")
		a := start(n)
		const many = 30
		for i := range many {
			a.Carry(Holding{Address: netip.AddrFrom4([4]byte{10, 0, 71, byte(i)}), Pod: "p", Link: 1, Gateway: gateway, Version: 5}, false, 0)
		}
		time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.most != many+1 {
			t.Errorf("the node asked for %d addresses at once, want %d and the gateway", n.most, many)
		}
	})
}

// A node that reaches nobody closes the addresses of pods that asked for it, and no others, and
// opens them again when it is back. In peace it asks the gateway alone, and the API server never.
func TestCutOff(t *testing.T) {
	for name, failover := range map[string]bool{"asked for failover": true, "did not": false} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, start func(*host) *Answerer, w *wire) {
				n, other := w.add("node"), w.add("other")
				n.api, n.mine, n.version = nil, true, 5
				start(other).Join(1, "eth0", netip.Addr{})
				synctest.Wait()
				n.set(address, true)
				start(n).Carry(Holding{Address: address, Pod: "p", Link: 1, Gateway: gateway, Version: 5, Failover: failover}, true, 0)
				set := func(out bool, api error) {
					w.mu.Lock()
					n.out, n.api = out, api
					w.mu.Unlock()
				}
				time.Sleep(10 * time.Minute) //nolint:forbidigo // the clock is the test's
				w.mu.Lock()
				if wants := map[bool]int{true: 300}[failover]; n.apiTries != 0 || n.polls < wants-5 || n.polls > wants {
					t.Errorf("in ten minutes of peace the node asked the gateway %d times, want %d, and the API server %d times", n.polls, wants, n.apiTries)
				}
				w.mu.Unlock()
				set(true, errAway)
				time.Sleep(6 * time.Second) //nolint:forbidigo // the clock is the test's
				if n.answers(address) == failover {
					t.Errorf("the node is cut off, and answers: %t", !failover)
				}
				set(false, nil)
				time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
				if !n.answers(address) {
					t.Error("the node is back, and does not answer")
				}
			})
		})
	}
}

// A node whose gateways do not answer tries the API server as often with several links as with one.
func TestTriesOfAllLinks(t *testing.T) {
	tries := map[int]int{}
	for links := 1; links <= 3; links += 2 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			defer group.Wait()
			defer cancel()
			hosts := map[int]*host{}
			for link := 1; link <= links; link++ {
				hosts[link] = (&wire{noGateway: true}).add("node")
			}
			n := hosts[1]
			n.api, n.mine, n.version = nil, true, 5
			a := New(answering.Node{Name: n.name}, func(link int) (Segment, error) { return port{hosts[link]}, nil }, n, false)
			group.Go(func() { a.Run(ctx) })
			addr := address
			for link := 1; link <= links; link++ {
				addr = addr.Next()
				n.set(addr, true)
				a.Carry(Holding{Address: addr, Pod: "p", Link: link, Gateway: gateway, Version: 5, Failover: true}, true, 0)
			}
			time.Sleep(10 * time.Minute) //nolint:forbidigo // the clock is the test's
			n.wire.mu.Lock()
			tries[links] = n.apiTries
			n.wire.mu.Unlock()
		})
	}
	if tries[1] < 15 || tries[3] != tries[1] {
		t.Errorf("tries by the number of links: %v", tries)
	}
}
