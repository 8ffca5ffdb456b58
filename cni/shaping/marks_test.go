// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
)

func readAll(t *testing.T) map[netip.Addr]uint8 {
	t.Helper()
	marks, err := readMarks()
	if err != nil {
		t.Fatal(err)
	}
	return marks
}

// class sends a datagram and returns the traffic class (DSCP and ECN) that arrives. The
// sender sets its own.
func (w *topology) class(from *testPod, to string, sent int) int {
	w.t.Helper()
	var receiver *net.UDPConn
	v6 := netip.MustParseAddr(to).Is6()
	netnstest.Eventually(w.t, func() error {
		return w.server.Try(func() (err error) {
			receiver, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(to)})
			return err
		})
	})
	defer receiver.Close()
	level, option, set := unix.IPPROTO_IP, unix.IP_RECVTOS, unix.IP_TOS
	if v6 {
		level, option, set = unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, unix.IPV6_TCLASS
	}
	configure(w.t, receiver, level, option, 1)
	data, control := make([]byte, 64), make([]byte, 64)
	var n, oobn int
	// A datagram may be lost, as while neighbours are found.
	netnstest.Eventually(w.t, func() error {
		err := from.Try(func() error {
			sender, err := net.DialUDP("udp", nil, receiver.LocalAddr().(*net.UDPAddr))
			if err != nil {
				return err
			}
			defer sender.Close()
			configure(w.t, sender, level, set, sent)
			_, err = sender.Write([]byte("hello"))
			return err
		})
		if err != nil {
			return err
		}
		if err := receiver.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, oobn, _, _, err = receiver.ReadMsgUDP(data, control)
		return err
	})
	if string(data[:n]) != "hello" {
		w.t.Fatalf("received %q", data[:n])
	}
	messages, err := unix.ParseSocketControlMessage(control[:oobn])
	if err != nil || len(messages) != 1 {
		w.t.Fatalf("%d control messages: %v", len(messages), err)
	}
	return int(messages[0].Data[0])
}

func configure(t *testing.T, c *net.UDPConn, level, option, value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, value) }); err != nil || set != nil {
		t.Fatal(err, set)
	}
}

func TestDSCP(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b := w.pod("a"), w.pod("b")
	const capable, own = 2, 8 << 2 // of ECN; class selector 1
	for step, dscp := range []*uint8{nil, new(uint8(46)), new(uint8(10)), new(uint8(0)), nil} {
		a.DSCP = dscp
		// The packets of a pod with a limit pass a device before.
		a.Egress = Limit{Rate: uint64(step%2) * 20 * mbit}
		w.sync(a, b)
		want := own | capable
		if dscp != nil {
			want = int(*dscp)<<2 | capable
		}
		for _, to := range []string{server4, server6} {
			if got := w.class(a, to, own|capable); got != want {
				t.Errorf("step %d: %s got traffic class %#x of the pod, want %#x", step, to, got, want)
			}
			if got := w.class(b, to, own|capable); got != own|capable {
				t.Errorf("step %d: %s got traffic class %#x of another pod, want what it set", step, to, got)
			}
		}
	}
	// The table comes back after somebody emptied it.
	a.DSCP = new(uint8(46))
	w.sync(a, b)
	w.node.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushRuleset()
		return conn.Flush()
	})
	w.sync(a, b)
	if got := w.class(a, server4, 0); got != 46<<2 {
		t.Errorf("after a flush of all rules: traffic class %#x", got)
	}
}

// A node may have more addresses with a DSCP than one message to the kernel has room for.
func TestManyDSCPs(t *testing.T) {
	node := netnstest.New(t)
	many := map[netip.Addr]uint8{}
	addr := netip.MustParseAddr("2001:db8::1")
	for range 5000 {
		many[addr] = 46
		addr = addr.Next()
	}
	node.Run(func() error {
		if err := applyMarks(many, nil, true); err != nil {
			return err
		}
		if have := readAll(t); !maps.Equal(have, many) {
			t.Errorf("the table has %d addresses, want %d", len(have), len(many))
		}
		return nil
	})
}
