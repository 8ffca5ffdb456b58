// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/speaker/status"
)

// unnumberedBIRD is a router by BIRD that knows nodes by its interface.
const unnumberedBIRD = `
router id 10.11.0.254;
protocol device {}
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; }
protocol radv { interface "nodes" { max ra interval 4; default lifetime 0; }; }
protocol bfd { interface "nodes" { interval 300 ms; multiplier 3; }; }
protocol bgp {
	local as 65102;
	neighbor range fe80::/10 external;
	interface "nodes";
	dynamic name "node";
	passive;
	bfd on;
	error wait time 1, 5;
	ipv4 { import all; export none; extended next hop on; };
	ipv6 { import all; export none; };
}
`

// A node has three routers, which it knows by its links alone. All have the same link-local
// address, and so has the node at all links. Sessions come back after a link was down, and after a
// router got another address.
func TestUnnumbered(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	c := newCluster(t)
	node := netnstest.New(t)
	frr := strings.NewReplacer(
		" neighbor nodes peer-group\n", " bgp router-id 10.11.0.1\n", " neighbor nodes remote-as 65200\n", " neighbor nodes interface remote-as external\n",
		" bgp listen range 10.11.0.0/24 peer-group nodes\n", "").Replace(config(t, "router-frr.conf"))
	routers := []struct {
		name   string
		host   *netnstest.Host
		start  Speaker
		config string
		bfd    *v1alpha1.BGPBFD
	}{
		{"frr", netnstest.New(t), StartFRR, strings.Replace(frr, "ttl-security hops 1", "password secret", 1), nil},
		{"bird", netnstest.New(t), StartBIRD, unnumberedBIRD, &v1alpha1.BGPBFD{}},
		{"frr-bfd", netnstest.New(t), StartFRR, strings.Replace(frr, " neighbor nodes advertisement", " neighbor nodes bfd 3 300 300\n neighbor nodes advertisement", 1), &v1alpha1.BGPBFD{}},
	}
	forwards(node)
	// ways has the addresses of a link at both ends, and the node's ways by it.
	ways := func(n int, router string) {
		routers[n].host.IP("addr", "add", router+"/64", "dev", "nodes", "nodad")
		node.IP("addr", "replace", "fe80::2/64", "dev", fmt.Sprint("eth", n), "nodad")
		for _, to := range []string{fmt.Sprintf("10.1%d.0.0/24", n+2), fmt.Sprintf("2001:db8:1%d::/64", n+2)} {
			args := []string{"route", "replace", to, "via", "inet6", router, "dev", fmt.Sprint("eth", n)}
			if strings.Contains(to, ":") {
				args = append([]string{"-6"}, args...)
			}
			node.IP(args...)
		}
	}
	labels := map[string]string{"unnumbered": "yes"}
	daemons := &Fabric{t: t}
	for n, r := range routers {
		forwards(r.host)
		link := fmt.Sprint("eth", n)
		r.host.IP("link", "add", "nodes", "type", "veth", "peer", "name", link, "netns", node.Path())
		for _, end := range []struct {
			host *netnstest.Host
			link string
		}{{r.host, "nodes"}, {node, link}} {
			end.host.IP("link", "set", end.link, "addrgenmode", "none")
			end.host.IP("link", "set", end.link, "up")
		}
		ways(n, "fe80::1")
		c.peer(&v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Spec: v1alpha1.BGPPeerSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: labels}, LocalASN: 65200, Peer: v1alpha1.BGPRouter{Interface: link}, BFD: r.bfd,
			Export: []v1alpha1.BGPExport{{Prefixes: []string{"10.99.0.0/24", "2001:db8:99::/64"}, Newest: true}},
		}})
		daemons.keep(r.start(t.Context(), r.host.Try, r.config))
	}
	s := c.speak(t, node, "unnumbered", "10.11.0.2", labels)
	s.password("frr", "secret")
	podOn(t, node, "pod", since, "10.99.0.5", "2001:db8:99::5")

	// of returns the session of a router of all.
	of := func(peers []status.Peer, n int) status.Peer {
		at := slices.IndexFunc(peers, func(p status.Peer) bool { return p.Name == routers[n].name })
		if at < 0 {
			return status.Peer{}
		}
		return peers[at]
	}
	up := func(n int, router string) func([]status.Peer) bool {
		return func(peers []status.Peer) bool {
			p := of(peers, n)
			return p.Established && p.Address == netip.MustParseAddr(fmt.Sprintf("%s%%eth%d", router, n)) && (routers[n].bfd == nil || p.BFD != nil && p.BFD.State == "Up")
		}
	}
	// FRR knows no node that does not advertise itself.
	s.awaitPeers(func(peers []status.Peer) bool {
		return up(1, "fe80::1")(peers) && strings.Contains(of(peers, 0).Error, "set the chart's value speaker.unnumbered")
	})
	s.end(syscall.SIGTERM)
	s.capabilities = []uintptr{unix.CAP_NET_RAW}
	s.start()
	var calls []*Caller
	for n, r := range routers {
		s.awaitPeers(up(n, "fe80::1"))
		client := netnstest.New(t)
		subnet, subnet6 := fmt.Sprintf("10.1%d.0.", n+2), fmt.Sprintf("2001:db8:1%d::", n+2)
		join(r.host, client, "client", "eth0", subnet, subnet6, "2")
		client.IP("route", "add", "default", "via", subnet+"1")
		client.IP("-6", "route", "add", "default", "via", subnet6+"1")
		calls = append(calls, Call(t, client, "10.99.0.5"), Call(t, client, "2001:db8:99::5"))
	}
	answered := func() {
		t.Helper()
		for _, each := range calls {
			each.Await("pod")
		}
	}
	answered()

	lost := func(router *netnstest.Host) {
		t.Helper()
		netnstest.Eventually(t, func() error {
			if leadsTo(router, "10.99.0.5") == nil || leadsTo(router, "2001:db8:99::5") == nil {
				return fmt.Errorf("the router has the paths of a link that is down: %s", router.IP("route", "show"))
			}
			return nil
		})
	}
	for n, r := range routers {
		link := fmt.Sprint("eth", n)
		back := func(router string) {
			t.Helper()
			s.awaitPeers(up(n, router))
			answered()
		}
		for _, end := range []struct {
			host *netnstest.Host
			link string
		}{{r.host, "nodes"}, {node, link}} {
			end.host.IP("link", "set", end.link, "down")
			lost(r.host)
			end.host.IP("link", "set", end.link, "up")
			r.host.IP("-6", "addr", "flush", "dev", "nodes")
			ways(n, "fe80::1")
			back("fe80::1")
		}
		// FRR keeps a session of BFD from the address that it had before.
		if r.name != "frr-bfd" {
			r.host.IP("addr", "del", "fe80::1/64", "dev", "nodes")
			ways(n, "fe80::9")
			back("fe80::9")
		}
	}
}
