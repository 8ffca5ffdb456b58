// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/netnstest"
)

// topology is a node that routes between its pods and a server.
type topology struct {
	t            *testing.T
	node, server *netnstest.Host
	shaper       Shaper
	pods         int
}

const (
	server4 = "10.9.0.2"
	server6 = "2001:db8:9::2"
)

// testPod is a pod behind a veth, as the default network's plugins make them.
type testPod struct {
	*netnstest.Host
	Pod
	v4, v6 string
}

func newTopology(t *testing.T) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, node: netnstest.New(t), server: netnstest.New(t)}
	for _, h := range []*netnstest.Host{w.node, w.server} {
		sysctl(h, "net/ipv6/conf/default/accept_dad", "0")
	}
	sysctl(w.node, "net/ipv4/ip_forward", "1")
	sysctl(w.node, "net/ipv6/conf/all/forwarding", "1")
	w.node.IP("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", w.server.Path())
	plug(w.node, "uplink", "10.9.0.1/24", "2001:db8:9::1/64")
	plug(w.server, "eth0", server4+"/24", server6+"/64")
	w.server.IP("route", "add", "default", "via", "10.9.0.1")
	w.server.IP("-6", "route", "add", "default", "via", "2001:db8:9::1")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.state())
		}
	})
	return w
}

func sysctl(h *netnstest.Host, key, value string) {
	h.Run(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}

func plug(h *netnstest.Host, link string, addrs ...string) {
	h.IP("link", "set", link, "up")
	for _, a := range addrs {
		h.IP("addr", "add", a, "dev", link)
	}
}

func (w *topology) pod(id string) *testPod {
	w.t.Helper()
	w.pods++
	h := netnstest.New(w.t)
	sysctl(h, "net/ipv6/conf/default/accept_dad", "0")
	p := &testPod{Host: h, v4: fmt.Sprintf("10.8.%d.2", w.pods), v6: fmt.Sprintf("2001:db8:8:%d::2", w.pods)}
	p.Pod = Pod{ID: id, Links: []string{"veth" + id}, Addresses: []netip.Addr{netip.MustParseAddr(p.v4), netip.MustParseAddr(p.v6)}}
	w.connect(p, w.pods)
	return p
}

func (w *topology) connect(p *testPod, n int) {
	w.t.Helper()
	w.node.IP("link", "add", p.Links[0], "type", "veth", "peer", "name", "eth0", "netns", p.Path())
	plug(w.node, p.Links[0], fmt.Sprintf("10.8.%d.1/24", n), fmt.Sprintf("2001:db8:8:%d::1/64", n))
	plug(p.Host, "eth0", p.v4+"/24", p.v6+"/64")
	p.IP("route", "add", "default", "via", fmt.Sprintf("10.8.%d.1", n))
	p.IP("-6", "route", "add", "default", "via", fmt.Sprintf("2001:db8:8:%d::1", n))
	// The kernel says some time later that the link has its carrier, and tests compare the state of
	// links.
	netnstest.Eventually(w.t, func() error {
		return w.node.Try(func() error { return isUp(p.Links[0]) })
	})
}

func isUp(name string) error {
	link, err := netlinksafe.LinkByName(name)
	if err == nil && link.Attrs().OperState != netlink.OperUp {
		err = fmt.Errorf("link %s is %s", name, link.Attrs().OperState)
	}
	return err
}

// sync makes these the only pods of the node.
func (w *topology) sync(pods ...*testPod) {
	w.t.Helper()
	problems, err := w.trySync(true, pods...)
	if err != nil || len(problems) > 0 {
		w.t.Fatalf("Sync() = %v, %v", problems, err)
	}
}

func (w *topology) trySync(prune bool, pods ...*testPod) (problems map[string]error, err error) {
	var all []Pod
	for _, p := range pods {
		all = append(all, p.Pod)
	}
	w.node.Run(func() error {
		problems, err = w.shaper.Sync(all, prune)
		return nil
	})
	return problems, err
}

const mbit = 1_000_000

// together sends on all connections at once, and returns the rate of each and of all.
func together(bytes int64, all ...*netnstest.Stream) (each []float64, sum float64) {
	each = make([]float64, len(all))
	var group sync.WaitGroup
	start := time.Now()
	for i, c := range all {
		group.Go(func() { each[i] = c.Rate(bytes) })
	}
	group.Wait()
	return each, float64(bytes) * float64(len(all)) * 8 / time.Since(start).Seconds()
}

// near fails the test where a rate is far from a limit. The bounds are wide: the burst passes at
// once, headers count, and the machine is busy.
func (w *topology) near(t *testing.T, what string, rate float64, limit uint64) {
	t.Helper()
	t.Logf("%s: %.1f Mbit/s of %d", what, rate/mbit, limit/mbit)
	if rate < 0.5*float64(limit) || rate > 1.3*float64(limit) {
		t.Errorf("%s: %.1f Mbit/s, the limit is %d", what, rate/mbit, limit/mbit)
	}
}

// state returns the links, queues and filters of the node's kernel, without counters.
func (w *topology) state() string {
	var all string
	for _, args := range [][]string{{"ip", "-o", "-br", "link"}, {"tc", "qdisc", "show"}} {
		out, err := w.node.Command(args[0], args[1:]...)
		if err != nil {
			w.t.Error(err)
		}
		all += out
	}
	var names []string
	w.node.Run(func() error {
		byName, err := linksByName()
		names = slices.Sorted(maps.Keys(byName))
		return err
	})
	for _, name := range names {
		for _, args := range [][]string{{"filter", "show", "dev", name, "ingress"}, {"filter", "show", "dev", name, "egress"}, {"filter", "show", "dev", name, "root"}, {"class", "show", "dev", name}} {
			// A link without a hook has no such filters, and tc fails.
			if out, err := w.node.Command("tc", args...); err == nil && out != "" {
				all += fmt.Sprintln(args) + out
			}
		}
	}
	return all
}
