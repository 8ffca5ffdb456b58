// SPDX-License-Identifier: Apache-2.0

package datagram

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/agent/answering"
)

const (
	// stormNodes are on one segment, with stormAddresses each.
	stormNodes, stormAddresses = 5000, 30
	// stormGateway answers each control.
	stormGateway = time.Millisecond
)

// sent is what a node sends in a time.
type sent struct {
	messages, datagrams, questions int
	// hails are the Hellos and Calls.
	hails int
	bytes int
}

func (s *sent) add(more sent) {
	s.messages, s.datagrams, s.questions = s.messages+more.messages, s.datagrams+more.datagrams, s.questions+more.questions
	s.hails, s.bytes = s.hails+more.hails, s.bytes+more.bytes
}

// stormNode is a node with all its addresses, which its API server confirms where it is reached.
type stormNode struct {
	index int
	link  *answering.Link
	codec *Codec
	now   time.Duration
	api   bool
	sent  sent
	// opened is when the node has opened an address last.
	opened time.Duration
}

func stormName(i int) answering.Node {
	return answering.Node{Name: fmt.Sprintf("worker-%04d", i), UID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i)}
}

func stormAddress(node, i int) netip.Addr {
	n := node*stormAddresses + i
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// stormOwn is a node's own address.
func stormOwn(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}) }

func newStormNode(t testing.TB, i int, api bool) *stormNode {
	n := &stormNode{index: i, codec: codec(t, stormName(i), authority(t)), api: api}
	n.link = answering.NewLink(0, stormName(i), "02:00:00:00:00:01", rand.New(rand.NewPCG(uint64(i), 1)).Uint64, stormOwn(i))
	for a := range stormAddresses {
		n.step(t, answering.Carry{Address: stormAddress(i, a), Version: 1000, Answers: true})
	}
	return n
}

// step has the machine see inputs, and then what its API server and its gateway answer.
func (n *stormNode) step(t testing.TB, inputs ...answering.Input) {
	for more := inputs; ; {
		var messages []answering.Message
		var next []answering.Input
		// As package answerer does, a node asks once in a step for each address.
		asked := map[netip.Addr]bool{}
		for _, out := range n.link.Step(n.now, more...) {
			switch out := out.(type) {
			case answering.Send:
				messages = append(messages, out.Message)
				if out.Kind == answering.Hello || out.Kind == answering.Call {
					n.sent.hails++
				}
			case answering.Question:
				asked[out.Address] = true
			case answering.Control:
				for _, addr := range append(out.Addresses, netip.Addr{}) {
					asked[addr] = true
				}
				next = append(next, answering.Gateway{Address: netip.AddrFrom4([4]byte{192, 168, 255, 254})})
			case answering.Open:
				n.opened = n.now
			case answering.AskAPI:
				if n.api {
					next = append(next, answering.Verdict{Address: out.Address, Number: out.Number, Mine: true, Version: 1000})
				}
			}
		}
		n.sent.questions += len(asked)
		datagrams, err := n.codec.Encode(netip.MustParseAddr("192.168.0.1"), messages)
		if err != nil {
			t.Fatal(err)
		}
		n.sent.messages, n.sent.datagrams = n.sent.messages+len(messages), n.sent.datagrams+len(datagrams)
		for _, d := range datagrams {
			n.sent.bytes += len(d)
		}
		if len(next) == 0 {
			return
		}
		more, n.now = next, n.now+stormGateway
	}
}

// until lets time pass, and returns what the node has sent since the last call.
func (n *stormNode) until(t testing.TB, end time.Duration) sent {
	defer func() { n.sent = sent{} }()
	for due, ok := n.link.Next(); ok && due <= end; due, ok = n.link.Next() {
		n.now = max(n.now, due)
		n.step(t)
	}
	n.now = end
	return n.sent
}

// open returns for how many addresses the node answers.
func (n *stormNode) open() (count int) {
	for i := range stormAddresses {
		if n.link.Standing(stormAddress(n.index, i)).Phase == answering.Answering {
			count++
		}
	}
	return count
}

// BenchmarkHeard is what one agent's CPU does to hear 5,000 nodes with 30 addresses each: it
// decodes a datagram with 30 assertions, of which it wants one or none, or a hello, and steps its
// machine.
func BenchmarkHeard(b *testing.B) {
	all := authority(b)
	receiver := codec(b, stormName(0), all)
	datagrams := map[string][][]byte{}
	for i := 1; i < stormNodes; i++ {
		sender := codec(b, stormName(i), all)
		hello := answering.Message{Kind: answering.Hello, From: stormName(i), MAC: "02:00:00:00:00:02", Address: stormAddress(i, 0)}
		datagrams["hello"] = append(datagrams["hello"], encode(b, sender, hello)...)
		var asserts []answering.Message
		for a := range stormAddresses {
			asserts = append(asserts, answering.Message{Kind: answering.Assert, From: stormName(i), Address: stormAddress(i, a), Version: 2000})
		}
		datagrams["30 assertions"] = append(datagrams["30 assertions"], encode(b, sender, asserts...)...)
	}
	wanted := true
	wants := func(m answering.Message) bool { return m.Kind != answering.Assert || wanted }
	datagrams["30 assertions of others"] = datagrams["30 assertions"]
	for _, kind := range []string{"hello", "30 assertions", "30 assertions of others"} {
		b.Run(kind, func(b *testing.B) {
			wanted = kind == "30 assertions"
			n := newStormNode(b, 0, true)
			n.until(b, time.Second)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				_, messages, err := receiver.Decode(datagrams[kind][i%len(datagrams[kind])], nil, wants)
				if err != nil {
					b.Fatal(err)
				}
				inputs := make([]answering.Input, 0, len(messages))
				for _, m := range messages {
					inputs = append(inputs, answering.Heard{Message: m})
				}
				n.link.Step(n.now, inputs...)
			}
		})
	}
}

// TestStorm prints what a node with 30 addresses, which knows the other nodes, sends in a minute of
// peace, and in the seconds after the carriers of all are back: the mean of some nodes. In peace
// that is two datagrams a minute, whatever the others do. Without the API server the nodes ask at
// different times, and all addresses are open within a minute.
func TestStorm(t *testing.T) {
	const some, segment = 50, 100_000
	var hellos []answering.Input
	for i := range stormNodes {
		hellos = append(hellos, answering.Heard{Message: answering.Message{Kind: answering.Hello, From: stormName(i), MAC: "02:00:00:00:00:02", Address: stormOwn(i)}})
	}
	for _, api := range []bool{true, false} {
		var seconds [60]sent
		var peace, later sent
		var last time.Duration
		for i := range some {
			n := newStormNode(t, i*stormNodes/some, api)
			n.until(t, 30*time.Second)
			n.step(t, hellos...)
			minute := n.until(t, 90*time.Second)
			if minute.datagrams != 2 || minute.hails != 1 {
				t.Errorf("in a minute of peace a node sends %+v", minute)
			}
			peace.add(minute)
			n.step(t, answering.API{Reachable: api}, answering.Carrier{})
			n.step(t, answering.Carrier{Up: true, Jitter: time.Duration(i%3) * 100 * time.Millisecond})
			began := n.now
			for second := range seconds {
				seconds[second].add(n.until(t, began+time.Duration(second+1)*time.Second))
			}
			last = max(last, n.opened-began)
			if open := n.open(); open != stormAddresses {
				t.Errorf("API reached %t: a node answers for %d addresses after a minute, not %d", api, open, stormAddresses)
			}
		}
		most := 0
		for second, s := range seconds {
			most = max(most, s.questions)
			if second > 0 && second < 10 {
				later.add(s)
			}
		}
		if all := most * stormNodes / some; all > segment {
			t.Errorf("API reached %t: %d nodes ask %d questions in a second, not %d at most", api, stormNodes, all, segment)
		}
		t.Logf("API reached %t: %d nodes: a minute of peace %+v; the first second %+v; nine more %+v; questions in the worst second %d; the last address is open after %v", api, some, peace, seconds[0], later, most, last)
	}
}

// BenchmarkDecode is the cost of a hello by who sends it: a known node, one that was not heard yet,
// a stranger with a certificate of its own, one with a node's, and a sender for whom the limiter
// has nothing left.
func BenchmarkDecode(b *testing.B) {
	all := authority(b)
	hello := func(c *Codec) []byte {
		return encode(b, c, answering.Message{Kind: answering.Hello, From: stormName(1), MAC: "02:00:00:00:00:02", Address: stormAddress(1, 0)})[0]
	}
	known, receiver := hello(codec(b, stormName(1), all)), codec(b, stormName(0), all)
	spoiled := bytes.Clone(known)
	spoiled[len(spoiled)-1] ^= 1
	b.Run("known", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = receiver.Decode(known, nil, nil)
		}
	})
	b.Run("unknown", func(b *testing.B) {
		for b.Loop() {
			clear(receiver.senders.known)
			_, _, _ = receiver.Decode(known, nil, nil)
		}
	})
	for name, d := range map[string][]byte{"stranger": hello(codec(b, stormName(1), authority(b))), "stolen": spoiled} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, _, _ = receiver.Decode(d, nil, nil)
			}
		})
	}
	b.Run("limited", func(b *testing.B) {
		nothing := rate.NewLimiter(0, 0)
		for b.Loop() {
			_, _, _ = receiver.Decode(spoiled, nothing, nil)
		}
	})
}
