// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/netnstest"
)

// A container calls a port of its node that leads elsewhere, such as a NodePort, and a container
// of package wire on the same node calls it by an address that leads to it, such as a Service's.
// The answers must come to the node, which translates them back: the server sees the node where
// the container talks to others past it, and where it does not, the caller.
func TestTranslatedConnections(t *testing.T) {
	const port = 30080
	test := func(t *testing.T, w *world) {
		a, beside := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("beside", "10.0.70.6", "2001:db8:70::6")
		// Of another pool, on the uplink itself.
		beside.spec.Addresses = []api.Address{
			{Address: netip.MustParseAddr("10.0.80.6"), Subnet: netip.MustParsePrefix("10.0.80.0/24"), Gateway: netip.MustParseAddr("10.0.60.1")},
			{Address: netip.MustParseAddr("2001:db8:80::6"), Subnet: netip.MustParsePrefix("2001:db8:80::/64"), Gateway: netip.MustParseAddr("2001:db8:60::1")},
		}
		if w.config.Bridge != "" {
			beside.spec.Uplink = w.config.Bridge
		}
		sysctl(t, w.nodeA, "net/ipv4/ip_forward", "1") // as kube-proxy needs it
		w.setup(w.nodeA, a)
		w.route(a, w.nodeA)
		w.nodeA.Run(func() error { _, err := w.drivers[w.nodeA].wirer.Setup(beside.spec.Spec); return err })
		serve(t, w.client, port)
		serve(t, a.Host, port)
		for _, f := range []struct{ node, client, own, service, beside string }{
			{"10.0.60.11", "10.0.70.50", "10.0.70.5", "10.96.0.1", "10.0.80.6"},
			{"2001:db8:60::11", "2001:db8:70::50", "2001:db8:70::5", "2001:db8:96::1", "2001:db8:80::6"},
		} {
			w.nodeA.Run(func() error {
				return errors.Join(netnstest.Redirect(f.node, port, f.client), netnstest.Redirect(f.service, port, f.own))
			})
			for _, c := range []struct {
				what string
				from *netnstest.Host
				to   string
				want string
			}{
				{"a port of its node", a.Host, f.node, f.own},
				{"a Service, which a container of the same node calls", beside.Host, f.service, f.beside},
			} {
				if w.config.Mode != Pure {
					c.want = f.node
				}
				seen, err := ask(c.from, netip.AddrPortFrom(netip.MustParseAddr(c.to), port))
				if err != nil || seen != c.want {
					t.Errorf("%s: the server sees %q, %v, want %s", c.what, seen, err, c.want)
				}
			}
		}
	}
	for _, name := range []string{"macvlan", "bridge"} {
		c := networkTypes[name]
		t.Run(name, func(t *testing.T) {
			netnstest.NeedLinks(t, c.needs...)
			test(t, newWorld(t, c.Config, c.vlan))
		})
	}
}

// serve answers by TCP with the client's address.
func serve(t *testing.T, h *netnstest.Host, port int) {
	t.Helper()
	var listener *net.TCPListener
	h.Run(func() (err error) { listener, err = net.ListenTCP("tcp", &net.TCPAddr{Port: port}); return err })
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String())
			_ = conn.Close()
		}
	}()
}

// ask returns what a server answers.
func ask(from *netnstest.Host, to netip.AddrPort) (string, error) {
	const patience = 20 * time.Second
	var answer []byte
	err := from.Try(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		answer, err = io.ReadAll(conn)
		return err
	})
	return string(answer), err
}
