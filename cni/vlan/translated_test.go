// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
)

// TestTranslatedConnections: the node translates connections, as kube-proxy does for Services and
// NodePorts; the test checks which server answers, and which source it sees. Answers must come to
// the node, which translates them back. So a server sees the node where the container talks to
// others past it, and else the caller.
func TestTranslatedConnections(t *testing.T) {
	t.Parallel()
	eachType(t, translatedConnections)
}

// Ports: every server's, and NodePorts that lead to the servers.
const (
	servicePort = 30080 + iota
	portToSame
	portToNode
	portToOther
	portToClient
	portToSelf
)

// nobody is the server's name where no answer comes.
const nobody = ""

func translatedConnections(t *testing.T, w *topology) {
	a, same, beside := w.pod("a", "10.0.70.5", "2001:db8:70::5"), w.pod("same", "10.0.70.7", "2001:db8:70::7"), w.pod("beside", "10.0.80.6", "2001:db8:80::6")
	// Of another pool, on the uplink itself.
	for i, gateway := range []string{"10.0.60.1", "2001:db8:60::1"} {
		b := &beside.spec.Addresses[i]
		b.VLAN, b.Gateway = 0, netip.MustParseAddr(gateway)
		b.Subnet = netip.PrefixFrom(b.Address, b.Subnet.Bits()).Masked()
	}
	if w.config.Bridge != "" {
		beside.spec.Uplink = w.config.Bridge
	}
	sysctl(t, w.nodeA, "net/ipv4/ip_forward", "1") // as kube-proxy needs it
	w.nodeA.IPBatch("link add nodelocaldns type bridge\naddr add 169.254.20.10/32 dev nodelocaldns\n")
	defer w.nodeA.IP("link", "del", "nodelocaldns")
	// Where the kernel has bridge filters, the node would also translate packets that pass its
	// bridges.
	for _, family := range []string{"iptables", "ip6tables"} {
		key := "net/bridge/bridge-nf-call-" + family
		if _, err := os.Stat("/proc/sys/" + key); err == nil {
			sysctl(t, w.nodeA, key, "0")
		}
	}
	for _, p := range []*pod{a, same} {
		// As on a node that filters strictly, which new namespaces inherit.
		sysctl(t, p.Host, "net/ipv4/conf/all/rp_filter", "1")
		sysctl(t, p.Host, "net/ipv4/conf/default/rp_filter", "1")
		p.spec.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("2001:db8:96::/112"), netip.MustParsePrefix("169.254.20.10/32")}
		w.setup(w.nodeA, p)
		w.route(p, w.nodeA)
	}
	d := w.drivers[w.nodeA]
	w.nodeA.Run(func() error {
		_, err := d.wirer.Setup(beside.spec.Spec)
		return errors.Join(err, netnstest.Masquerade())
	})
	defer w.nodeA.Run(func() error {
		return errors.Join(d.Teardown(a.spec), d.Teardown(same.spec), d.wirer.Teardown(beside.spec.Spec))
	})
	for _, h := range []*netnstest.Host{a.Host, same.Host, beside.Host, w.nodeA, w.nodeB, w.client} {
		if h != nil {
			serve(t, h, servicePort)
		}
	}
	for _, f := range []translatedFamily{
		{"10.0.60.11", "10.0.60.12", "10.0.70.50", "10.0.70.5", "10.0.70.7", "10.0.80.6", "10.96.0.%d"},
		{"2001:db8:60::11", "2001:db8:60::12", "2001:db8:70::50", "2001:db8:70::5", "2001:db8:70::7", "2001:db8:80::6", "2001:db8:96::%d"},
	} {
		for i, to := range []string{f.same, f.node, f.other, f.client, f.own, f.beside} {
			w.nodeA.Run(func() error { return netnstest.RedirectPort(f.serviceTo(i), servicePort, to, servicePort) })
		}
		for port, to := range map[uint16]string{portToSame: f.same, portToNode: f.node, portToOther: f.other, portToClient: f.client, portToSelf: f.own} {
			w.nodeA.Run(func() error { return netnstest.RedirectPort(f.node, port, to, servicePort) })
		}
		var group sync.WaitGroup
		for _, c := range w.translatedCases(f, a, beside) {
			if c.from == nil {
				continue
			}
			group.Go(func() {
				seen, err := ask(c.from, netip.AddrPortFrom(netip.MustParseAddr(c.to), c.port), c.want != nobody)
				if seen != c.want || (err == nil) != (c.want != nobody) {
					t.Errorf("%s, %s port %d: the server sees %q, %v, want %q", c.what, c.to, c.port, seen, err, c.want)
				}
			})
		}
		group.Wait()
	}
}

// translatedFamily has the addresses of one family: of the container's node, another one and a
// client; of the container, one of its network type on its node, and one of package wire there;
// and of Services.
type translatedFamily struct{ node, other, client, own, same, beside, service string }

// serviceTo returns the address of the Service of a number.
func (f translatedFamily) serviceTo(i int) string { return fmt.Sprintf(f.service, i+1) }

type translatedCase struct {
	what string
	from *netnstest.Host
	to   string
	port uint16
	want string
}

func (w *topology) translatedCases(f translatedFamily, a, beside *pod) []translatedCase {
	// The callers that a container's server sees, and that a server elsewhere sees of a container,
	// where the node translates: of a container of package wire, and of the network type.
	seen, elsewhere, fromBeside := f.node, f.node, f.node
	if w.config.Mode == Pure {
		seen, elsewhere, fromBeside = f.own, f.own, f.beside
	}
	// By a Service: the container's packets come to its node by the node link, or because the node
	// routes for it.
	service := struct{ same, node, other, self, beside string }{f.node, f.own, f.node, f.node, f.node}
	switch {
	case w.config.Mode == Pure:
		service = struct{ same, node, other, self, beside string }{f.own, f.own, f.own, f.node, f.own}
	case w.config.IPvlanMode == L3S:
		service = struct{ same, node, other, self, beside string }{f.node, f.own, f.own, f.node, f.own}
	case w.config.IPvlanMode == L3:
		// Answers from elsewhere come to the container past the node.
		service = struct{ same, node, other, self, beside string }{f.node, f.own, nobody, f.node, f.own}
	}
	// The kernel gives packets from the uplink to an l3s link before the node can masquerade them.
	outside := f.node
	if w.config.IPvlanMode == L3S && w.vlan == 0 {
		outside = f.client
	}
	var other *netnstest.Host
	if w.nodeB != nil {
		other = a.Host
	}
	var cache *netnstest.Host
	if f.node == "10.0.60.11" && !w.config.routed() {
		cache = a.Host
	}
	return []translatedCase{
		{"NodeLocal DNSCache", cache, "169.254.20.10", servicePort, f.own},
		{"a Service with an endpoint of the same type and node", a.Host, f.serviceTo(0), servicePort, service.same},
		{"a Service with an endpoint on the node itself", a.Host, f.serviceTo(1), servicePort, service.node},
		{"a Service with an endpoint on another node", other, f.serviceTo(2), servicePort, service.other},
		{"a Service with an endpoint elsewhere in the pool's network", a.Host, f.serviceTo(3), servicePort, service.other},
		{"a Service with itself as the endpoint", a.Host, f.serviceTo(4), servicePort, service.self},
		{"a Service with an endpoint of package wire on the node", a.Host, f.serviceTo(5), servicePort, service.beside},
		{"a NodePort of its node to its type and node", a.Host, f.node, portToSame, seen},
		{"a NodePort of its node to the node", a.Host, f.node, portToNode, f.own},
		{"a NodePort of its node to another node", other, f.node, portToOther, elsewhere},
		{"a NodePort of its node to the pool's network", a.Host, f.node, portToClient, elsewhere},
		{"a NodePort of its node to itself", a.Host, f.node, portToSelf, f.node},
		{"a Service, which a container of package wire of the node calls", beside.Host, f.serviceTo(4), servicePort, fromBeside},
		{"a NodePort, which a client outside calls", w.client, f.node, portToSelf, outside},
		{"a NodePort, which the node itself calls", w.nodeA, f.node, portToSelf, f.node},
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

// ask returns a server's answer; it waits longer where it expects one.
func ask(from *netnstest.Host, to netip.AddrPort, expected bool) (string, error) {
	return askFrom(from, nil, to, expected)
}

// askFrom asks from an address of the caller, any where it is nil.
func askFrom(from *netnstest.Host, source net.IP, to netip.AddrPort, expected bool) (string, error) {
	patience := time.Second
	if expected {
		patience = 20 * time.Second
	}
	var answer []byte
	err := from.Try(func() error {
		conn, err := (&net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: source}}).Dial("tcp", to.String())
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
