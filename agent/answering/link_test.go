// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
)

var gateway = netip.MustParseAddr("10.0.60.254")

// random returns the nonces of a link.
func random() func() uint64 { return rand.New(rand.NewPCG(1, 2)).Uint64 }

// A node that hears nobody answers soon for an address that it had last itself: at once where it
// remembers that, and after three seconds where it does not. For another node's it waits a minute.
func TestAlone(t *testing.T) {
	self, addr := Node{Name: "self"}, netip.MustParseAddr("10.0.70.5")
	for name, c := range map[string]struct {
		last       Node
		remembers  bool
		asserted   bool
		answered   bool
		from, till time.Duration
	}{
		"nobody's":               {from: 300 * time.Millisecond, till: time.Second},
		"its own":                {last: self, remembers: true, from: 300 * time.Millisecond, till: time.Second},
		"its own, after a start": {last: self, from: 3 * time.Second, till: 4 * time.Second},
		"its own, but another has asserted the address": {last: self, remembers: true, asserted: true, from: 3 * time.Second, till: 4 * time.Second},
		"nobody's, but another has answered":            {answered: true, from: time.Minute, till: time.Minute + 2*time.Second},
		"another's":                                     {last: Node{Name: "other"}, from: time.Minute, till: time.Minute + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := NewLink(0, self, "mac", random()), time.Duration(0)
			// until steps the link until it opens the address.
			until := func(limit time.Duration) (opened bool) {
				for now < limit {
					due, ok := l.Next()
					if !ok {
						t.Fatal("nothing is due")
					}
					now = max(now, due)
					for _, out := range l.Step(now) {
						if out == (Open{addr}) {
							return true
						}
					}
				}
				return false
			}
			if c.remembers {
				l.Step(now, Take{Address: addr, Version: 1})
				if !until(time.Second) {
					t.Fatal("the first pod waits")
				}
				l.Step(now, Leave{addr})
			}
			if c.asserted {
				l.Step(now, Heard{Message: Message{Kind: Assert, From: Node{Name: "other"}, Address: addr, Version: 2}})
			}
			if c.answered {
				l.Step(now, Heard{Message: Message{Kind: Hello, From: Node{Name: "other"}, MAC: "mac2"}})
				now += time.Second
			}
			began := now
			l.Step(now, Take{Address: addr, Version: 3, Last: c.last})
			if c.answered {
				l.Step(now, Answered{Address: addr, MAC: "mac2"})
			}
			if !until(began + 2*time.Minute) {
				t.Fatal("the node never answers")
			}
			if took := now - began; took < c.from || took > c.till {
				t.Errorf("it answers after %v, want %v to %v", took, c.from, c.till)
			}
		})
	}
}

// Nodes that are called do not all answer at once.
func TestSpread(t *testing.T) {
	times := map[time.Duration]bool{}
	for i := range 100 {
		l := NewLink(0, Node{Name: fmt.Sprint("node", i)}, "mac", random())
		l.Step(0)
		l.Step(time.Second, Heard{Message: Message{Kind: Call, From: Node{Name: "caller"}}})
		due, _ := l.Next()
		times[due] = true
	}
	if len(times) < 90 {
		t.Errorf("100 nodes answer at %d times", len(times))
	}
}

// A node with pods that asked for failover polls the gateway. It tries the API only while that is
// silent, calls the others only while the API is, too, and closes their addresses, and no others,
// soon after nothing answers. A node without such pods does none of it.
func TestCutOff(t *testing.T) {
	addr, another := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.70.6")
	for name, c := range map[string]struct {
		without, gateway, api bool
		// others is how many of four nodes answer calls.
		others int
		closes bool
		// polls, tries and calls are the most in ten minutes.
		polls, tries, calls int
	}{
		"nobody answers":           {closes: true, polls: 1, tries: 1200, calls: 601},
		"one node of four":         {others: 1, closes: true, polls: 1, tries: 1200, calls: 601},
		"half of the nodes":        {others: 2, polls: 1, tries: 1200, calls: 601},
		"the gateway alone":        {gateway: true, polls: 300, calls: 5},
		"the API alone":            {api: true, polls: 1, tries: 25, calls: 5},
		"all":                      {gateway: true, api: true, others: 4, polls: 300, calls: 5},
		"nobody, and no such pod":  {without: true},
		"the API, and no such pod": {without: true, api: true},
		"the API and one node":     {others: 1, api: true, polls: 1, tries: 25, calls: 5},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := NewLink(0, Node{Name: "self"}, "mac", random(), netip.MustParseAddr("10.0.60.1")), time.Duration(0)
			hello := func(i int, nonce uint64) Input {
				return Heard{Message: Message{Kind: Hello, Nonce: nonce, From: Node{Name: fmt.Sprint("node", i)}, MAC: "x", Address: netip.AddrFrom4([4]byte{10, 0, 60, byte(i + 2)})}}
			}
			// The pod of another address did not ask for failover.
			inputs := []Input{
				Carry{Address: addr, Version: 1, Failover: !c.without, Answers: true}, Carry{Address: another, Version: 1, Answers: true},
			}
			closed, polls, tries, calls := time.Duration(0), 0, 0, 0
			for began := true; now < 10*time.Minute; began = false {
				outputs := l.Step(now, inputs...)
				inputs = nil
				for _, out := range outputs {
					switch out := out.(type) {
					case AskGateway, Control:
						if out == (AskGateway{}) {
							polls++
						}
						if c.gateway {
							inputs = append(inputs, Gateway{Address: gateway})
						}
					case TryAPI:
						tries++
						inputs = append(inputs, API{Reachable: c.api})
					case Close:
						if out.Address != addr {
							t.Errorf("it closes %s", out.Address)
						}
						closed = now
					case Send:
						if out.Kind != Call || out.Nonce == 0 {
							break
						}
						others := c.others
						if began {
							others = 4
						} else {
							calls++
						}
						for i := range others {
							inputs = append(inputs, hello(i, out.Nonce))
						}
					}
				}
				due, ok := l.Next()
				if !ok {
					t.Fatal("nothing is due")
				}
				if len(inputs) > 0 {
					due = now + time.Millisecond
				}
				now = max(now, due)
			}
			if c.closes != (closed > 0) || closed > 6*time.Second || polls > c.polls || tries > c.tries || calls > c.calls {
				t.Errorf("closed at %v, want %t; %d polls, %d tries, %d calls; at most %d, %d, %d", closed, c.closes, polls, tries, calls, c.polls, c.tries, c.calls)
			}
			if c.gateway && polls < c.polls-10 {
				t.Errorf("%d polls, want about %d", polls, c.polls)
			}
		})
	}
}

// A node that is cut off does not begin to answer for a pod that asked for failover because it has
// heard nobody for a minute.
func TestCutOffAsks(t *testing.T) {
	addr := netip.MustParseAddr("10.0.70.5")
	for _, failover := range []bool{false, true} {
		l, now := NewLink(0, Node{Name: "self"}, "mac", random()), time.Duration(0)
		inputs := []Input{Carry{Address: addr, Version: 1, Failover: failover}}
		opened, knows := false, false
		for now < 5*time.Minute {
			outputs := l.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				switch out := out.(type) {
				case Send:
					// Another node is heard once.
					if out.Kind == Call && out.Nonce != 0 && !knows {
						knows = true
						inputs = append(inputs, Heard{Message: Message{Kind: Hello, From: Node{Name: "other"}, Nonce: out.Nonce}})
					}
				case Open:
					opened = true
				case AskAPI, TryAPI:
					inputs = append(inputs, API{})
				}
			}
			due, _ := l.Next()
			now = max(now+time.Millisecond, due)
		}
		if opened == failover {
			t.Errorf("for a pod that asked for failover: %t, the node begins to answer: %t", failover, opened)
		}
	}
}

// What the kernel answers for before the node may is closed, as after an ADD whose work went on
// when the carrier was lost.
func TestAnswersTooEarly(t *testing.T) {
	addr := netip.MustParseAddr("10.0.70.5")
	carried := Carry{Address: addr, Version: 5, Answers: true}
	for name, c := range map[string]struct {
		before []Input
		closed bool
		phase  Phase
	}{
		"at a start":                      {nil, false, Answering},
		"at a start without a carrier":    {[]Input{Carrier{}}, true, Closed},
		"it answers":                      {[]Input{carried}, false, Answering},
		"it asks":                         {[]Input{Take{Address: addr, Version: 5}}, true, Asking},
		"it asks again":                   {[]Input{Carry{Address: addr, Version: 5}}, true, Asking},
		"the carrier was lost":            {[]Input{carried, Carrier{}}, true, Closed},
		"another node has a newer record": {[]Input{Take{Address: addr, Version: 5}, Heard{Message: Message{Kind: Assert, From: Node{Name: "b"}, Address: addr, Version: 6}}}, true, Closed},
	} {
		l := NewLink(0, Node{Name: "a"}, "02:00:00:00:00:01", func() uint64 { return 1 })
		l.Step(0, c.before...)
		outputs := l.Step(0, carried)
		closed := slices.ContainsFunc(outputs, func(out Output) bool { _, is := out.(Close); return is })
		if got := l.Standing(addr).Phase; closed != c.closed || got != c.phase {
			t.Errorf("%s: closed: %t, phase %d, want %t, %d", name, closed, got, c.closed, c.phase)
		}
	}
	// It asks when the carrier is back.
	l := NewLink(0, Node{Name: "a"}, "02:00:00:00:00:01", func() uint64 { return 1 })
	l.Step(0, Carrier{}, carried)
	l.Step(0, Carrier{Up: true})
	if got := l.Standing(addr).Phase; got != Asking {
		t.Errorf("with its carrier back it is in phase %d", got)
	}
}

// A person's word is for the questions of then: after a cut the node asks like any other.
func TestWordEnds(t *testing.T) {
	x := netip.MustParseAddr("10.0.0.5")
	l := NewLink(0, Node{Name: "b"}, "02:00:00:00:00:0b", random())
	now, answered := time.Duration(0), true
	run := func(d time.Duration) {
		for end := now + d; now < end; now += 10 * time.Millisecond {
			for _, out := range l.Step(now) {
				if q, ok := out.(Question); ok && answered {
					l.Step(now, Answered{Address: q.Address, MAC: "02:00:00:00:00:0a"})
				}
			}
		}
	}
	expect := func(when string, phase Phase) {
		t.Helper()
		if is := l.Standing(x).Phase; is != phase {
			t.Errorf("%s: phase %d, want %d", when, is, phase)
		}
	}
	l.Step(now, Take{Address: x, Version: 10, Last: Node{Name: "a"}})
	run(20 * time.Second)
	expect("a host answers", Asking)
	l.Step(now, Word{Address: x})
	run(time.Second)
	expect("a person said that it may", Answering)
	answered = false
	run(time.Hour)
	l.Step(now, API{}, Carrier{})
	now += 10 * time.Second
	answered = true
	l.Step(now, Carrier{Up: true})
	run(20 * time.Second)
	expect("it was cut off, and another host answers by now", Asking)
}

// A node that has 250 addresses when its carrier is back, and does not reach the API, asks for them
// in turns. A pod that starts meanwhile does not wait for them, nor does an address of which the
// API says that it is still the node's.
func TestTurns(t *testing.T) {
	const addresses, frames, patience = 250, 300, 16 * time.Second
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 70, byte(i)}) }
	l, now := NewLink(0, Node{Name: "self"}, "mac", random()), time.Duration(0)
	opened, asked, verdicts := map[netip.Addr]time.Duration{}, map[time.Duration]int{}, map[netip.Addr]Verdict{}
	// run has the gateway answer each control.
	run := func(until time.Duration, inputs ...Input) {
		for {
			outputs := l.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				switch out := out.(type) {
				case Open:
					opened[out.Address] = now
				case Question:
					asked[now.Truncate(time.Second)]++
				case Control:
					inputs = []Input{Gateway{Address: gateway}}
				case AskAPI:
					verdicts[out.Address] = Verdict{Address: out.Address, Number: out.Number, Mine: true, Version: 1}
				}
			}
			if len(inputs) > 0 {
				// The controls of all addresses are one question.
				asked[now.Truncate(time.Second)]++
				now += time.Millisecond
				continue
			}
			due, ok := l.Next()
			if !ok || due > until {
				now = until
				return
			}
			now = max(now, due)
		}
	}
	for i := range addresses {
		run(0, Carry{Address: addr(i), Version: 1, Answers: true})
	}
	run(time.Second, API{}, Carrier{})
	began := now
	run(began+time.Second, Carrier{Up: true})
	starts, last := addr(addresses), addr(addresses-1)
	run(began+1500*time.Millisecond, Take{Address: starts, Version: 2})
	if took := opened[starts] - began - time.Second; opened[starts] == 0 || took > 400*time.Millisecond {
		t.Errorf("the node answers for a pod that starts after %v", took)
	}
	if opened[last] != 0 {
		t.Fatalf("the last address is open after %v", opened[last]-began)
	}
	run(now+100*time.Millisecond, verdicts[last])
	if opened[last] != now {
		t.Errorf("the API's word does not open the last address")
	}
	run(began + patience)
	if len(opened) != addresses+1 {
		t.Errorf("the node answers for %d of %d addresses after %v", len(opened), addresses+1, patience)
	}
	for second, n := range asked {
		if n > frames {
			t.Errorf("at %v the node asks %d questions in a second, not %d at most", second, n, frames)
		}
	}
}

// TestVerdicts: the API's word opens an address again, 100 ms after the node has asserted it and no
// other node a newer record, and neither the word about a pod that had it before on this node, nor
// one that was asked for before the agent hung, says anything.
func TestVerdicts(t *testing.T) {
	addr := netip.MustParseAddr("10.0.70.5")
	var l *Link
	asserted := time.Duration(-1)
	// step notes when the node asserts the address first after a cut.
	step := func(now time.Duration, inputs ...Input) []Output {
		outputs := l.Step(now, inputs...)
		for _, out := range outputs {
			if sent, ok := out.(Send); ok && sent.Kind == Assert && asserted < 0 {
				asserted = now
			}
		}
		return outputs
	}
	// cut has the carrier lost and back, and returns the number of the question to the API.
	cut := func(now time.Duration) int {
		t.Helper()
		step(now, Carrier{})
		asserted = -1
		for _, out := range step(now, Carrier{Up: true}) {
			if ask, ok := out.(AskAPI); ok {
				return ask.Number
			}
		}
		t.Fatal("the node does not ask the API")
		return 0
	}
	start := func() {
		l = NewLink(0, Node{Name: "self"}, "mac", random())
		l.Step(0, Carry{Address: addr, Version: 1, Answers: true})
	}
	// opens fails where the API's word does not open the address.
	opens := func(now time.Duration, number int) {
		t.Helper()
		inputs := []Input{Verdict{Address: addr, Number: number, Mine: true, Version: 1}}
		for end := now + 100*time.Millisecond; now <= end; {
			if slices.Contains(step(now, inputs...), Output(Open{addr})) {
				if asserted < 0 || now-asserted != 100*time.Millisecond {
					t.Errorf("the address opens at %v, asserted at %v", now, asserted)
				}
				return
			}
			inputs = nil
			now, _ = l.Next()
		}
		t.Errorf("after the API's word the address is %+v", l.Standing(addr))
	}
	start()
	opens(0, cut(0))
	now := time.Second
	number := cut(now)
	step(now + 80*time.Millisecond)
	opens(now+80*time.Millisecond, number)

	start()
	former := cut(0)
	l.Step(0, Verdict{Address: addr, Number: former, Mine: true, Version: 1})
	l.Step(50*time.Millisecond, Heard{Message: Message{Kind: Assert, From: Node{Name: "other"}, Address: addr, Version: 2}})
	if l.Step(200 * time.Millisecond); l.Standing(addr).Phase != Closed {
		t.Errorf("after a newer record than the API's the address is %+v", l.Standing(addr))
	}

	start()
	former = cut(0)
	l.Step(0, Leave{addr}, Carry{Address: addr, Version: 2, Answers: true})
	cut(0)
	if l.Step(0, Verdict{Address: addr, Number: former}); l.Standing(addr).Phase != Asking {
		t.Errorf("after the API's word about the pod before, the address is %+v", l.Standing(addr))
	}

	start()
	former = cut(0)
	l.Step(0)
	asserted = -1
	again := 0
	for _, out := range step(time.Minute, Verdict{Address: addr, Number: former, Mine: true, Version: 1}) {
		if ask, ok := out.(AskAPI); ok {
			again = ask.Number
		}
	}
	if l.Standing(addr).Phase != Asking || again == 0 {
		t.Fatalf("after a minute's pause the address is %+v by the API's word of before, and the node asks again: %d", l.Standing(addr), again)
	}
	opens(time.Minute, again)
}

// A denial counts if it is of the node that was asked, to this one, of its version, and answers one
// of its last two assertions.
func TestDenials(t *testing.T) {
	self, last, addr := Node{Name: "self", UID: "1"}, Node{Name: "last", UID: "2"}, netip.MustParseAddr("10.0.70.5")
	for name, c := range map[string]struct {
		change func(m *Message)
		denied bool
	}{
		"as asked":           {func(*Message) {}, true},
		"another version":    {func(m *Message) { m.Version++ }, false},
		"another node's":     {func(m *Message) { m.From.Name = "other" }, false},
		"to another node":    {func(m *Message) { m.To.Name = "other" }, false},
		"of another address": {func(m *Message) { m.Address = m.Address.Next() }, false},
		"repeated":           {func(m *Message) { m.Nonce++ }, false},
		"without a nonce":    {func(m *Message) { m.Nonce = 0 }, false},
	} {
		l := NewLink(0, self, "mac", random())
		var denial Message
		for _, out := range l.Step(0, Take{Address: addr, Version: 3, Last: last}) {
			if s, ok := out.(Send); ok && s.Kind == Assert {
				if s.To != last || s.Nonce == 0 {
					t.Fatalf("it asserts %+v", s)
				}
				denial = Message{Kind: Deny, From: last, To: self, Address: addr, Version: s.Version, Nonce: s.Nonce}
			}
		}
		c.change(&denial)
		l.Step(time.Millisecond, Heard{Message: denial})
		if denied := l.Standing(addr).Denied; denied != c.denied {
			t.Errorf("%s: denied %t", name, denied)
		}
	}
}

// Of a newer record that another node asserts, the API is asked first. Where that does not answer
// within 50 ms, is not reached, or confirms it, the node falls silent, and then denies. A node that
// was refuted keeps nobody silent again.
func TestChallenge(t *testing.T) {
	self, other, addr := Node{Name: "self", UID: "1"}, Node{Name: "other", UID: "2"}, netip.MustParseAddr("10.0.70.5")
	assert := Heard{Message: Message{Kind: Assert, From: other, To: self, Address: addr, Version: 9, Nonce: 7}}
	want := []Output{Close{addr, 9}, Send{Message{Kind: Deny, From: self, To: other, Address: addr, Version: 9, Nonce: 7}}}
	for name, c := range map[string]struct {
		// says is what the API says at once.
		says func(number int) []Input
		// closes is when the node falls silent, never if it is negative.
		closes time.Duration
	}{
		"no answer":      {func(int) []Input { return nil }, 50 * time.Millisecond},
		"not reached":    {func(int) []Input { return []Input{API{}} }, time.Millisecond},
		"another node's": {func(n int) []Input { return []Input{Verdict{Address: addr, Number: n}} }, time.Millisecond},
		"its own":        {func(n int) []Input { return []Input{Verdict{Address: addr, Number: n, Mine: true, Version: 1}} }, -1},
	} {
		l := NewLink(0, self, "mac", random())
		l.Step(0, Carry{Address: addr, Version: 1, Answers: true})
		number := 0
		for _, out := range l.Step(0, assert) {
			switch out := out.(type) {
			case AskAPI:
				number = out.Number
			case Close, Send:
				t.Errorf("%s: it does %+v before it has asked the API", name, out)
			}
		}
		if number == 0 {
			t.Fatalf("%s: it does not ask the API", name)
		}
		said := func(outputs []Output) []Output {
			return slices.DeleteFunc(outputs, func(out Output) bool { _, asks := out.(AskAPI); return asks })
		}
		now := time.Millisecond
		outputs := said(l.Step(now, c.says(number)...))
		for len(outputs) == 0 && now < time.Second {
			due, _ := l.Next()
			now = max(now+time.Millisecond, due)
			outputs = said(l.Step(now))
		}
		switch {
		case c.closes < 0:
			if l.Standing(addr).Phase != Answering {
				t.Errorf("%s: it closes", name)
			}
			for range 3 {
				for _, out := range l.Step(now, assert) {
					if _, closes := out.(Close); closes {
						t.Errorf("%s: it closes for a node that was refuted", name)
					}
				}
				now += 20 * time.Millisecond
			}
		case now != c.closes || !slices.Equal(outputs, want):
			t.Errorf("%s: at %v it does %+v, want %+v at %v", name, now, outputs, want, c.closes)
		}
	}
}

// On a large segment a node calls some of the others, always the same, and each of these answers
// many calls at once.
func TestPeers(t *testing.T) {
	const nodes = 1000
	caller := NewLink(0, Node{Name: "caller"}, "mac", random())
	var all []Input
	for i := range nodes {
		all = append(all, Heard{Message: Message{Kind: Hello, From: Node{Name: fmt.Sprint("node", i)}, MAC: "x"}})
	}
	caller.Step(0, all...)
	call := Message{}
	for _, out := range caller.Step(0, Carry{Address: netip.MustParseAddr("10.0.70.5"), Version: 1, Failover: true, Answers: true}) {
		if s, ok := out.(Send); ok && s.Kind == Call && s.Nonce != 0 {
			call = s.Message
		}
	}
	// answers are the Hellos of a node that hears calls at once, in its next second.
	answers := func(i int, calls ...Message) (echoes []Output) {
		l, now := NewLink(0, Node{Name: fmt.Sprint("node", i)}, "mac", random()), time.Duration(0)
		l.Step(0)
		var inputs []Input
		for _, m := range calls {
			inputs = append(inputs, Heard{Message: m})
		}
		for now < time.Second {
			for _, out := range l.Step(now, inputs...) {
				if s, ok := out.(Send); ok && s.Kind == Hello && s.Nonce != 0 {
					echoes = append(echoes, out)
				}
			}
			due, _ := l.Next()
			inputs, now = nil, max(now+time.Millisecond, due)
		}
		return echoes
	}
	peers := 0
	for i := range nodes {
		one := answers(i, call)
		peers += len(one)
		greater := call
		greater.Share *= 2
		if len(answers(i, greater)) > len(one) {
			t.Errorf("node %d is a peer only where there are more nodes", i)
		}
	}
	if peers < 10 || peers > 64 {
		t.Errorf("of %d nodes %d answer a call for one in %d", nodes, peers, call.Share)
	}
	var calls []Message
	for i := range 100 {
		calls = append(calls, Message{Kind: Call, From: Node{Name: fmt.Sprint("caller", i)}, Nonce: uint64(i + 1), Share: 1})
	}
	echoes := answers(0, calls...)
	if n := len(echoes); n != 30 {
		t.Errorf("a node answers %d calls at once, want 30", n)
	}
	// A node that has just booted knows a peer by this alone.
	if first, ok := echoes[0].(Send); !ok || first.MAC != "mac" {
		t.Errorf("the answer %+v does not say by which MAC the node answers", echoes[0])
	}
}

// A node that has a newer record says so to one that asserts an older one, and not where it has
// been told of one that is newer still.
func TestOlderRecord(t *testing.T) {
	self, other, addr := Node{Name: "self", UID: "1"}, Node{Name: "other", UID: "2"}, netip.MustParseAddr("10.0.70.5")
	l := NewLink(0, self, "mac", random())
	l.Step(0, Carry{Address: addr, Version: 5, Answers: true})
	older := Heard{Message: Message{Kind: Assert, From: other, To: self, Address: addr, Version: 4, Nonce: 7}}
	want := []Output{Send{Message{Kind: Assert, From: self, To: other, Address: addr, Version: 5}}}
	if got := l.Step(time.Millisecond, older); !slices.Equal(got, want) {
		t.Errorf("it does %+v, want %+v", got, want)
	}
	l.Step(2*time.Millisecond, Heard{Message: Message{Kind: Assert, From: other, Address: addr, Version: 6}}, API{})
	if l.Step(time.Second); l.Standing(addr).Phase != Closed {
		t.Fatalf("after a newer record it is %+v", l.Standing(addr))
	}
	for _, out := range l.Step(time.Second, older) {
		if s, ok := out.(Send); ok {
			t.Errorf("of a record that is outdated it says %+v", s)
		}
	}
}

// Silence of an address that another node had, and has not denied, counts after eight questions in
// a row with a control of its family: a gateway, or a node by the address that it said.
func TestControls(t *testing.T) {
	self, last, third := Node{Name: "self", UID: "1"}, Node{Name: "last", UID: "2"}, Node{Name: "third", UID: "3"}
	four, six := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("2001:db8:70::5")
	thirdFour, thirdSix := netip.MustParseAddr("10.0.60.3"), netip.MustParseAddr("2001:db8:60::3")
	for name, c := range map[string]struct {
		addr netip.Addr
		// control is the answer to the n-th question's control, nil for none.
		control func(n int) Input
		opens   bool
	}{
		"a gateway":                     {four, func(int) Input { return Gateway{Address: gateway} }, true},
		"a node":                        {four, func(int) Input { return Answered{thirdFour, "mac3", false} }, true},
		"a node, of IPv6":               {six, func(int) Input { return Answered{thirdSix, "mac3", false} }, true},
		"a node, by IPv4 for IPv6":      {six, func(int) Input { return Answered{thirdFour, "mac3", false} }, false},
		"a gateway, by IPv4 for IPv6":   {six, func(int) Input { return Gateway{Address: gateway} }, false},
		"a node, by IPv6 for IPv4":      {four, func(int) Input { return Answered{thirdSix, "mac3", false} }, false},
		"an address that nobody's is":   {four, func(int) Input { return Answered{gateway.Next(), "mac4", false} }, false},
		"nobody, to each eighth of all": {four, func(n int) Input { return map[bool]Input{false: Gateway{Address: gateway}}[n%8 == 7] }, false},
		"nobody":                        {four, func(int) Input { return nil }, false},
	} {
		l, now := NewLink(0, self, "mac", random()), time.Duration(0)
		inputs := []Input{
			Heard{Message: Message{Kind: Hello, From: third, MAC: "mac3", Address: thirdFour}},
			Heard{Message: Message{Kind: Hello, From: third, MAC: "mac3", Address: thirdSix}},
			Take{Address: c.addr, Version: 2, Last: last},
		}
		opened := false
		for asked := 0; now < 50*time.Second && !opened; {
			outputs := l.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				switch out.(type) {
				case Open:
					opened = true
				case Question:
					if in := c.control(asked); in != nil {
						inputs = append(inputs, in)
					}
					asked++
				}
			}
			due, _ := l.Next()
			now = max(now+2*time.Millisecond, due)
			l.Step(now-time.Millisecond, inputs...)
			inputs = nil
		}
		if opened != c.opens {
			t.Errorf("%s: the node answers: %t, after %v", name, opened, now)
		}
	}
}

// Nodes that did not answer as a control before are asked after the ones that did: whoever is on
// the segment can repeat what nodes said that are off by now.
func TestControlsThatAnswer(t *testing.T) {
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 60, byte(i)}) }
	const off, alive = 6, 7
	l, now := NewLink(0, Node{Name: "self"}, "mac", random()), time.Duration(0)
	l.Step(now, Take{Address: netip.MustParseAddr("10.0.70.5"), Version: 2, Last: Node{Name: "last"}})
	for range 20 {
		now += 500 * time.Millisecond
		var inputs []Input
		for i := alive; i > 0; i-- {
			inputs = append(inputs, Heard{Message: Message{Kind: Hello, From: Node{Name: string(rune('a' + i))}, MAC: "mac2", Address: addr(i)}})
		}
		for _, out := range l.Step(now, inputs...) {
			if c, ok := out.(Control); ok && slices.Contains(c.Addresses, addr(alive)) {
				return
			}
		}
	}
	t.Errorf("%d nodes that are off were asked in turn, and never the one that answers", off)
}

// A twin answers at once where the API's holder yields, which closes first. Old messages and those
// of others change nothing.
func TestTakeOver(t *testing.T) {
	source, target, liar, addr := Node{Name: "source"}, Node{Name: "target"}, Node{Name: "liar"}, netip.MustParseAddr("10.0.70.5")
	const v0, v1, v2 = 10, 11, 12
	takeOver := func(from Node, version Version, nonce uint64) Heard {
		return Heard{Message: Message{Kind: TakeOver, From: from, To: source, Address: addr, Version: version, Nonce: nonce}}
	}
	// holder returns a node that answers, and knows its twin if a verdict is given.
	holder := func(v Verdict) *Link {
		l := NewLink(0, source, "mac", random())
		l.Step(0, Carry{Address: addr, Version: v0, Answers: true})
		if v.Version > 0 {
			number := asked(l.Step(1, Heard{Message: Message{Kind: Assert, From: liar, Address: addr, Version: v0 + 1}}))
			v.Address, v.Number, v.Mine = addr, number, true
			l.Step(2, v)
		}
		return l
	}
	closed := func(l *Link) bool { return l.Standing(addr).Cause == Twin }

	t.Run("closes before it yields", func(t *testing.T) {
		out := holder(Verdict{Version: v1, Twin: target}).Step(3, takeOver(target, v1, 7))
		i := slices.Index(out, Output(Close{addr, v1}))
		k := slices.Index(out, Output(Send{Message{Kind: Yield, From: source, To: target, Address: addr, Version: v1, Nonce: 7}}))
		if i < 0 || k < i {
			t.Errorf("outputs are %v", out)
		}
	})
	t.Run("does not heed a node that is no twin", func(t *testing.T) {
		l := holder(Verdict{Version: v1, Twin: target})
		number := asked(l.Step(3, takeOver(liar, v1, 7)))
		l.Step(4, Verdict{Address: addr, Number: number, Mine: true, Version: v1, Twin: target})
		if l.Step(time.Second); l.Standing(addr).Phase != Answering {
			t.Errorf("the source is %+v", l.Standing(addr))
		}
	})
	t.Run("does not heed an old takeover", func(t *testing.T) {
		l := holder(Verdict{Version: v2, Twin: target})
		if l.Step(3, takeOver(target, v1, 7)); closed(l) {
			t.Error("the source closed")
		}
	})
	t.Run("asks the API about a twin that it does not know", func(t *testing.T) {
		l := holder(Verdict{})
		number := asked(l.Step(3, takeOver(target, v1, 7)))
		if closed(l) {
			t.Error("the source closed before the API responded")
		}
		l.Step(4, Verdict{Address: addr, Number: number, Mine: true, Version: v1, Twin: target})
		if !closed(l) {
			t.Errorf("the source is %+v", l.Standing(addr))
		}
	})
	t.Run("stays closed until a newer record without the twin", func(t *testing.T) {
		l := holder(Verdict{Version: v1, Twin: target})
		number := asked(l.Step(3, takeOver(target, v1, 7)))
		number = asked(append(l.Step(4, Verdict{Address: addr, Number: number, Mine: true, Version: v1, Twin: target}), l.Step(600*time.Millisecond)...))
		l.Step(601*time.Millisecond, Verdict{Address: addr, Number: number, Mine: true, Version: v2, Twin: target})
		if !closed(l) {
			t.Errorf("the source is %+v", l.Standing(addr))
		}
		number = asked(l.Step(1200 * time.Millisecond))
		if l.Step(1201*time.Millisecond, Verdict{Address: addr, Number: number, Mine: true, Version: v2 + 1}); l.Standing(addr).Phase != Asking || l.Standing(addr).Last != target {
			t.Errorf("the source is %+v", l.Standing(addr))
		}
	})
	t.Run("the twin opens on a fresh Yield of the holder", func(t *testing.T) {
		yield := func(from Node, version Version, nonce uint64) Heard {
			return Heard{Message: Message{Kind: Yield, From: from, To: target, Address: addr, Version: version, Nonce: nonce}}
		}
		l := NewLink(0, target, "mac", random())
		if out := l.Step(0, Stand{Address: addr, Version: v1, Holder: source}); slices.ContainsFunc(out, func(o Output) bool { _, is := o.(Question); return is }) {
			t.Errorf("the twin asks before the cut: %v", out)
		}
		var said Message
		for _, o := range l.Step(1, Cut{addr}) {
			if s, is := o.(Send); is && s.Kind == TakeOver {
				said = s.Message
			}
		}
		if said.To != source || said.Version != v1 || said.Nonce == 0 {
			t.Fatalf("the twin says %+v", said)
		}
		for _, h := range []Heard{yield(liar, v1, said.Nonce), yield(source, v0, said.Nonce), yield(source, v1, said.Nonce+1), yield(source, v1, 0)} {
			if l.Step(2, h); l.Standing(addr).Phase != Asking {
				t.Errorf("the twin heeds %+v", h)
			}
		}
		if out := l.Step(3, yield(source, v1, said.Nonce)); !slices.Contains(out, Output(Open{addr})) {
			t.Errorf("outputs are %v", out)
		}
		// The API has yet to follow: the source may have been cut off, and open by its word.
		out := l.Step(4, Heard{Message: Message{Kind: Assert, From: source, Address: addr, Version: v1}})
		if !slices.Contains(out, Output(Send{Message{Kind: TakeOver, From: target, To: source, Address: addr, Version: v1}})) {
			t.Errorf("to the source's assertion it says %v", out)
		}
	})
}

// asked returns the number of the last AskAPI of outputs.
func asked(out []Output) (number int) {
	for _, o := range out {
		if ask, is := o.(AskAPI); is {
			number = ask.Number
		}
	}
	return number
}
