// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// rack is a router with nodes.
type rack struct {
	t      *testing.T
	wire   *netnstest.Wire
	router *process
	host   *netnstest.Host // the router's
}

const (
	nodeASN   = 65200
	routerASN = 65101
)

// newRack returns a rack whose router knows two nodes, at 10.11.0.2 and 3, and 2001:db8:11::2.
// change may be nil.
func newRack(t *testing.T, change func(*routing)) *rack {
	t.Helper()
	netnstest.Need(t)
	r := &rack{t: t, wire: netnstest.NewWire(t), host: netnstest.New(t)}
	r.wire.Plug(r.host, "nodes", netip.MustParsePrefix("10.11.0.1/24"), netip.MustParsePrefix("2001:db8:11::1/64"))
	// For TTL security a router's first packet must have the greatest hop limit, too. GoBGP sees to it
	// for IPv4 only.
	r.host.Run(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/nodes/hop_limit", []byte("255"), 0o644) })
	c := routing{ASN: routerASN, ID: "10.11.0.1", Neighbours: []neighbour{{Address: "10.11.0.2", ASN: nodeASN}, {Address: "10.11.0.3", ASN: nodeASN}, {Address: "2001:db8:11::2", ASN: nodeASN}}}
	if change != nil {
		change(&c)
	}
	r.router = newProcess(t, r.host, "router", c)
	return r
}

// node is a node with a speaker.
type node struct {
	*process
	host *netnstest.Host
	c    configuration
}

func (r *rack) newNode(number int, peers ...*v1alpha1.BGPPeer) *node {
	r.t.Helper()
	host := netnstest.New(r.t)
	r.wire.Plug(host, "uplink", netip.MustParsePrefix(fmt.Sprintf("10.11.0.%d/24", number)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:11::%d/64", number)))
	// A pod's link.
	host.IP("link", "add", "bthv0", "type", "veth", "peer", "name", "pod0")
	host.IP("link", "set", "bthv0", "up")
	host.IP("link", "set", "pod0", "up")
	n := &node{host: host, c: configuration{Node: fmt.Sprintf("node%d", number), Router: netip.MustParseAddr(fmt.Sprintf("10.11.0.%d", number)), Peers: peers, Labels: map[string]string{"rack": "1"}}}
	n.process = newProcess(r.t, host, "speaker", n.c)
	// It reads its configuration again from then on.
	netnstest.Eventually(r.t, func() error { _, err := n.status(); return err })
	return n
}

// carry has table 98 of the node say that it carries an address since a time that the metric says.
func (n *node) carry(addr string, metric uint32) {
	n.t.Helper()
	n.host.IP("route", "replace", addr, "dev", "bthv0", "table", "98", "proto", "98", "metric", fmt.Sprint(metric))
}

func (n *node) drop(addr string, metric uint32) {
	n.t.Helper()
	n.host.IP("route", "del", addr, "dev", "bthv0", "table", "98", "proto", "98", "metric", fmt.Sprint(metric))
}

func tor(change func(*v1alpha1.BGPPeer)) *v1alpha1.BGPPeer {
	peer := &v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "tor"}, Spec: v1alpha1.BGPPeerSpec{
		LocalASN: nodeASN, Peer: v1alpha1.BGPRouter{Address: "10.11.0.1", ASN: routerASN}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}},
		GracefulRestart: v1alpha1.BGPGracefulRestart{Time: &metav1.Duration{Duration: time.Minute}},
		Export:          []v1alpha1.BGPExport{{Prefixes: []string{"10.99.0.0/16", "2001:db8:99::/48"}, Communities: []string{"65200:70", "65200:1:2"}, Newest: true}},
	}}
	if change != nil {
		change(peer)
	}
	return peer
}

// hears waits until the router has exactly these paths.
func (r *rack) hears(want map[string]string) {
	r.t.Helper()
	netnstest.Eventually(r.t, func() error {
		h, err := r.router.heard()
		if err != nil {
			return err
		}
		if !maps.Equal(h.Best, want) {
			return fmt.Errorf("the router has other paths (-want +got):\n%s", cmp.Diff(want, h.Best))
		}
		return nil
	})
}

// ready waits until the speaker is ready, or for the error that it gives.
func (n *node) ready(want string) {
	n.t.Helper()
	netnstest.Eventually(n.t, func() error {
		text, err := n.get("/readyz")
		if err != nil {
			return err
		}
		if text != want && (want == "" || !strings.Contains(text, want)) {
			return fmt.Errorf("readiness: %q, want %q", text, want)
		}
		return nil
	})
}

const attributes = " 65200:70 65200:1:2"

// What the node carries, and an export names, is announced while it is carried, by a process
// without privileges; nothing that the router sends is used.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	r := newRack(t, func(c *routing) { c.Sends = []string{"10.50.0.0/24", "10.99.0.77/32"} })
	n := r.newNode(2, tor(nil))
	n.carry("10.99.0.5", 3000)
	n.carry("10.98.0.5", 3000) // no export has it
	n.host.IP("route", "add", "10.99.0.6", "dev", "bthv0", "table", "98", "metric", "3000")
	n.host.IP("route", "add", "10.99.1.0/24", "dev", "bthv0", "table", "98", "proto", "98", "metric", "3000")
	five := "via 10.11.0.2 med 3000" + attributes
	r.hears(map[string]string{"10.99.0.5/32": five})
	n.ready("")

	n.carry("2001:db8:99::5", 4000000000)
	r.hears(map[string]string{"10.99.0.5/32": five, "2001:db8:99::5/128": "via 2001:db8:11::2 med 4000000000" + attributes})
	n.carry("10.99.0.7", 2000)
	n.drop("10.99.0.5", 3000)
	n.drop("2001:db8:99::5", 4000000000)
	seven := map[string]string{"10.99.0.7/32": "via 10.11.0.2 med 2000" + attributes}
	r.hears(seven)

	said, err := n.status()
	if err != nil || len(said.Peers) != 1 || !said.Peers[0].Established || said.Peers[0].Received != 2 || said.Peers[0].Error != "" || len(said.Peers[0].Exported) != 1 {
		t.Errorf("%+v, %v", said, err)
	}
	lines, err := n.get("/metrics")
	for _, want := range []string{`berth_speaker_session_up{peer="tor"} 1`, `berth_speaker_advertised{peer="tor"} 1`, `berth_speaker_received{peer="tor"} 2`, `berth_speaker_transitions_total{peer="tor"} 1`, `berth_speaker_carried 2`, "berth_speaker_table_lag_seconds "} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %s in %s, %v", want, lines, err)
		}
	}
	if routes := n.host.IP("route", "show", "table", "all"); strings.Contains(routes, "10.50.0.0") || strings.Contains(routes, "10.99.0.77") {
		t.Errorf("the kernel has a route of the router:\n%s", routes)
	}
	// The kernel removes a link's IPv4 routes without an event of theirs.
	n.host.IP("link", "del", "bthv0")
	r.hears(map[string]string{})
}

// Over IPv6 both families are announced, by the node's IPv6 address.
func TestIPv6Session(t *testing.T) {
	t.Parallel()
	r := newRack(t, nil)
	n := r.newNode(2, tor(func(p *v1alpha1.BGPPeer) { p.Spec.Peer.Address = "2001:db8:11::1"; p.Spec.Export[0].Newest = false }))
	n.carry("10.99.0.5", 3000)
	n.carry("2001:db8:99::5", 3000)
	r.hears(map[string]string{"10.99.0.5/32": "via 2001:db8:11::2" + attributes, "2001:db8:99::5/128": "via 2001:db8:11::2" + attributes})
}

// A node without an IPv6 address announces its IPv4 addresses, and says so.
func TestNoNextHop(t *testing.T) {
	t.Parallel()
	r := newRack(t, nil)
	n := r.newNode(2)
	n.host.IP("addr", "del", "2001:db8:11::2/64", "dev", "uplink")
	n.c.Peers = []*v1alpha1.BGPPeer{tor(nil)}
	n.configure(n.c)
	n.carry("10.99.0.5", 3000)
	n.carry("2001:db8:99::5", 3000)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes})
	said, err := n.status()
	if err != nil || len(said.Peers) != 1 || !strings.Contains(said.Peers[0].Error, "link uplink, by which 10.11.0.1 is reached, has no IPv6 address") || len(said.Peers[0].Exported) != 1 {
		t.Errorf("%+v, %v", said, err)
	}
}

// iBGP carries the preference for the newest place, too.
func TestInternal(t *testing.T) {
	t.Parallel()
	r := newRack(t, func(c *routing) { c.ASN = nodeASN })
	n := r.newNode(2, tor(func(p *v1alpha1.BGPPeer) { p.Spec.Peer.ASN = nodeASN }))
	n.carry("10.99.0.5", 3000)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000 pref 4294964295" + attributes})
}

// Of two nodes that announce an address the router takes the one to which it came later.
func TestNewestWins(t *testing.T) {
	t.Parallel()
	r := newRack(t, nil)
	// The router prefers the lower address where all else is the same.
	first, second := r.newNode(2, tor(nil)), r.newNode(3, tor(nil))
	first.carry("10.99.0.5", 3000)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes})
	second.carry("10.99.0.5", 2999)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.3 med 2999" + attributes})
	first.drop("10.99.0.5", 3000)
	second.drop("10.99.0.5", 2999)
	r.hears(map[string]string{})
	second.carry("10.99.0.5", 2000)
	first.carry("10.99.0.5", 1000)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 1000" + attributes})
}

// A wrong password, ASN or router is told; with the right one the session comes up.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	t.Run("password", func(t *testing.T) {
		t.Parallel()
		r := newRack(t, func(c *routing) { c.Neighbours[0].Password = "secret" })
		n := r.newNode(2, tor(nil))
		n.carry("10.99.0.5", 3000)
		n.ready("no session is established: tor: 10.11.0.1 does not answer at port 179: it must be reachable, the router must have no password for this node")
		n.write("passwords/tor", "wrong")
		n.ready("the router must have the password that the Secret has for this BGPPeer, and the router must use TTL security")
		lines, err := n.get("/metrics")
		if !strings.Contains(lines, `berth_speaker_session_up{peer="tor"} 0`) {
			t.Errorf("metrics: %s, %v", lines, err)
		}
		said, err := n.status()
		if err != nil || said.Peers[0].Established || !strings.Contains(said.Peers[0].Error, "password") {
			t.Errorf("%+v, %v", said, err)
		}
		n.write("passwords/tor", "secret\n")
		n.ready("")
		r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes})
	})
	t.Run("router's ASN", func(t *testing.T) {
		t.Parallel()
		n := newRack(t, nil).newNode(2, tor(func(p *v1alpha1.BGPPeer) { p.Spec.Peer.ASN = 65102 }))
		n.ready("10.11.0.1 has another ASN than 65102: correct spec.peer.asn")
	})
	t.Run("own ASN", func(t *testing.T) {
		t.Parallel()
		n := newRack(t, nil).newNode(2, tor(func(p *v1alpha1.BGPPeer) { p.Spec.LocalASN = 65201 }))
		n.ready("10.11.0.1 refused the session: it may know this node by another ASN than 65201")
	})
	t.Run("no such neighbour", func(t *testing.T) {
		t.Parallel()
		n := newRack(t, nil).newNode(4, tor(nil))
		n.ready("10.11.0.1 took the connection and closed it: it may have no neighbor with this node's address")
	})
	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		n := newRack(t, nil).newNode(2, tor(func(p *v1alpha1.BGPPeer) { p.Spec.Peer.Address, p.Spec.Multihop = "10.11.0.2", 2 }))
		n.ready("connection refused")
	})
}

// gone returns how often the router had no path to a prefix.
func (r *rack) gone(prefix string) int {
	r.t.Helper()
	h, err := r.router.heard()
	if err != nil {
		r.t.Fatal(err)
	}
	times := 0
	for _, gone := range h.Gone {
		if gone == prefix {
			times++
		}
	}
	return times
}

// established waits until the speaker's session is up.
func (n *node) established() {
	n.t.Helper()
	netnstest.Eventually(n.t, func() error {
		said, err := n.status()
		if err != nil {
			return err
		}
		if len(said.Peers) != 1 || !said.Peers[0].Established {
			return fmt.Errorf("the session is not up: %+v", said.Peers)
		}
		return nil
	})
}

// The router keeps the paths while the speaker is killed, stopped, replaced, or gets another
// configuration, and until the next one has announced what the node carries by then.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newRack(t, nil)
	n := r.newNode(2, tor(nil))
	n.carry("10.99.0.5", 3000)
	n.carry("10.99.0.6", 3000)
	n.carry("2001:db8:99::5", 3000)
	paths := map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes, "10.99.0.6/32": "via 10.11.0.2 med 3000" + attributes, "2001:db8:99::5/128": "via 2001:db8:11::2 med 3000" + attributes}
	r.hears(paths)
	for name, end := range map[string]func(){"killed": n.kill, "told to end": n.end} {
		const helps = "peer graceful restart"
		before := strings.Count(r.router.log.String(), helps)
		end()
		// The router sees it, and keeps them.
		netnstest.Eventually(t, func() error {
			if strings.Count(r.router.log.String(), helps) == before {
				return errors.New("the router does not help")
			}
			return nil
		})
		r.hears(paths)
		n.start()
		n.established()
		r.hears(paths)
		if h, err := r.router.heard(); err != nil || len(h.Gone) > 0 || h.Notifications > 0 || h.Preserved != 2 {
			t.Fatalf("%s: %+v, %v", name, h, err)
		}
	}
	// What went meanwhile is gone when the next one has announced the rest.
	n.kill()
	n.drop("10.99.0.6", 3000)
	n.start()
	delete(paths, "10.99.0.6/32")
	r.hears(paths)
	// Another configuration is another session, which goes on.
	n.c.Peers[0].Spec.HoldTime = &metav1.Duration{Duration: 6 * time.Second}
	n.configure(n.c)
	netnstest.Eventually(t, func() error {
		lines, err := n.get("/metrics")
		if !strings.Contains(lines, `berth_speaker_transitions_total{peer="tor"} 2`) {
			return fmt.Errorf("the session was not replaced: %s, %w", lines, err)
		}
		return nil
	})
	n.established()
	r.hears(paths)
	if times := r.gone("10.99.0.5/32"); times > 0 {
		t.Errorf("the router had no path %d times", times)
	}
	if h, err := r.router.heard(); err != nil || h.Notifications > 0 {
		t.Errorf("%+v, %v", h, err)
	}
}

// A BGPPeer that selects the node no more ends its session at once, with a NOTIFICATION, and the
// speaker is ready without one.
func TestEnd(t *testing.T) {
	t.Parallel()
	r := newRack(t, nil)
	n := r.newNode(2, tor(nil))
	n.carry("10.99.0.5", 3000)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes})
	n.c.Labels = map[string]string{"rack": "2"}
	n.configure(n.c)
	r.hears(map[string]string{})
	if h, err := r.router.heard(); err != nil || h.Notifications != 1 {
		t.Errorf("%+v, %v", h, err)
	}
	n.ready("")
	n.c.Labels = map[string]string{"rack": "1"}
	n.configure(n.c)
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes})
}

// A router that restarts has all paths again, and the session says how it was lost meanwhile.
func TestRouterRestarts(t *testing.T) {
	t.Parallel()
	r := newRack(t, nil)
	n := r.newNode(2, tor(nil))
	n.carry("10.99.0.5", 3000)
	paths := map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes}
	r.hears(paths)
	r.router.kill()
	n.ready("no session is established: tor: ")
	n.carry("10.99.0.6", 2000)
	r.router.start()
	r.hears(map[string]string{"10.99.0.5/32": paths["10.99.0.5/32"], "10.99.0.6/32": "via 10.11.0.2 med 2000" + attributes})
	n.ready("")
	if h, err := r.router.heard(); err != nil || h.Preserved != 2 {
		t.Errorf("the next session does not say that the node forwarded meanwhile: %+v, %v", h, err)
	}
	if said, err := n.status(); err != nil || len(said.Peers) != 1 || said.Peers[0].Since.IsZero() {
		t.Errorf("%+v, %v", said, err)
	}
}

// With BFD a session ends when the wire is cut, long before the hold time, without a NOTIFICATION,
// and comes back with the wire. A speaker that ends, or gets another configuration, is not lost to
// the router.
func TestBFD(t *testing.T) {
	t.Parallel()
	r := newRack(t, func(c *routing) { c.BFD, c.Hold = true, 3600 })
	with := func(p *v1alpha1.BGPPeer) {
		p.Spec.HoldTime, p.Spec.BFD = &metav1.Duration{Duration: time.Hour}, &v1alpha1.BGPBFD{Multiplier: 10} // a busy machine is silent for a second
	}
	n := r.newNode(2, tor(with))
	n.carry("10.99.0.5", 3000)
	paths := map[string]string{"10.99.0.5/32": "via 10.11.0.2 med 3000" + attributes}
	awaits := func(established bool, state, why string) {
		t.Helper()
		netnstest.Eventually(t, func() error {
			said, err := n.status()
			if err != nil {
				return err
			}
			if len(said.Peers) == 0 {
				return errors.New("there is no session")
			}
			if p := said.Peers[0]; p.Established != established || p.BFD == nil || p.BFD.State != state || p.BFD.Error != why {
				return fmt.Errorf("established: %t, BFD %+v, want %t, %s %q", p.Established, p.BFD, established, state, why)
			}
			return nil
		})
	}
	awaits(true, "Up", "")
	r.hears(paths)
	if lines, err := n.get("/metrics"); !strings.Contains(lines, `berth_speaker_bfd_up{peer="tor"} 1`) {
		t.Errorf("metrics: %s, %v", lines, err)
	}
	const own = 2 // after the router's
	r.wire.Block(own, true)
	awaits(false, "Down", "10.11.0.1 fell silent")
	r.hears(map[string]string{})
	r.wire.Block(own, false)
	awaits(true, "Up", "")
	r.hears(paths)
	gone := r.gone("10.99.0.5/32")
	n.end()
	n.start()
	awaits(true, "Up", "")
	n.c.Peers = []*v1alpha1.BGPPeer{tor(func(p *v1alpha1.BGPPeer) {
		with(p)
		p.Spec.BFD.Interval = &metav1.Duration{Duration: 400 * time.Millisecond}
	})}
	n.configure(n.c)
	netnstest.Eventually(t, func() error {
		if lines, err := n.get("/metrics"); !strings.Contains(lines, `berth_speaker_transitions_total{peer="tor"} 2`) {
			return fmt.Errorf("the session was not replaced: %s, %w", lines, err)
		}
		return nil
	})
	awaits(true, "Up", "")
	r.hears(paths)
	if h, err := r.router.heard(); err != nil || h.Notifications > 0 || r.gone("10.99.0.5/32") != gone {
		t.Errorf("an end of the speaker, or of its session, took paths away: %+v, %v", h, err)
	}
	n.c.Peers = []*v1alpha1.BGPPeer{tor(nil)}
	n.configure(n.c)
	netnstest.Eventually(t, func() error {
		if said, err := n.status(); err != nil || said.Peers[0].BFD != nil || !said.Peers[0].Established {
			return fmt.Errorf("BFD is not off: %+v, %w", said, err)
		}
		return nil
	})
	if r.gone("10.99.0.5/32") != gone {
		t.Error("the end of BFD took paths away")
	}
}

// A session is from the node's address in a prefix, to the router's port, and so are BFD's packets.
func TestSource(t *testing.T) {
	t.Parallel()
	r := newRack(t, func(c *routing) {
		c.Port, c.BFD, c.Neighbours = 1179, true, []neighbour{{Address: "10.11.0.200", ASN: nodeASN}}
	})
	n := r.newNode(2, tor(func(p *v1alpha1.BGPPeer) {
		p.Spec.Source, p.Spec.Peer.Port, p.Spec.BFD = "10.11.0.192/27", 1179, &v1alpha1.BGPBFD{}
	}))
	n.carry("10.99.0.5", 3000)
	n.ready("tor: the node has no address in spec.source, 10.11.0.192/27")
	n.host.IP("addr", "add", "10.11.0.201/32", "dev", "lo")
	n.host.IP("addr", "add", "10.11.0.200/32", "dev", "lo")
	n.configure(n.c)
	n.ready("")
	r.hears(map[string]string{"10.99.0.5/32": "via 10.11.0.200 med 3000" + attributes})
	netnstest.Eventually(t, func() error {
		said, err := n.status()
		if err != nil || said.Peers[0].BFD == nil || said.Peers[0].BFD.State != "Up" {
			return fmt.Errorf("BFD is not Up: %+v, %w", said, err)
		}
		return nil
	})
}
