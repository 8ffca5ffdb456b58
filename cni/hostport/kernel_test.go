// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	own "github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// topology is a node with two uplink addresses of each family, and another host beside it.
type topology struct {
	t             *testing.T
	node, outside *netnstest.Host
	forwarder     *Forwarder
	sources       atomic.Uint32
}

var (
	node4, node6         = netip.MustParseAddr("10.0.60.11"), netip.MustParseAddr("2001:db8:60::11")
	other4, other6       = netip.MustParseAddr("10.0.60.12"), netip.MustParseAddr("2001:db8:60::12")
	outside4, outside6   = netip.MustParseAddr("10.0.60.50"), netip.MustParseAddr("2001:db8:60::50")
	loopback4, loopback6 = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
)

const (
	hostPort      = 8080
	containerPort = 80
)

func newTopology(t *testing.T) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, node: netnstest.New(t), outside: netnstest.New(t), forwarder: &Forwarder{}}
	network := netnstest.NewWire(t)
	for _, h := range []*netnstest.Host{w.node, w.outside} {
		// Without waiting for duplicate address detection of each link.
		w.sysctl(h, "net/ipv6/conf/default/accept_dad", "0")
	}
	w.sysctl(w.node, "net/ipv6/conf/all/forwarding", "1")
	w.sysctl(w.node, "net/ipv4/ip_forward", "1")
	// The strictest setting a node can have.
	w.sysctl(w.node, "net/ipv4/conf/all/rp_filter", "1")
	network.Plug(w.node, "eth0", prefix(node4, 24), prefix(node6, 64), prefix(other4, 24), prefix(other6, 64))
	network.Plug(w.outside, "eth0", prefix(outside4, 24), prefix(outside6, 64))
	w.node.IP("route", "add", "default", "via", outside4.String())
	w.node.IP("-6", "route", "add", "default", "via", outside6.String())
	w.outside.IP("route", "add", "default", "via", node4.String())
	w.outside.IP("-6", "route", "add", "default", "via", node6.String())
	return w
}

func prefix(addr netip.Addr, bits int) netip.Prefix { return netip.PrefixFrom(addr, bits) }

func (w *topology) sysctl(h *netnstest.Host, key, value string) {
	w.t.Helper()
	h.Run(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}

// pod is a container and its addresses, first IPv4, then IPv6.
type pod struct {
	*netnstest.Host
	addrs []netip.Addr
}

func (p *pod) addr(v4 bool) netip.Addr {
	return p.addrs[slices.IndexFunc(p.addrs, func(a netip.Addr) bool { return a.Is4() == v4 })]
}

// floating makes a pod with floating IPs, with all that comes with them.
func (w *topology) floating(id, addr4, addr6 string) *pod {
	w.t.Helper()
	h := netnstest.New(w.t)
	p := &pod{Host: h, addrs: []netip.Addr{netip.MustParseAddr(addr4), netip.MustParseAddr(addr6)}}
	spec := wire.Spec{ContainerID: id, IfName: "eth0", NetNS: h.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(p.addrs[0]), Addresses: []api.Address{
		{Address: p.addrs[0], Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")},
		{Address: p.addrs[1], Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")},
	}}
	w.node.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	return p
}

// bridged makes a pod as the plugin bridge does.
func (w *topology) bridged(n int) *pod {
	w.t.Helper()
	h := netnstest.New(w.t)
	if _, err := w.node.Command("ip", "link", "show", "cni0"); err != nil {
		w.node.IP("link", "add", "cni0", "type", "bridge")
		w.node.IP("link", "set", "cni0", "up")
		w.node.IP("addr", "add", "10.244.0.1/24", "dev", "cni0")
		w.node.IP("addr", "add", "fd00:244::1/64", "dev", "cni0", "nodad")
	}
	p := &pod{Host: h, addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.0.%d", n)), netip.MustParseAddr(fmt.Sprintf("fd00:244::%x", n))}}
	w.sysctl(h, "net/ipv6/conf/default/accept_dad", "0")
	link := fmt.Sprintf("pod%d", n)
	w.node.IP("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", h.Path())
	w.node.IP("link", "set", link, "master", "cni0", "up")
	h.IP("link", "set", "eth0", "up")
	h.IP("addr", "add", p.addrs[0].String()+"/24", "dev", "eth0")
	h.IP("addr", "add", p.addrs[1].String()+"/64", "dev", "eth0", "nodad")
	h.IP("route", "add", "default", "via", "10.244.0.1")
	h.IP("-6", "route", "add", "default", "via", "fd00:244::1")
	return p
}

// serve answers clients with the address that the pod sees them by, and with the pod's own.
func (w *topology) serve(p *pod) {
	w.t.Helper()
	serveAt(w.t, p.Host, netip.IPv6Unspecified(), containerPort)
	for _, addr := range p.addrs {
		stop, err := netnstest.ServeSCTP(p.Host, addr, containerPort)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(stop)
	}
}

// serveAt answers by TCP and UDP with the client's address.
func serveAt(t *testing.T, h *netnstest.Host, addr netip.Addr, port uint16) {
	t.Helper()
	at := netip.AddrPortFrom(addr, port)
	var listener net.Listener
	var packets *net.UDPConn
	h.Run(func() error {
		var err, more error
		listener, err = net.Listen("tcp", at.String())
		packets, more = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return errors.Join(err, more)
	})
	t.Cleanup(func() { _ = listener.Close(); _ = packets.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String())
			}()
		}
	}()
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := packets.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = packets.WriteToUDPAddrPort([]byte(from.Addr().Unmap().String()), from)
		}
	}()
}

// patience is how long an answer may take, brief how long it is waited for where none should
// come.
const (
	patience = 30 * time.Second
	brief    = 700 * time.Millisecond
)

// ask connects from a host and returns the address that the server sees.
func (w *topology) ask(from *netnstest.Host, protocol string, to netip.AddrPort, limit time.Duration) (netip.Addr, error) {
	var text string
	var err error
	switch protocol {
	case "SCTP":
		text, err = netnstest.AskSCTP(from, uint16(10000+w.sources.Add(1)), to, limit)
	case "TCP":
		err = from.Try(func() error {
			conn, err := net.DialTimeout("tcp", to.String(), limit)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(limit))
			answer, err := io.ReadAll(conn)
			text = string(answer)
			return err
		})
	case "UDP":
		var conn net.Conn
		if err = from.Try(func() error { conn, err = net.Dial("udp", to.String()); return err }); err == nil {
			defer conn.Close()
			text, err = askUDP(conn, limit)
		}
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(text)
}

// askUDP asks by a socket, again and again until there is an answer.
func askUDP(conn net.Conn, limit time.Duration) (string, error) {
	b := make([]byte, 100)
	err := errors.New("not asked")
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if _, err = conn.Write([]byte("who am I?")); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			var n int
			if n, err = conn.Read(b); err == nil {
				return string(b[:n]), nil
			}
		}
	}
	return "", err
}

func (w *topology) apply(mappings ...Mapping) (changed bool) {
	w.t.Helper()
	w.node.Run(func() error {
		var err error
		changed, err = w.forwarder.Apply(mappings)
		return errors.Join(err, w.forwarder.EndConnections())
	})
	return changed
}

// all are the mappings of a host port by every protocol, in both families.
func all(t *testing.T, p *pod, hostIPs ...netip.Addr) []Mapping {
	t.Helper()
	if len(hostIPs) == 0 {
		hostIPs = []netip.Addr{{}}
	}
	var ports []api.HostPort
	for _, protocol := range protocols {
		for _, hostIP := range hostIPs {
			ports = append(ports, api.HostPort{HostPort: hostPort, ContainerPort: containerPort, Protocol: protocol, HostIP: hostIP})
		}
	}
	mappings, err := Mappings(ports, p.addrs, false)
	if err != nil {
		t.Fatal(err)
	}
	return mappings
}

var protocols = []string{"TCP", "UDP", "SCTP"}

// families of the tests: the node's addresses, and the others'.
var testFamilies = []struct {
	name                           string
	node, other, outside, loopback netip.Addr
}{
	{"IPv4", node4, other4, outside4, loopback4},
	{"IPv6", node6, other6, outside6, loopback6},
}

// Every client reaches a pod through its node's port, and the pod sees the client's own address,
// even if other programs masquerade on the node. Only where the reply would not come back does it
// see the node.
func TestForwarding(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	server, neighbour := w.floating("a", "10.0.70.5", "2001:db8:70::5"), w.floating("b", "10.0.70.6", "2001:db8:70::6")
	w.serve(server)
	w.node.Run(netnstest.Masquerade)
	w.apply(all(t, server)...)
	for _, f := range testFamilies {
		for _, protocol := range protocols {
			t.Run(f.name+" "+protocol, func(t *testing.T) {
				for _, c := range []struct {
					name string
					from *netnstest.Host
					to   netip.Addr
					want []netip.Addr
				}{
					{"another host", w.outside, f.node, []netip.Addr{f.outside}},
					{"another host, by the second address", w.outside, f.other, []netip.Addr{f.outside}},
					{"the node by its address", w.node, f.node, []netip.Addr{f.node}},
					{"the node by its loopback address", w.node, f.loopback, []netip.Addr{f.node, f.other}},
					{"another pod", neighbour.Host, f.node, []netip.Addr{neighbour.addr(f.node.Is4())}},
					{"the pod itself", server.Host, f.node, []netip.Addr{f.node, f.other}},
				} {
					seen, err := w.ask(c.from, protocol, netip.AddrPortFrom(c.to, hostPort), patience)
					if err != nil {
						t.Errorf("%s: %v", c.name, err)
					} else if !slices.Contains(c.want, seen) {
						t.Errorf("%s is seen as %s, want one of %v", c.name, seen, c.want)
					}
				}
			})
		}
	}
}

// Pods on one bridge reply to each other without the node, so they must see the node, unless
// the bridge's packets pass netfilter. Others are seen by their own addresses.
func TestBridge(t *testing.T) {
	t.Parallel()
	for name, filtered := range map[string]string{"bridge": "0", "filtered bridge": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			server, neighbour := w.bridged(5), w.bridged(6)
			for _, key := range []string{"iptables", "ip6tables"} {
				w.sysctl(w.node, "net/bridge/bridge-nf-call-"+key, filtered)
			}
			// The plugin's option hairpinMode.
			w.node.IP("link", "set", "pod5", "type", "bridge_slave", "hairpin", "on")
			w.serve(server)
			w.apply(all(t, server)...)
			for _, f := range testFamilies {
				bridge := netip.MustParseAddr("10.244.0.1")
				if f.node.Is6() {
					bridge = netip.MustParseAddr("fd00:244::1")
				}
				cases := []struct {
					name string
					from *netnstest.Host
					to   netip.Addr
					want netip.Addr
				}{
					{"another host", w.outside, f.node, f.outside},
					{"the node by its address", w.node, f.node, f.node},
					{"the pod itself", server.Host, f.node, bridge},
					{"another pod", neighbour.Host, f.node, bridge},
					{"the node by its loopback address", w.node, f.loopback, bridge},
				}
				if filtered == "1" {
					cases[3].want = neighbour.addr(f.node.Is4())
					if f.node.Is6() {
						cases = cases[:4] // the kernel drops ::1 that comes from a bridge
					}
				}
				for _, protocol := range protocols {
					for _, c := range cases {
						seen, err := w.ask(c.from, protocol, netip.AddrPortFrom(c.to, hostPort), patience)
						if err != nil || seen != c.want {
							t.Errorf("%s %s: %s is seen as %s, %v, want %s", f.name, protocol, c.name, seen, err, c.want)
						}
					}
				}
			}
		})
	}
}

// A port of one address of the node is not a port of the others, and the other addresses
// may lead to another pod.
func TestHostIP(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b := w.floating("a", "10.0.70.5", "2001:db8:70::5"), w.floating("b", "10.0.70.6", "2001:db8:70::6")
	w.serve(a)
	mappings := all(t, a, node4, node6)
	w.apply(mappings...)
	for _, f := range testFamilies {
		for _, protocol := range protocols {
			if seen, err := w.ask(w.outside, protocol, netip.AddrPortFrom(f.node, hostPort), patience); err != nil || seen != f.outside {
				t.Errorf("%s %s: seen as %v, %v", f.name, protocol, seen, err)
			}
			if seen, err := w.ask(w.outside, protocol, netip.AddrPortFrom(f.other, hostPort), brief); err == nil {
				t.Errorf("%s %s: the second address answers and sees %v", f.name, protocol, seen)
			}
		}
	}
	w.serve(b)
	w.apply(append(mappings, all(t, b, other4, other6)...)...)
	for _, f := range testFamilies {
		for _, protocol := range protocols {
			if seen, err := w.ask(w.outside, protocol, netip.AddrPortFrom(f.other, hostPort), patience); err != nil || seen != f.outside {
				t.Errorf("%s %s, second address: seen as %v, %v", f.name, protocol, seen, err)
			}
		}
	}
}

// Programs that listen on 127.0.0.1 are not reached from a pod, though the kernel routes that
// address on the pod's link (CVE-2020-8558).
func TestLoopbackIsGuarded(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.floating("a", "10.0.70.5", "2001:db8:70::5")
	w.serve(p)
	w.apply(all(t, p)...)
	// The pod's own loopback address goes, and packets for it to the node.
	p.IP("addr", "del", "127.0.0.1/8", "dev", "lo")
	w.sysctl(p.Host, "net/ipv4/conf/all/route_localnet", "1")
	p.IP("route", "add", "127.0.0.1/32", "via", "169.254.1.1", "dev", "eth0", "onlink", "src", "10.0.70.5")
	var secret *net.UDPConn
	w.node.Run(func() error {
		var err error
		secret, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9999})
		return err
	})
	defer secret.Close()
	reaches := func(payload string, within time.Duration) bool {
		p.Run(func() error {
			conn, err := net.Dial("udp", "127.0.0.1:9999")
			if err != nil {
				return err
			}
			defer conn.Close()
			for range 3 {
				if _, err := conn.Write([]byte(payload)); err != nil {
					return err
				}
			}
			return nil
		})
		b := make([]byte, 100)
		for deadline := time.Now().Add(within); ; {
			_ = secret.SetReadDeadline(deadline)
			n, err := secret.Read(b)
			if err != nil {
				return false
			}
			if string(b[:n]) == payload {
				return true
			}
		}
	}
	if reaches("guarded", brief) {
		t.Error("a pod reaches a program on 127.0.0.1 of the node")
	}
	if seen, err := w.ask(w.node, "TCP", netip.AddrPortFrom(loopback4, hostPort), patience); err != nil {
		t.Errorf("the port at 127.0.0.1: seen as %v, %v", seen, err)
	}
	// Without the guard the pod does reach it, or this test proves nothing.
	w.node.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushChain(&nftables.Chain{Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}, Name: "guard"})
		return conn.Flush()
	})
	if !reaches("not guarded", patience) {
		t.Error("without the guard a pod does not reach 127.0.0.1 either: this test tests nothing")
	}
	if !w.apply(all(t, p)...) {
		t.Error("Apply did not notice that the guard was gone")
	}
	if reaches("guarded again", brief) {
		t.Error("after Apply a pod reaches a program on 127.0.0.1 of the node")
	}
}

// A connection of UDP goes where the port leads now, and not where it led before, also if its
// client never pauses.
func TestConnectionsFollow(t *testing.T) {
	t.Parallel()
	for _, f := range testFamilies {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			a, b := w.floating("a", "10.0.70.5", "2001:db8:70::5"), w.floating("b", "10.0.70.6", "2001:db8:70::6")
			for name, p := range map[string]*pod{"a": a, "b": b, "node": {Host: w.node}} {
				at := netip.AddrPortFrom(netip.IPv6Unspecified(), containerPort)
				if name == "node" {
					at = netip.AddrPortFrom(f.node, hostPort)
				}
				var conn *net.UDPConn
				p.Run(func() error {
					var err error
					conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
					return err
				})
				t.Cleanup(func() { _ = conn.Close() })
				go func() {
					buffer := make([]byte, 100)
					for {
						_, from, err := conn.ReadFromUDPAddrPort(buffer)
						if err != nil {
							return
						}
						_, _ = conn.WriteToUDPAddrPort([]byte(name), from)
					}
				}()
			}
			var client net.Conn
			w.outside.Run(func() error {
				var err error
				client, err = net.Dial("udp", netip.AddrPortFrom(f.node, hostPort).String())
				return err
			})
			defer client.Close()
			for i, c := range []struct {
				mappings []Mapping
				want     string
			}{{nil, "node"}, {all(t, a), "a"}, {all(t, b), "b"}, {nil, "node"}, {all(t, a), "a"}} {
				w.apply(c.mappings...)
				// Answers that were under way come first.
				netnstest.Eventually(t, func() error {
					got, err := askUDP(client, patience)
					if err == nil && got != c.want {
						err = fmt.Errorf("step %d: %s answers, want %s", i, got, c.want)
					}
					return err
				})
			}
		})
	}
}

// Connections that have not changed go on: to a port that stays while others begin and end.
func TestOthersAreUndisturbed(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b := w.floating("a", "10.0.70.5", "2001:db8:70::5"), w.floating("b", "10.0.70.6", "2001:db8:70::6")
	w.serve(a)
	stays := all(t, a)
	w.apply(stays...)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := w.ask(w.outside, "TCP", netip.AddrPortFrom(node4, hostPort), patience); err != nil {
				done <- err
				return
			}
		}
	}()
	changes := 50
	if testing.Short() {
		changes = 15
	}
	for i := range changes {
		comes := Mapping{HostPort: api.HostPort{HostPort: uint16(9000 + i%3), ContainerPort: containerPort, Protocol: "TCP"}, Pod: b.addr(true)}
		w.apply(append(slices.Clone(stays), comes)...)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Another program takes the rules away: Watch tells, Apply puts them back.
func TestRulesTakenAway(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.floating("a", "10.0.70.5", "2001:db8:70::5")
	w.serve(p)
	w.apply(all(t, p)...)
	lost, ended := make(chan struct{}, 100), make(chan error, 1)
	ctx := t.Context()
	go func() {
		ended <- w.node.Try(func() error { return own.Watch(ctx, []string{netfilter.TablePrefix}, func() { lost <- struct{}{} }) })
	}()
	<-lost // it has begun
	w.node.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushRuleset()
		return conn.Flush()
	})
	select {
	case <-lost:
	case err := <-ended:
		t.Fatalf("Watch ended: %v", err)
	case <-time.After(patience):
		t.Fatal("Watch did not tell of the flush")
	}
	if _, err := w.ask(w.outside, "TCP", netip.AddrPortFrom(node4, hostPort), brief); err == nil {
		t.Error("the port is forwarded without rules")
	}
	if !w.apply(all(t, p)...) {
		t.Error("Apply says that nothing was missing")
	}
	if seen, err := w.ask(w.outside, "TCP", netip.AddrPortFrom(node4, hostPort), patience); err != nil || seen != outside4 {
		t.Errorf("after Apply: seen as %v, %v", seen, err)
	}
	if w.apply(all(t, p)...) {
		t.Error("Apply changes what is right")
	}
}

// After the last port nothing of the package is left on the node.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.floating("a", "10.0.70.5", "2001:db8:70::5")
	localnet := func() string {
		var values string
		w.node.Run(func() error {
			links, err := wire.New("").List()
			if err != nil {
				return err
			}
			for _, l := range links {
				value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + l.Name + "/route_localnet")
				if err != nil {
					return err
				}
				values += strings.TrimSpace(string(value))
			}
			return nil
		})
		return values
	}
	w.apply(all(t, p)...)
	if localnet() != "1" {
		t.Errorf("route_localnet is %q, want 1", localnet())
	}
	w.apply()
	if localnet() != "0" {
		t.Errorf("route_localnet is %q, want 0", localnet())
	}
	w.node.Run(func() error {
		state, _, err := read()
		if err == nil && state.Exists {
			err = fmt.Errorf("table %s is left", TableName)
		}
		return err
	})
	if w.apply() {
		t.Error("Apply changes what is right")
	}
}

// kube-proxy's mode ipvs adds the addresses of all Services to a link of the node. They keep
// their ports.
func TestServicesOfIPVS(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.floating("a", "10.0.70.5", "2001:db8:70::5")
	w.serve(p)
	service := netip.MustParseAddr("10.96.0.10")
	w.node.IP("link", "add", linkOfIPVS, "type", "veth", "peer", "name", "unused")
	w.node.IP("link", "set", linkOfIPVS, "up")
	w.node.IP("addr", "add", service.String()+"/32", "dev", linkOfIPVS)
	w.apply(all(t, p)...)
	if _, err := w.ask(w.outside, "TCP", netip.AddrPortFrom(service, hostPort), brief); err == nil {
		t.Error("a Service's address leads to the pod with the host port")
	}
	serveAt(t, w.node, service, hostPort)
	for _, from := range []*netnstest.Host{w.outside, w.node} {
		if _, err := w.ask(from, "TCP", netip.AddrPortFrom(service, hostPort), patience); err != nil {
			t.Errorf("the Service does not answer: %v", err)
		}
	}
	if _, err := w.ask(w.outside, "TCP", netip.AddrPortFrom(node4, hostPort), patience); err != nil {
		t.Error(err)
	}
}

// A port that a program of the node has is not given away.
func TestUnused(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	for _, protocol := range []string{"TCP", "UDP"} {
		for _, addr := range []netip.Addr{node4, node6, loopback4, loopback6} {
			// A program that another test starts has the closed socket of the last round until it runs.
			netnstest.Eventually(t, func() error {
				return w.node.Try(func() error {
					ok, err := new(Forwarder).Unused(protocol, hostPort)
					if err == nil && !ok {
						err = fmt.Errorf("before: Unused(%s) = false", protocol)
					}
					return err
				})
			})
			w.node.Run(func() error {
				at := netip.AddrPortFrom(addr, hostPort)
				var socket io.Closer
				var err error
				if protocol == "TCP" {
					socket, err = net.Listen("tcp", at.String())
				} else {
					socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
				}
				if err != nil {
					return err
				}
				defer socket.Close()
				if ok, err := new(Forwarder).Unused(protocol, hostPort); err != nil || ok {
					return fmt.Errorf("a program listens on %s: Unused(%s) = %v, %w", at, protocol, ok, err)
				}
				return nil
			})
		}
	}
}
