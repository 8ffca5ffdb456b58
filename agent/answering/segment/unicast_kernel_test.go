// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/agentca"
)

// listen opens and runs the Unicast of a station's node, at an address that the node has later.
func (s *station) listen(own netip.Addr) (u *Unicast, heard <-chan answering.Message) {
	s.t.Helper()
	options := Options{Codec: s.load, Refused: func(err error) { s.refused <- err }}
	s.host.Run(func() (err error) {
		u, err = OpenUnicast(s.t.Context(), own, options)
		return err
	})
	all := make(chan answering.Message, 1000)
	ctx, stop := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx, func(m answering.Message) { all <- m }) }()
	s.t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, u.Close()); err != nil {
			s.t.Error(err)
		}
	})
	s.options.Unicast = u
	return u, all
}

// A node that is cut off from the segment, and has another network, hears the messages to it and
// replies, as soon as both nodes have heard each other. Nobody else's messages are heard there.
func TestUnicast(t *testing.T) {
	for family, network := range map[string][2]string{"IPv4": {"10.0.61.11/24", "10.0.61.12/24"}, "IPv6": {"2001:db8:61::11/64", "2001:db8:61::12/64"}} {
		t.Run(family, func(t *testing.T) {
			w, a, b := pair(t)
			own1, own2 := netip.MustParsePrefix(network[0]), netip.MustParsePrefix(network[1])
			s1, s2 := join(t, a, "eth0", node1), join(t, b, "eth0", answering.Node{Name: "before"})
			_, heard1 := s1.listen(own1.Addr())
			u2, heard2 := s2.listen(own2.Addr())
			between := netnstest.NewWire(t)
			between.Plug(a, "eth1", own1)
			between.Plug(b, "eth1", own2)
			meet(t, s1, s2)
			s2.codec.Store(newCodec(t, node2))
			s1.say(answering.Message{Kind: answering.Hello, From: node1})
			s2.hears(answering.Message{Kind: answering.Hello, From: node1})
			w.Block(2, true)

			toNode2 := func(uid string, version answering.Version) answering.Message {
				m := asserts(node1, version)
				m.To = answering.Node{Name: "node2", UID: uid}
				return m
			}
			// Node 1 has not heard node 2 by its UID.
			s1.say(toNode2("u2", 1))
			w.Block(2, false)
			netnstest.Eventually(t, func() error {
				s2.say(answering.Message{Kind: answering.Hello, From: node2})
				select {
				case <-s1.heard:
					return nil
				case <-time.After(10 * time.Millisecond):
					return errors.New("nothing is heard")
				}
			})
			w.Block(2, true)
			s1.say(asserts(node1, 2), toNode2("u9", 3), toNode2("u2", 4), toNode2("", 5))
			for _, want := range []answering.Message{toNode2("u2", 4), toNode2("", 5)} {
				if got := wait(t, heard2); got != want {
					t.Errorf("node 2 hears %+v, want %+v", got, want)
				}
			}
			denial := answering.Message{Kind: answering.Deny, From: node2, To: node1, Address: addr4, Version: 4}
			s2.say(denial)
			if got := wait(t, heard1); got != denial {
				t.Errorf("node 1 hears %+v, want %+v", got, denial)
			}

			clone, err := agentca.New("clone")
			if err != nil {
				t.Fatal(err)
			}
			s1.codec.Store(codecOf(t, clone, node1))
			s1.say(toNode2("u2", 6))
			if err := wait(t, s2.refused); !errors.Is(err, datagram.ErrCertificate) {
				t.Errorf("refused because of %v", err)
			}
			if len(heard1)+len(heard2) > 0 || len(s1.refused) > 0 {
				t.Errorf("%d and %d more are heard, %d refused", len(heard1), len(heard2), len(s1.refused))
			}
			// A node that was not heard for an hour is forgotten, and so is its InternalIP.
			u2.mu.Lock()
			u2.nodes[node1], u2.swept = host{own1.Addr(), time.Now().Add(-2 * knownFor)}, time.Time{}
			u2.mu.Unlock()
			u2.learn(node2, own2.Addr())
			if got := u2.find(node1); got.IsValid() {
				t.Errorf("node 1 is known at %s", got)
			}
		})
	}
}

// A datagram to a node that is off does not keep the others waiting: the kernel asks for the node's
// MAC for seconds, and the socket's buffer is full before.
func TestUnicastToDeadNode(t *testing.T) {
	_, a, _ := pair(t)
	s := join(t, a, "eth0", node1)
	u, _ := s.listen(netip.MustParseAddr("10.0.70.11"))
	// Less than the kernel keeps for a host whose MAC it does not know.
	if err := u.conn.SetWriteBuffer(1); err != nil {
		t.Fatal(err)
	}
	a.IP("addr", "add", "10.0.70.11/24", "dev", "eth0")
	u.learn(node2, netip.MustParseAddr("10.0.70.12"))
	m := asserts(node1, 1)
	m.To = node2
	for range 10_000 {
		if err := a.Try(func() error { return s.Send([]answering.Message{m}) }); errors.Is(err, unix.EAGAIN) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("10,000 datagrams wait for a node that is off, or for each other")
}

// Another program that has the port is named by the error.
func TestUnicastInUse(t *testing.T) {
	netnstest.Need(t)
	h := netnstest.New(t)
	h.Run(func() error {
		first, err := OpenUnicast(t.Context(), netip.MustParseAddr("127.0.0.1"), Options{})
		if err != nil {
			return err
		}
		defer first.Close()
		_, err = OpenUnicast(t.Context(), netip.MustParseAddr("127.0.0.1"), Options{})
		var wrapped *net.OpError
		if !errors.As(err, &wrapped) || wrapped.Addr.String() != fmt.Sprintf("127.0.0.1:%d", datagram.Port) {
			t.Errorf("OpenUnicast() of a port in use = %v", err)
		}
		return nil
	})
}
