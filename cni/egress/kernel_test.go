// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/veth/wire"
)

const port = 7007

// patience of a client that gets an answer, on a busy machine too, and silence of one that gets
// none. No client sends a lost datagram again.
const patience, silence = 30 * time.Second, time.Second

// topology is a node with two pods on a bridge of another network plugin, another node with a pod,
// and the world outside, which is the router of both of the node's networks.
type topology struct {
	t                              testing.TB
	node, pod, other, node2, world *netnstest.Host
	storage                        *netnstest.Wire
	eth1                           int

	// packets is a socket with what came to the world's links.
	packets int
}

// Addresses of servers: outside, on the network of the node's address, on another node's pod, and
// on another node.
var (
	outside = []string{"198.51.100.10", "2001:db8:51::10"}
	near    = []string{"10.0.80.50", "2001:db8:80::50"}
	peers   = []string{"10.244.2.5", "fd00:244:2::5"}
	nodes   = []string{"10.0.60.12", "2001:db8:60::12"}
)

var (
	pods    = []string{"10.244.1.5", "fd00:244:1::5"}
	own     = []string{"10.0.80.11", "2001:db8:80::11"}
	primary = []string{"10.0.60.11", "2001:db8:60::11"}
	subnets = []string{"10.0.80.0/24", "2001:db8:80::/64"}
	routers = []string{"10.0.80.1", "2001:db8:80::1"}
)

func newTopology(t testing.TB) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t}
	for _, h := range []**netnstest.Host{&w.node, &w.pod, &w.other, &w.node2, &w.world} {
		*h = netnstest.New(t)
		(*h).Run(func() error {
			// Without waiting for duplicate address detection. The strictest filter a node can have.
			return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644),
				os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0o644))
		})
	}
	network, storage := netnstest.NewWire(t), netnstest.NewWire(t)
	w.storage = storage
	p := netip.MustParsePrefix
	network.Plug(w.node, "eth0", p("10.0.60.11/24"), p("2001:db8:60::11/64"))
	network.Plug(w.node2, "eth0", p("10.0.60.12/24"), p("2001:db8:60::12/64"))
	network.Plug(w.world, "eth0", p("10.0.60.1/24"), p("2001:db8:60::1/64"))
	storage.Plug(w.node, "eth1", p("10.0.80.11/24"), p("2001:db8:80::11/64"))
	storage.Plug(w.world, "eth1", p("10.0.80.1/24"), p("2001:db8:80::1/64"), p("10.0.80.50/24"), p("2001:db8:80::50/64"))
	w.bridge()
	for _, addr := range []string{"198.51.100.10/32", "198.51.100.20/32", "2001:db8:51::10/128", "2001:db8:51::20/128"} {
		w.world.IP("addr", "add", addr, "dev", "lo")
	}
	w.node2.IP("addr", "add", "10.244.2.5/32", "dev", "lo")
	w.node2.IP("addr", "add", "fd00:244:2::5/128", "dev", "lo")
	for h, routes := range map[*netnstest.Host]map[string][2]string{
		w.node:  {"default": {"10.0.60.1", "2001:db8:60::1"}, "10.244.2.0/24": {"10.0.60.12", ""}, "fd00:244:2::/64": {"", "2001:db8:60::12"}},
		w.node2: {"default": {"10.0.60.1", "2001:db8:60::1"}, "10.244.1.0/24": {"10.0.60.11", ""}, "fd00:244:1::/64": {"", "2001:db8:60::11"}},
		w.pod:   {"default": {"10.244.1.1", "fd00:244:1::1"}}, w.other: {"default": {"10.244.1.1", "fd00:244:1::1"}},
	} {
		for to, via := range routes {
			for i, family := range []string{"-4", "-6"} {
				if via[i] != "" {
					h.IP(family, "route", "add", to, "via", via[i])
				}
			}
		}
	}
	w.node.Run(func() error {
		index, err := wire.NetworkLink("eth1", 0)
		w.eth1 = index
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644),
			// What package wire does where the filter would drop answers.
			os.WriteFile("/proc/sys/net/ipv4/conf/eth1/src_valid_mark", []byte("1"), 0o644))
	})
	w.masquerade("iptables", "10.244.0.0/16")
	w.masquerade("ip6tables", "fd00:244::/32")
	serve(t, w.world, slices.Concat(outside, near, []string{"198.51.100.20", "2001:db8:51::20"})...)
	serve(t, w.node2, slices.Concat(peers, nodes)...)
	serve(t, w.pod, pods...)
	w.hear()
	return w
}

// bridge makes the bridge of the pods, whose packets visit netfilter there, too, as kube-proxy
// needs it.
func (w *topology) bridge() {
	w.t.Helper()
	w.node.IP("link", "add", "cni0", "type", "bridge")
	w.node.IP("link", "set", "cni0", "up")
	for _, addr := range []string{"10.244.1.1/24", "fd00:244:1::1/64"} {
		w.node.IP("addr", "add", addr, "dev", "cni0")
	}
	w.node.Run(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-ip6tables", []byte("1"), 0o644))
	})
	for last, h := range map[string]*netnstest.Host{"5": w.pod, "6": w.other} {
		w.node.Run(func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "pod" + last
			pair := netlink.NewVeth(attrs)
			pair.PeerName, pair.PeerNamespace = "eth0", netlink.NsFd(int(h.Fd()))
			return netlink.LinkAdd(pair)
		})
		w.node.IP("link", "set", "pod"+last, "master", "cni0", "up")
		h.IP("link", "set", "eth0", "up")
		for _, addr := range []string{"10.244.1." + last + "/24", "fd00:244:1::" + last + "/64"} {
			h.IP("addr", "add", addr, "dev", "eth0")
		}
	}
}

// masquerade is the rules of flannel: packets from pods to elsewhere get an address of the node.
func (w *topology) masquerade(program, cluster string) {
	w.t.Helper()
	for _, rule := range [][]string{
		{"-s", cluster, "-d", cluster, "-j", "RETURN"}, {"-s", cluster, "!", "-d", "224.0.0.0/4", "-j", "MASQUERADE", "--random-fully"},
	} {
		if program == "ip6tables" {
			rule = slices.DeleteFunc(rule, func(s string) bool { return s == "!" || s == "224.0.0.0/4" || s == "-d" && len(rule) > 6 })
		}
		if out, err := w.node.Command(program, append([]string{"-t", "nat", "-A", "POSTROUTING"}, rule...)...); err != nil {
			w.t.Fatalf("%v\n%s", err, out)
		}
	}
}

// serve answers each datagram and connection to these addresses of the host with the address of its
// sender.
func serve(t testing.TB, h *netnstest.Host, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		var listener net.Listener
		var socket net.PacketConn
		at := net.JoinHostPort(address, fmt.Sprint(port))
		// An IPv6 address becomes usable a moment later, also on lo.
		netnstest.Eventually(t, func() error {
			return h.Try(func() (err error) {
				listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", at)
				return err
			})
		})
		h.Run(func() (err error) {
			socket, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp", at)
			return err
		})
		t.Cleanup(func() { listener.Close(); socket.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()))
				c.Close()
			}
		}()
		go func() {
			buffer := make([]byte, 100)
			for {
				_, from, err := socket.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = socket.WriteTo([]byte(from.(*net.UDPAddr).AddrPort().Addr().Unmap().String()), from)
			}
		}()
	}
}

// hear keeps every packet that comes to the world's links from now on, until it is read by heard.
func (w *topology) hear() {
	w.t.Helper()
	w.world.Run(func() (err error) {
		w.packets, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, int(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))))
		return err
	})
	w.t.Cleanup(func() { unix.Close(w.packets) })
}

// heard returns the sources of the packets since the last call that began a flow to a server
// outside. Later packets of a flow may come after the caller has its answer, while the ways are
// others already.
func (w *topology) heard() map[netip.Addr]bool {
	w.t.Helper()
	sources, b := map[netip.Addr]bool{}, make([]byte, 2000)
	for {
		n, err := unix.Read(w.packets, b)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return sources
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			w.t.Fatal(err)
		}
		var source, destination netip.Addr
		var protocol byte
		var transport []byte
		switch {
		case n >= 20 && b[0]>>4 == 4:
			source, destination = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
			protocol, transport = b[9], b[4*int(b[0]&15):n]
		case n >= 40 && b[0]>>4 == 6:
			source, destination = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
			protocol, transport = b[6], b[40:n]
		}
		const syn, ack = 1 << 1, 1 << 4
		begins := protocol == unix.IPPROTO_UDP || protocol == unix.IPPROTO_TCP && transport[13]&(syn|ack) == syn
		if text := destination.String(); begins && (slices.Contains(outside, text) || slices.Contains(near, text)) {
			sources[source] = true
		}
	}
}

// ask asks a server by TCP or UDP who asks, in one try.
func ask(from *netnstest.Host, network, server string) (string, error) {
	return askFor(patience, from, network, server)
}

func askFor(patience time.Duration, from *netnstest.Host, network, server string) (string, error) {
	var answer []byte
	err := from.Try(func() error {
		c, err := (&net.Dialer{Timeout: patience}).Dial(network, net.JoinHostPort(server, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := c.Write([]byte("who?")); err != nil {
				return err
			}
		}
		answer = make([]byte, 100)
		n, err := c.Read(answer)
		answer = answer[:n]
		return err
	})
	return string(answer), err
}

// sees fails the test unless servers of both families see these sources, by TCP and UDP, in the
// first packet.
func (w *topology) sees(from *netnstest.Host, servers, want []string) {
	w.t.Helper()
	w.heard()
	for i, server := range servers {
		for _, network := range []string{"tcp", "udp"} {
			if got, err := ask(from, network, server); got != want[i] || err != nil {
				w.t.Errorf("%s at %s sees %q, want %s (%v)", network, server, got, want[i], err)
			}
		}
	}
	for source := range w.heard() {
		if !slices.Contains(want, source.String()) {
			w.t.Errorf("a packet from %s came, want %v", source, want)
		}
	}
}

// silent fails the test unless packets to servers come nowhere, and a connection is refused at once
// with ENETUNREACH or EHOSTUNREACH where told.
func (w *topology) silent(from *netnstest.Host, servers []string, told bool) {
	w.t.Helper()
	w.heard()
	for _, server := range servers {
		for _, network := range []string{"tcp", "udp"} {
			wait := silence
			if told && network == "tcp" {
				wait = patience
			}
			got, err := askFor(wait, from, network, server)
			if err == nil || told && network == "tcp" && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
				w.t.Errorf("%s at %s sees %q (%v)", network, server, got, err)
			}
		}
	}
	if sources := w.heard(); len(sources) > 0 {
		w.t.Errorf("packets from %v came", sources)
	}
}

// ways are the Ways of both families for the pod.
func (w *topology) ways(change func(i int, way *Way)) []Way {
	var all []Way
	for i := range own {
		way := Way{
			Number: 1, Address: netip.MustParseAddr(own[i]), Subnet: netip.MustParsePrefix(subnets[i]), Gateway: netip.MustParseAddr(routers[i]), Link: w.eth1,
			Pods: []netip.Addr{netip.MustParseAddr(pods[i])},
		}
		if change != nil {
			change(i, &way)
		}
		all = append(all, way)
	}
	return all
}

func (w *topology) put(all []Way) {
	w.t.Helper()
	w.node.Run(func() error { return Put(all) })
}

// state is the rules, routes and tables of the node.
func (w *topology) state() string {
	w.t.Helper()
	var all strings.Builder
	for _, family := range []string{"-4", "-6"} {
		all.WriteString(w.node.IP(family, "rule"))
		for line := range strings.Lines(w.node.IP(family, "route", "show", "table", "all")) {
			if !strings.Contains(line, "fe80") {
				all.WriteString(line)
			}
		}
	}
	out, err := w.node.Command("nft", "list", "tables")
	if err != nil {
		w.t.Fatal(err)
	}
	return all.String() + out
}

// Packets of the pod leave with the address, from the first one, whoever masquerades behind. Nobody
// else's do, and the pod reaches all of the cluster as itself.
func TestLeaves(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := w.state()
	w.sees(w.pod, outside, primary)
	w.put(w.ways(nil))
	with := w.state()
	w.put(w.ways(nil))
	if again := w.state(); again != with {
		t.Errorf("a second time it is\n%s\nwant\n%s", again, with)
	}
	w.sees(w.pod, outside, own)
	w.sees(w.other, outside, primary)
	w.sees(w.pod, near, own)
	w.sees(w.pod, peers, pods)
	w.sees(w.pod, nodes, primary)
	w.sees(w.node2, pods, nodes)
	// As with wg-quick.
	w.node.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/src_valid_mark", []byte("1"), 0o644) })
	w.sees(w.pod, outside, own)
	w.sees(w.pod, near, own)
	w.sees(w.pod, peers, pods)

	// A Service, whose pod is on another node; and one whose endpoint is outside.
	for i, service := range []string{"10.96.0.10", "fd00:96::10"} {
		w.node.Run(func() error { return netnstest.Redirect(service, port, peers[i]) })
		w.sees(w.pod, []string{service}, pods[i:i+1])
	}
	// A port of the node that leads to the pod.
	for i, address := range primary {
		w.node.Run(func() error { return netnstest.Redirect(address, port, pods[i]) })
		for _, network := range []string{"tcp", "udp"} {
			if _, err := ask(w.world, network, address); err != nil {
				t.Errorf("%s to a port of the node: %v", network, err)
			}
		}
	}

	w.put(nil)
	w.node.Run(func() error {
		var errs []error
		for _, family := range []nftables.TableFamily{nftables.IPv4, nftables.IPv6} {
			errs = append(errs, nftables.RemoveTable(&nftables.Table{Family: family, Name: "redirect"}))
		}
		return errors.Join(errs...)
	})
	if after := w.state(); after != before {
		t.Errorf("after all it is\n%s\nwant\n%s", after, before)
	}
	w.sees(w.pod, outside, primary)
}

// Exceptions leave as without us, and nothing leaves while the node has no address, or its link is
// down.
func TestExceptions(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.put(w.ways(func(i int, way *Way) {
		way.Except = []netip.Prefix{netip.MustParsePrefix([]string{"198.51.100.0/28", "2001:db8:51::10/128"}[i])}
	}))
	w.sees(w.pod, outside, primary)
	w.sees(w.pod, []string{"198.51.100.20", "2001:db8:51::20"}, own)
	w.put(w.ways(func(_ int, way *Way) { way.Address, way.Link = netip.Addr{}, 0 }))
	w.silent(w.pod, outside, true)
	w.silent(w.pod, near, false)
	w.sees(w.pod, peers, pods)
	w.put(w.ways(nil))
	w.sees(w.pod, outside, own)
	w.node.IP("link", "set", "eth1", "down")
	w.silent(w.pod, outside, true)
	w.node.IP("link", "set", "eth1", "up")
}

// An address that the node loses, because another node has it, leaves with no packet from then on,
// also of connections that began before. The kernel sees to that, as whoever takes the address from
// the node knows nothing of pods.
func TestAddressTaken(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.node.IP("addr", "add", "10.0.99.9/24", "dev", "eth1") // Without any the kernel would remove the routes of the link.
	w.put(w.ways(nil))
	w.sees(w.pod, outside, own)
	var sender net.Conn
	w.pod.Run(func() (err error) {
		sender, err = new(net.Dialer).DialContext(t.Context(), "udp", net.JoinHostPort(outside[0], fmt.Sprint(port)))
		return err
	})
	defer sender.Close()
	send := func() {
		if _, err := sender.Write([]byte("who?")); err != nil {
			t.Error(err)
		}
	}
	send()
	netnstest.Eventually(t, func() error {
		if !w.heard()[netip.MustParseAddr(own[0])] {
			return errors.New("the datagram has not come")
		}
		return nil
	})
	w.node.IP("addr", "del", own[0]+"/24", "dev", "eth1")
	w.node.IP("addr", "del", own[1]+"/64", "dev", "eth1")
	send()
	w.silent(w.pod, outside, false)
	w.silent(w.pod, near, false)
	w.sees(w.pod, peers, pods)
	w.sees(w.other, outside, primary)
}

// With pools on the uplink itself, one in the subnet of the nodes and one in another, pods of other
// nodes and Services are none of it.
func TestUplink(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	eth0 := 0
	w.node.Run(func() error {
		index, err := wire.NetworkLink("eth0", 0)
		eth0 = index
		return err
	})
	for _, addr := range []string{"10.0.60.111/24", "10.0.90.11/24"} {
		w.node.IP("addr", "add", addr, "dev", "eth0")
	}
	w.world.IP("addr", "add", "10.0.90.1/24", "dev", "eth0")
	w.world.IP("addr", "add", "10.0.60.50/24", "dev", "eth0")
	serve(t, w.world, "10.0.60.50", "10.0.90.1")
	way := func(address, subnet, gateway string) []Way {
		return []Way{{Number: 1, Address: netip.MustParseAddr(address), Subnet: netip.MustParsePrefix(subnet), Gateway: netip.MustParseAddr(gateway), Link: eth0,
			Pods: []netip.Addr{netip.MustParseAddr(pods[0])}}}
	}
	w.put(way("10.0.60.111", "10.0.60.0/24", "10.0.60.1"))
	for server, want := range map[string]string{"198.51.100.10": "10.0.60.111", "10.0.60.50": "10.0.60.111", "10.244.2.5": pods[0]} {
		if got, err := ask(w.pod, "udp", server); got != want || err != nil {
			t.Errorf("%s sees %q, want %s (%v)", server, got, want, err)
		}
	}
	w.put(way("10.0.90.11", "10.0.90.0/24", "10.0.90.1"))
	for server, want := range map[string]string{"198.51.100.10": "10.0.90.11", "10.0.60.50": "10.0.60.11", "10.244.2.5": pods[0], "10.0.90.1": "10.0.90.11"} {
		if got, err := ask(w.pod, "udp", server); got != want || err != nil {
			t.Errorf("%s sees %q, want %s (%v)", server, got, want, err)
		}
	}
}

// Two ways of one family keep apart, and pods of a way too many go nowhere.
func TestSeveral(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	w.node.IP("addr", "add", "10.0.90.11/24", "dev", "eth0")
	w.world.IP("addr", "add", "10.0.90.1/24", "dev", "eth0")
	eth0 := 0
	w.node.Run(func() error {
		index, err := wire.NetworkLink("eth0", 0)
		eth0 = index
		return err
	})
	one := w.ways(nil)[0]
	two := Way{Number: 2, Address: netip.MustParseAddr("10.0.90.11"), Subnet: netip.MustParsePrefix("10.0.90.0/24"), Gateway: netip.MustParseAddr("10.0.90.1"), Link: eth0,
		Pods: []netip.Addr{netip.MustParseAddr("10.244.1.6")}}
	w.put([]Way{one, two})
	for from, want := range map[*netnstest.Host]string{w.pod: own[0], w.other: "10.0.90.11"} {
		w.sees(from, outside[:1], []string{want})
	}
	two.Number = 0
	w.put([]Way{one, two})
	w.sees(w.pod, outside[:1], own[:1])
	if got, err := askFor(silence, w.other, "udp", outside[0]); err == nil {
		t.Errorf("the server sees %s", got)
	}
	w.node.Run(func() error {
		refused, err := tableOf(nil).Counted(refusedCounter)
		if refused == 0 { // The end of a connection that was before may be refused, too.
			t.Error("no packet was counted as refused")
		}
		return err
	})
	w.sees(w.other, peers[:1], []string{"10.244.1.6"})
}
