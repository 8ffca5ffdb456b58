// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// routedPod makes a pod with addresses that routers lead to its node.
func (w *topology) routedPod(id string, addrs ...string) *pod {
	w.t.Helper()
	h := netnstest.New(w.t)
	p := &pod{Host: h, spec: Spec{ContainerID: id, IfName: "eth0", NetNS: h.Path(), Uplink: "eth0"}}
	for _, a := range addrs {
		p.spec.Addresses = append(p.spec.Addresses, routedAddress(a))
	}
	p.spec.MAC = v1alpha1.MACOf(p.spec.Addresses[0].Address)
	return p
}

func routedAddress(a string) api.Address {
	subnet := netip.MustParsePrefix("10.98.0.0/24")
	if addr := netip.MustParseAddr(a); addr.Is6() {
		subnet = netip.MustParsePrefix("2001:db8:98::/64")
	}
	return api.Address{Address: netip.MustParseAddr(a), Subnet: subnet, Routed: true}
}

// advertise sets since when the pod has its addresses, nothing for the zero time.
func (p *pod) advertise(since time.Time) {
	p.spec.Advertised = map[netip.Addr]time.Time{}
	for _, a := range p.spec.Addresses {
		if !since.IsZero() {
			p.spec.Advertised[a.Address] = since
		}
	}
}

// lead has the router lead an address to a node.
func (w *topology) lead(address, node string) {
	family := "-4"
	if strings.Contains(address, ":") {
		family = "-6"
	}
	w.router.IP(family, "route", "replace", address, "via", node)
}

// advertised returns what routing daemons read on the node, each as address and metric.
func advertised(node *netnstest.Host) string {
	var all []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(node.IP(family, "route", "show", "table", "all", "proto", "98")) {
			fields := strings.Fields(line)
			if !strings.Contains(line, " table 98 ") {
				continue
			}
			metric := "no metric"
			for i := range fields {
				if fields[i] == "metric" {
					metric = fields[i+1]
				}
			}
			all = append(all, fields[0]+" "+metric)
		}
	}
	return strings.Join(all, ", ")
}

func TestMetricOf(t *testing.T) {
	epoch := time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		since time.Time
		want  uint32
	}{
		{time.Time{}, math.MaxUint32},
		{epoch.Add(-time.Hour), math.MaxUint32},
		{epoch, math.MaxUint32},
		{epoch.Add(time.Second + time.Millisecond), math.MaxUint32 - 1},
		{time.Date(2026, time.November, 27, 8, 0, 0, 0, time.FixedZone("", 3600)), math.MaxUint32 - 91_695_600},
		{epoch.Add(math.MaxUint32 * time.Second), 1},
		{epoch.Add(2 * math.MaxUint32 * time.Second), 1},
	} {
		if got := MetricOf(c.since); got != c.want {
			t.Errorf("MetricOf(%s) = %d, want %d", c.since, got, c.want)
		}
	}
}

// An address that routers lead to its node: who reaches whom, and what the node says of it.
func TestRouted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ a, a2, b, client, nodeA, nodeB, outside, metric string }{
		"IPv4": {"10.98.0.0", "10.98.0.255", "10.98.0.7", "10.0.70.50", "10.0.60.11", "10.0.60.12", outside4, "10.98.0.0 4203271695"},
		"IPv6": {"2001:db8:98::5", "2001:db8:98::6", "2001:db8:98::7", "2001:db8:70::50", "2001:db8:60::11", "2001:db8:60::12", outside6, "2001:db8:98::5 4203271695"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			before := snapshot(w.nodeA)
			a, a2, b := w.routedPod("a", c.a), w.routedPod("a2", c.a2), w.routedPod("b", c.b)
			since := time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)
			setup(w.nodeA, a)
			if got := advertised(w.nodeA); got != "" {
				t.Errorf("set up, and not complete: advertised %q", got)
			}
			a.advertise(since)
			w.nodeA.Run(func() error { return errors.Join(New("").Advertise(a.spec), New("").Check(a.spec)) })
			if got := advertised(w.nodeA); got != c.metric {
				t.Errorf("advertised %q, want %q", got, c.metric)
			}
			setup(w.nodeA, a2)
			setup(w.nodeB, b)
			w.lead(c.a, c.nodeA)
			w.lead(c.a2, c.nodeA)
			w.lead(c.b, c.nodeB)
			for _, hop := range []struct {
				from *netnstest.Host
				to   string
			}{
				{w.client, c.a}, {a.Host, c.client}, {a.Host, c.outside}, {w.router, c.a},
				{a.Host, c.a2}, {a2.Host, c.a}, {a.Host, c.b}, {b.Host, c.a},
				{w.nodeA, c.a}, {a.Host, c.nodeA}, {a.Host, c.nodeB}, {w.nodeB, c.a},
			} {
				hop.from.Ping(hop.to)
			}
			// Nobody is asked for the address, so nobody answers.
			if out := w.nodeA.IP("neigh", "show", "proxy", "dev", "eth0") + w.nodeA.IP("-6", "neigh", "show", "proxy", "dev", "eth0"); out != "" {
				t.Errorf("the node answers for addresses that routers lead to it:\n%s", out)
			}
			for _, p := range []*pod{a, a2} {
				w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
				w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
			}
			// The rule against loops stays: routers may lead the addresses here for a while.
			w.nodeA.Run(func() error { return New("").RemoveLoose() })
			after := snapshot(w.nodeA)
			if strings.Count(after, "unreachable") != 1 {
				t.Errorf("the node has not one rule against loops:\n%s", after)
			}
			w.nodeA.Run(func() error {
				items, err := New("").Leftovers()
				for _, item := range items {
					err = errors.Join(err, item.Remove())
				}
				return err
			})
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("node after teardown and cleanup (-before +after):\n%s", diff)
			}
		})
	}
}

// A router that leads an address to a node that has it no more is told so. Without the rule the
// packet goes to and fro until its TTL ends. The node and its pods reach the address where it is.
func TestRoutedLoop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ a, other, nodeA, nodeB string }{
		"IPv4": {"10.98.0.5", "10.98.0.6", "10.0.60.11", "10.0.60.12"},
		"IPv6": {"2001:db8:98::5", "2001:db8:98::6", "2001:db8:60::11", "2001:db8:60::12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			// The router and the node are on one link, and would tell each other of shorter ways.
			for _, h := range []*netnstest.Host{w.router, w.nodeA} {
				sysctl(t, h, "net/ipv4/conf/all/send_redirects", "0")
				sysctl(t, h, "net/ipv4/conf/eth0/send_redirects", "0")
				sysctl(t, h, "net/ipv4/conf/all/accept_redirects", "0")
				sysctl(t, h, "net/ipv6/conf/eth0/accept_redirects", "0")
			}
			a, other := w.routedPod("a", c.a), w.routedPod("other", c.other)
			setup(w.nodeA, a)
			w.lead(c.a, c.nodeA)
			w.lead(c.other, c.nodeA)
			w.client.Ping(c.a)
			w.nodeA.Run(func() error { return New("").Teardown(a.spec) })
			setup(w.nodeA, other)
			hears := func() string {
				out, err := w.client.Command("ping", "-c", "1", "-W", "5", c.a)
				if err == nil {
					t.Errorf("somebody answers for %s:\n%s", c.a, out)
				}
				return err.Error()
			}
			if said := strings.ToLower(hears()); !strings.Contains(said, "from "+c.nodeA+" ") || !strings.Contains(said, "unreachable") {
				t.Errorf("the sender is not told by the node that its packet comes to nobody:\n%s", said)
			}
			family := "-4"
			if name == "IPv6" {
				family = "-6"
			}
			rule := strings.Fields(w.nodeA.IP(family, "rule", "show", "pref", fmt.Sprint(PriorityUnreachable)))
			w.nodeA.IP(append([]string{family, "rule", "del"}, rule[1:]...)...)
			if said := strings.ToLower(hears()); !strings.Contains(said, "time to live exceeded") && !strings.Contains(said, "hop limit") {
				t.Errorf("without the rule the packet does not go to and fro, so this test shows nothing:\n%s", said)
			}
			w.nodeA.Run(func() error {
				if err := New("").CheckNode(other.spec); !errors.Is(err, ErrNotWired) {
					t.Errorf("without the rule CheckNode() = %v", err)
				}
				return errors.Join(New("").Repair(other.spec), New("").CheckNode(other.spec))
			})
			moved := w.routedPod("a2", c.a)
			setup(w.nodeB, moved)
			w.lead(c.a, c.nodeB)
			w.nodeA.Ping(c.a)
			other.Host.Ping(c.a)
			moved.Host.Ping(c.other)
			// As kube-proxy does for a NodePort whose endpoint is on another node.
			var server *net.UDPConn
			moved.Host.Run(func() (err error) { server, err = net.ListenUDP("udp", &net.UDPAddr{Port: 7777}); return err })
			t.Cleanup(func() { _ = server.Close() })
			heard := make(chan string, 1)
			go func() {
				buffer := make([]byte, 100)
				n, _ := server.Read(buffer)
				heard <- string(buffer[:n])
			}()
			w.nodeA.Run(func() error {
				mappings, err := hostport.Mappings([]api.HostPort{{Protocol: "UDP", HostPort: 8080, ContainerPort: 7777}}, []netip.Addr{netip.MustParseAddr(c.a)}, false)
				if err != nil {
					return err
				}
				_, err = new(hostport.Forwarder).Apply(mappings)
				return err
			})
			netnstest.Eventually(t, func() error {
				w.client.Say(c.nodeA, 8080, "by a Service")
				select {
				case text := <-heard:
					if text != "by a Service" {
						t.Errorf("the pod hears %q", text)
					}
					return nil
				default:
					return errors.New("a pod of another node hears nothing through a Service of this one")
				}
			})
		})
	}
}

// The table of advertised addresses has what the caller wants and nothing else, whoever changes it.
func TestAdvertised(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.routedPod("p", "10.98.0.5", "2001:db8:98::5")
	since := time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)
	const whole = "10.98.0.5 4203271695, 2001:db8:98::5 4203271695"
	p.advertise(since)
	setup(w.nodeA, p)
	expect := func(what, want string) {
		t.Helper()
		if got := advertised(w.nodeA); got != want {
			t.Errorf("%s: advertised %q, want %q", what, got, want)
		}
	}
	expect("a complete pod", whole)
	link := p.spec.HostLink()
	for what, change := range map[string][]string{
		"deleted":           {"route", "del", "10.98.0.5", "table", "98"},
		"deleted, IPv6":     {"-6", "route", "del", "2001:db8:98::5", "table", "98"},
		"flushed":           {"route", "flush", "table", "98"},
		"twice":             {"route", "add", "10.98.0.5", "dev", link, "table", "98", "proto", "98", "metric", "7"},
		"another link's":    {"route", "add", "10.98.0.5", "dev", "eth0", "table", "98", "proto", "98", "metric", "7"},
		"metric of an hour": {"route", "change", "10.98.0.5", "dev", link, "table", "98", "proto", "98", "metric", "4203271696"},
	} {
		if what == "metric of an hour" {
			w.nodeA.IP("route", "del", "10.98.0.5", "table", "98")
			change[1] = "add"
		}
		w.nodeA.IP(change...)
		w.nodeA.Run(func() error {
			if err := New("").CheckNode(p.spec); !errors.Is(err, ErrNotWired) || !strings.Contains(err.Error(), "98") {
				t.Errorf("%s: CheckNode() = %v", what, err)
			}
			return errors.Join(New("").Repair(p.spec), New("").CheckNode(p.spec))
		})
		expect(what, whole)
	}
	// A pod that is to be Ready for it and is not.
	p.advertise(time.Time{})
	w.nodeA.Run(func() error {
		if err := New("").CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
			t.Errorf("advertised, and not to be: CheckNode() = %v", err)
		}
		return errors.Join(New("").Repair(p.spec), New("").CheckNode(p.spec))
	})
	expect("not Ready", "")
	// Whoever does not know whether it is to be leaves it.
	p.advertise(since)
	w.nodeA.Run(func() error { return New("").Repair(p.spec) })
	p.spec.Advertised = nil
	w.nodeA.Run(func() error { return errors.Join(New("").Repair(p.spec), New("").CheckNode(p.spec)) })
	expect("not known", whole)
	// What belongs to no pod goes, also where the link of another pod leads nowhere.
	w.nodeA.IP("route", "add", "10.98.0.9", "dev", link, "table", "98", "proto", "98", "metric", "9")
	w.nodeA.IP("route", "add", "10.98.0.0/28", "dev", "eth0", "table", "98", "proto", "98", "metric", "9")
	w.nodeA.Run(func() error { return New("").RemoveLoose() })
	expect("loose", whole)
	w.nodeA.Run(func() error { return New("").Withdraw(p.spec) })
	expect("withdrawn", "")
	w.nodeA.Run(func() error { return New("").Repair(p.spec) })
	expect("repaired, not complete", "")
}

// The subnet of another pool may have an address that routers lead to the node: its pod's packets
// leave by the node's routes all the same.
func TestRoutedInAnotherSubnet(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	linked, routed := w.pod("linked", "10.0.70.5"), w.routedPod("routed", "10.0.70.99")
	routed.spec.Addresses[0].Subnet = netip.MustParsePrefix("10.0.70.96/28")
	setup(w.nodeA, linked)
	setup(w.nodeA, routed)
	table := func(from string) string {
		out := w.nodeA.IP("route", "get", outside4, "from", from, "iif", linked.spec.HostLink(), "mark", "0x1000")
		return strings.Join(strings.Fields(out)[:5], " ")
	}
	if got, want := table("10.0.70.5"), outside4+" from 10.0.70.5 via 10.0.70.1"; got != want {
		t.Errorf("the way out of the pool's pod is %q, want %q", got, want)
	}
	out := w.nodeA.IP("route", "get", outside4, "from", "10.0.70.99", "iif", routed.spec.HostLink(), "mark", "0x1000")
	if !strings.Contains(out, "via 10.0.60.1 ") {
		t.Errorf("the way out of the other pod is %q, want the node's", out)
	}
	w.nodeA.Run(func() error {
		return errors.Join(New("").Teardown(linked.spec), New("").CheckNode(routed.spec), New("").Teardown(routed.spec))
	})
}
