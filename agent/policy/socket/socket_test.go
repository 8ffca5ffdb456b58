// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
)

// For real sockets between two namespaces, each side names the same side as the one
// that began.
func TestConnections(t *testing.T) {
	netnstest.Need(t)
	client, server := netnstest.New(t), netnstest.New(t)
	wire := netnstest.NewWire(t)
	wire.Plug(client, "eth0", netip.MustParsePrefix("10.0.1.1/24"), netip.MustParsePrefix("fd00:1::1/64"))
	wire.Plug(server, "eth0", netip.MustParsePrefix("10.0.1.2/24"), netip.MustParsePrefix("fd00:1::2/64"))

	var listener, silent net.Listener
	var datagrams net.PacketConn
	server.Run(func() (err error) {
		// Takes IPv4 as well, as mapped addresses.
		if listener, err = net.Listen("tcp", ":80"); err != nil {
			return err
		}
		if silent, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		datagrams, err = net.ListenPacket("udp", ":53")
		return err
	})
	defer listener.Close()
	defer silent.Close()
	defer datagrams.Close()
	var want []string
	for _, family := range []struct{ client, server string }{{"10.0.1.1", "10.0.1.2"}, {"fd00:1::1", "fd00:1::2"}} {
		for protocol, port := range map[string]int{"tcp": 80, "udp": 53} {
			var conn net.Conn
			client.Run(func() (err error) {
				conn, err = net.Dial(protocol, net.JoinHostPort(family.server, fmt.Sprint(port)))
				return err
			})
			defer conn.Close()
			if protocol == "tcp" {
				accepted, err := listener.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer accepted.Close()
			}
			want = append(want, fmt.Sprintf("%s %s > %s", protocol, conn.LocalAddr(), conn.RemoteAddr()))
		}
	}
	// Stays inside.
	server.Run(func() error {
		conn, err := net.Dial("tcp", silent.Addr().String())
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return err
	})
	slices.Sort(want)

	text := func(all []Connection) (texts []string) {
		for _, c := range all {
			name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[c.Protocol]
			texts = append(texts, fmt.Sprintf("%s %s > %s", name, c.From, c.To))
		}
		slices.SortFunc(texts, cmp.Compare)
		return texts
	}
	for _, side := range []struct {
		*netnstest.Host
		certain bool
		want    []string
	}{
		{client, false, want},
		// A server of datagrams does not know its senders.
		{server, true, slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s[:3] == "udp" })},
	} {
		all, err := Connections(side.Path())
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(side.want, text(all)); diff != "" {
			t.Errorf("the connections differ (-want +got):\n%s", diff)
		}
		for _, c := range all {
			if c.Certain != side.certain || (c.Local == c.From.Addr()) == side.certain {
				t.Errorf("%+v: certain %t, want %t", c, c.Certain, side.certain)
			}
		}
	}
}

// A server that begins to listen while the sockets are listed, and has a connection at once, did
// not begin it.
func TestListensMeanwhile(t *testing.T) {
	netnstest.Need(t)
	client, server := netnstest.New(t), netnstest.New(t)
	wire := netnstest.NewWire(t)
	wire.Plug(client, "eth0", netip.MustParsePrefix("10.0.1.1/24"))
	wire.Plug(server, "eth0", netip.MustParsePrefix("10.0.1.2/24"))
	seen := 0
	// One in a hundred or so comes in the wrong moment.
	for range 1000 {
		type looked struct {
			all []Connection
			err error
		}
		look := make(chan looked)
		go func() {
			all, err := Connections(server.Path())
			look <- looked{all, err}
		}()
		var listener net.Listener
		server.Run(func() (err error) { listener, err = net.Listen("tcp", "10.0.1.2:0"); return err })
		var conn net.Conn
		client.Run(func() (err error) { conn, err = net.Dial("tcp", listener.Addr().String()); return err })
		is := <-look
		if is.err != nil {
			t.Fatal(is.err)
		}
		for _, c := range is.all {
			seen++
			if !c.Certain || c.To.Addr() != c.Local {
				t.Fatalf("the server began %+v", c)
			}
		}
		// So that no socket of it is left.
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		_ = listener.Close()
	}
	if seen == 0 {
		t.Error("no look saw a connection, so that the test shows nothing")
	}
}
