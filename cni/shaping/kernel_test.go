// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/leftover"
)

func TestRateOfOnePod(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.pod("a")
	const limit = 20 * mbit
	for name, addrs := range map[string][2]string{"IPv4": {server4, p.v4}, "IPv6": {server6, p.v6}} {
		up, down := netnstest.Dial(w.t, p.Host, w.server, addrs[0]), netnstest.Dial(w.t, w.server, p.Host, addrs[1])
		p.Ingress, p.Egress = Limit{}, Limit{}
		w.sync(p)
		for what, c := range map[string]*netnstest.Stream{"egress": up, "ingress": down} {
			if free := c.Rate(40 << 20); free < 5*limit {
				t.Fatalf("%s of %s without a limit: %.1f Mbit/s, which is too slow to see a limit", what, name, free/mbit)
			}
		}
		p.Egress = Limit{Rate: limit}
		w.sync(p)
		w.near(t, "egress of "+name, up.Rate(5<<20), limit)
		if free := down.Rate(40 << 20); free < 5*limit {
			t.Errorf("ingress of %s: %.1f Mbit/s, and egress alone has a limit", name, free/mbit)
		}
		p.Ingress, p.Egress = Limit{Rate: limit}, Limit{}
		w.sync(p)
		w.near(t, "ingress of "+name, down.Rate(5<<20), limit)
		if free := up.Rate(40 << 20); free < 5*limit {
			t.Errorf("egress of %s: %.1f Mbit/s, and ingress alone has a limit", name, free/mbit)
		}
	}
}

// A connection that is open sees the new limit.
func TestLiveChange(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.pod("a")
	up, down := netnstest.Dial(w.t, p.Host, w.server, server4), netnstest.Dial(w.t, w.server, p.Host, p.v4)
	for _, limit := range []uint64{20 * mbit, 60 * mbit, 10 * mbit} {
		p.Ingress, p.Egress = Limit{Rate: limit}, Limit{Rate: limit}
		w.sync(p)
		// The queue may still have bytes sent under the limit before.
		up.Rate(256 << 10)
		down.Rate(256 << 10)
		w.near(t, "egress", up.Rate(int64(limit/8*3/2)), limit)
		w.near(t, "ingress", down.Rate(int64(limit/8*3/2)), limit)
	}
}

// A burst lets bytes pass beyond the limit.
func TestBurst(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.pod("a")
	p.Egress = Limit{Rate: 10 * mbit, Burst: 8 << 20}
	up := netnstest.Dial(w.t, p.Host, w.server, server4)
	w.sync(p)
	if rate := up.Rate(4 << 20); rate < 30*mbit {
		t.Errorf("%.1f Mbit/s within a burst", rate/mbit)
	}
}

func TestGroupSharesItsLimit(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	const limit = 30 * mbit
	group := &Group{Name: "bulk", Ingress: Limit{Rate: limit}, Egress: Limit{Rate: limit}}
	a, b, other := w.pod("a"), w.pod("b"), w.pod("c")
	a.Group, b.Group = group, group
	w.sync(a, b, other)
	for what, c := range map[string][3]*netnstest.Stream{
		"egress":  {netnstest.Dial(w.t, a.Host, w.server, server4), netnstest.Dial(w.t, b.Host, w.server, server6), netnstest.Dial(w.t, other.Host, w.server, server4)},
		"ingress": {netnstest.Dial(w.t, w.server, a.Host, a.v6), netnstest.Dial(w.t, w.server, b.Host, b.v4), netnstest.Dial(w.t, w.server, other.Host, other.v4)},
	} {
		each, sum := together(5<<20, c[0], c[1])
		w.near(t, "group's "+what, sum, limit)
		for i, rate := range each {
			if rate < 0.25*limit || rate > 0.85*limit {
				t.Errorf("%s of pod %d: %.1f Mbit/s of %d that two pods share", what, i, rate/mbit, limit/mbit)
			}
		}
		// One that is alone has it all.
		w.near(t, "one pod's "+what, c[0].Rate(5<<20), limit)
		if free := c[2].Rate(40 << 20); free < 3*limit {
			t.Errorf("%s of a pod outside the group: %.1f Mbit/s", what, free/mbit)
		}
	}
	// A pod's own limit holds within the group's.
	a.Egress = Limit{Rate: 5 * mbit}
	w.sync(a, b, other)
	for _, p := range []*testPod{a, b, other} {
		var found []Found
		w.node.Run(func() (err error) { found, err = w.shaper.Find(append(slices.Clone(p.Links), "missing")); return err })
		var want []Found
		for _, d := range []direction{ingress, egress} {
			f := Found{Link: p.Links[0], Direction: d.String(), Device: deviceName(d, "group", group.Name), Rate: limit, Shared: limit}
			if p == a && d == egress {
				f.Rate = 5 * mbit
			}
			if p != other {
				want = append(want, f)
			}
		}
		if !slices.Equal(found, want) {
			t.Errorf("Find() = %+v, want %+v", found, want)
		}
	}
	up, rest := netnstest.Dial(w.t, a.Host, w.server, server4), netnstest.Dial(w.t, b.Host, w.server, server4)
	w.near(t, "pod with a limit of its own", up.Rate(2<<20), 5*mbit)
	w.near(t, "pod without", rest.Rate(5<<20), limit)
	// A change of the group's limit and of its members.
	b.Group = nil
	group.Egress.Rate = 60 * mbit
	a.Egress = Limit{}
	w.sync(a, b, other)
	w.near(t, "group's egress after a change", up.Rate(10<<20), 60*mbit)
	if free := rest.Rate(40 << 20); free < 3*limit {
		t.Errorf("pod that left the group: %.1f Mbit/s", free/mbit)
	}
}

// A limit comes back after another program removes or changes any part of it.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	group := &Group{Name: "bulk", Ingress: Limit{Rate: 20 * mbit}, Egress: Limit{Rate: 20 * mbit}}
	a, b := w.pod("a"), w.pod("b")
	a.Group, b.Ingress, b.Egress = group, Limit{Rate: 20 * mbit}, Limit{Rate: 20 * mbit}
	shared, own := deviceName(egress, "group", "bulk"), deviceName(ingress, "pod", "b")
	dscp := uint8(46)
	a.DSCP = &dscp
	w.sync(a, b)
	limited := func(t *testing.T) {
		t.Helper()
		each, _ := together(2<<20, netnstest.Dial(w.t, a.Host, w.server, server4), netnstest.Dial(w.t, w.server, b.Host, b.v6))
		w.near(t, "egress of the group", each[0], 20*mbit)
		w.near(t, "ingress of the pod", each[1], 20*mbit)
	}
	for name, broken := range map[string]func(){
		"devices deleted": func() { w.node.IP("link", "del", shared); w.node.IP("link", "del", own) },
		"devices down":    func() { w.node.IP("link", "set", shared, "down"); w.node.IP("link", "set", own, "down") },
		"queues deleted": func() {
			w.tc("qdisc", "del", "dev", shared, "root")
			w.tc("qdisc", "del", "dev", own, "root")
		},
		"class changed": func() { w.tc("class", "change", "dev", shared, "classid", "1:1", "htb", "rate", "1gbit") },
		"class deleted": func() {
			w.tc("filter", "del", "dev", shared, "parent", "1:")
			for _, minor := range []string{"1:3", "1:4"} { // the pod has one of them
				_, _ = w.node.Command("tc", "class", "del", "dev", shared, "classid", minor)
			}
		},
		"classifier deleted": func() { w.tc("filter", "del", "dev", shared, "parent", "1:") },
		"hook deleted": func() {
			w.tc("qdisc", "del", "dev", a.Links[0], "clsact")
			w.tc("qdisc", "del", "dev", b.Links[0], "clsact")
		},
		"filters deleted": func() {
			w.tc("filter", "del", "dev", a.Links[0], "ingress")
			w.tc("filter", "del", "dev", b.Links[0], "egress")
		},
		"another's root": func() {
			w.tc("qdisc", "replace", "dev", shared, "root", "tbf", "rate", "900mbit", "burst", "1m", "latency", "50ms")
		},
		"pods' links made again": func() {
			w.node.IP("link", "del", a.Links[0])
			w.connect(a, 1)
			w.node.IP("link", "del", b.Links[0])
			w.connect(b, 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			broken()
			w.sync(a, b)
			limited(t)
		})
	}
	before := w.state()
	w.sync(a, b)
	if diff := cmp.Diff(before, w.state()); diff != "" {
		t.Errorf("Sync without a change (-before +after):\n%s", diff)
	}
}

func (w *topology) tc(args ...string) {
	w.t.Helper()
	if _, err := w.node.Command("tc", args...); err != nil {
		w.t.Fatal(err)
	}
}

// Nothing stays of pods that ended; of a pod that lost its limits only the empty hook stays, which
// has no effect.
func TestPrune(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	before := w.state()
	group := &Group{Name: "bulk", Ingress: Limit{Rate: mbit}, Egress: Limit{Rate: mbit}}
	dscp := uint8(10)
	a.Group, b.Group, b.DSCP, c.Ingress, c.Egress = group, group, &dscp, Limit{Rate: mbit}, Limit{Rate: mbit}
	w.sync(a, b, c)
	w.sync(a)
	if state := w.state(); strings.Contains(state, DevicePrefix+"i"+deviceName(ingress, "pod", "c")[5:]) || strings.Contains(state, "class htb 1:4 ") {
		t.Errorf("a pod's device or class is still there:\n%s", state)
	}
	w.sync()
	for _, p := range []*testPod{a, b, c} {
		w.tc("qdisc", "del", "dev", p.Links[0], "clsact")
	}
	if diff := cmp.Diff(before, w.state()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	w.node.Run(func() error {
		if marks := readAll(t); len(marks) > 0 {
			t.Errorf("marks are left: %v", marks)
		}
		return nil
	})
}

// Without prune a pod gets its limits and loses them, and other pods keep theirs.
func TestSyncOfOnePod(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b := w.pod("a"), w.pod("b")
	group := &Group{Name: "bulk", Egress: Limit{Rate: 20 * mbit}}
	dscp := uint8(46)
	a.Group, a.DSCP, b.Group = group, &dscp, group
	for _, p := range []*testPod{a, b} {
		if problems, err := w.trySync(false, p); err != nil || len(problems) > 0 {
			t.Fatal(problems, err)
		}
	}
	_, sum := together(3<<20, netnstest.Dial(w.t, a.Host, w.server, server4), netnstest.Dial(w.t, b.Host, w.server, server4))
	w.near(t, "both", sum, 20*mbit)
	b.Group = nil
	if problems, err := w.trySync(false, b); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	if free := netnstest.Dial(w.t, b.Host, w.server, server4).Rate(40 << 20); free < 60*mbit {
		t.Errorf("a pod whose limit was taken away: %.1f Mbit/s", free/mbit)
	}
	w.near(t, "the other", netnstest.Dial(w.t, a.Host, w.server, server4).Rate(3<<20), 20*mbit)
	w.node.Run(func() error {
		if marks := readAll(t); len(marks) != 2 {
			t.Errorf("marks are %v, want the two addresses of pod a", marks)
		}
		return nil
	})
}

func TestOtherPrograms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		made     []string
		kept     string
		conflict bool
		limited  bool // in both directions
	}{
		"root queue":     {[]string{"qdisc", "add", "dev", "vetha", "root", "tbf", "rate", "900mbit", "burst", "1m", "latency", "50ms"}, "tbf", false, true},
		"hook":           {[]string{"qdisc", "add", "dev", "vetha", "clsact"}, "clsact", false, true},
		"one-way hook":   {[]string{"qdisc", "add", "dev", "vetha", "ingress"}, "qdisc ingress", true, false},
		"another filter": {[]string{"filter", "add", "dev", "vetha", "ingress", "protocol", "ip", "pref", "7", "u32", "match", "u32", "0", "0", "classid", "1:9"}, "flowid 1:9", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			p := w.pod("a")
			if c.made[0] == "filter" {
				w.tc("qdisc", "add", "dev", "vetha", "clsact")
			}
			w.tc(c.made...)
			p.Ingress, p.Egress = Limit{Rate: 20 * mbit}, Limit{Rate: 20 * mbit}
			problems, err := w.trySync(true, p)
			if err != nil || errors.Is(problems["a"], ErrConflict) != c.conflict || (problems["a"] != nil) != c.conflict {
				t.Errorf("Sync() = %v, %v; a conflict: %v", problems, err, c.conflict)
			}
			if c.conflict && !strings.Contains(fmt.Sprint(problems["a"]), "vetha") {
				t.Errorf("the error %q does not name the link", problems["a"])
			}
			if c.limited {
				w.near(t, "egress", netnstest.Dial(w.t, p.Host, w.server, server4).Rate(3<<20), 20*mbit)
				w.near(t, "ingress", netnstest.Dial(w.t, w.server, p.Host, p.v4).Rate(3<<20), 20*mbit)
			} else {
				// Sync limits the direction that it can.
				host, from, to := p.Host, w.server, p.v4
				if name == "one-way hook" {
					host, from, to = w.server, p.Host, server4
				}
				w.near(t, "the other direction", netnstest.Dial(w.t, from, host, to).Rate(3<<20), 20*mbit)
			}
			w.sync()
			state := w.state()
			if !strings.Contains(state, c.kept) {
				t.Errorf("%s of another program is gone:\n%s", name, state)
			}
			if strings.Contains(state, "mirred") || strings.Contains(state, DevicePrefix) {
				t.Errorf("our filters or devices are left:\n%s", state)
			}
		})
	}
}

// clean removes everything, as an uninstall does.
func (w *topology) clean() {
	w.t.Helper()
	w.node.Run(func() error {
		items, err := Leftovers()
		for _, item := range items {
			err = errors.Join(err, item.Remove())
		}
		return err
	})
}

// An uninstall leaves nothing, and pods keep their network at every step.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b := w.pod("a"), w.pod("b")
	before := w.state()
	a.Group, b.Ingress, b.Egress = &Group{Name: "bulk", Ingress: Limit{Rate: 20 * mbit}}, Limit{Rate: 20 * mbit}, Limit{Rate: 20 * mbit}
	w.sync(a, b)
	up, down := netnstest.Dial(w.t, b.Host, w.server, server4), netnstest.Dial(w.t, w.server, a.Host, a.v6)
	var items []leftover.Item
	w.node.Run(func() (err error) { items, err = Leftovers(); return err })
	if len(items) != 5 {
		t.Errorf("%d items, want two links with filters and three devices: %+v", len(items), items)
	}
	for _, item := range items {
		w.node.Run(item.Remove)
		w.node.Run(item.Remove)
		up.Rate(100 << 10)
		down.Rate(100 << 10)
	}
	if diff := cmp.Diff(before, w.state()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	// Another program's filter, and the hook that it needs, stay.
	b.Ingress, b.Egress = Limit{}, Limit{Rate: mbit}
	w.sync(b)
	w.tc("filter", "add", "dev", "vethb", "egress", "protocol", "ip", "pref", "7", "u32", "match", "u32", "0", "0", "classid", "1:9")
	w.clean()
	if state := w.state(); !strings.Contains(state, "flowid 1:9") || strings.Contains(state, "mirred") || strings.Contains(state, DevicePrefix) {
		t.Errorf("after clean-up:\n%s", state)
	}
	w.node.Run(func() (err error) { items, err = Leftovers(); return err })
	if len(items) > 0 {
		t.Errorf("left: %+v", items)
	}
}

// A pod that fails has its network, and so have others.
func TestPodWithoutLink(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	a, b := w.pod("a"), w.pod("b")
	a.Ingress, b.Egress = Limit{Rate: 20 * mbit}, Limit{Rate: 20 * mbit}
	a.Links = []string{"none"}
	w.node.IP("link", "add", deviceName(egress, "pod", "c"), "type", "bridge") // somebody took the name
	c := w.pod("c")
	c.Egress = Limit{Rate: 20 * mbit}
	problems, err := w.trySync(true, a, b, c)
	if err != nil || problems["a"] == nil || problems["b"] != nil || !errors.Is(problems["c"], ErrConflict) {
		t.Errorf("Sync() = %v, %v", problems, err)
	}
	w.near(t, "pod b", netnstest.Dial(w.t, b.Host, w.server, server4).Rate(3<<20), 20*mbit)
	if free := netnstest.Dial(w.t, c.Host, w.server, server4).Rate(40 << 20); free < 60*mbit {
		t.Errorf("pod c: %.1f Mbit/s", free/mbit)
	}
}

func TestHostEnd(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p, elsewhere := w.pod("a"), netnstest.New(t)
	p.IP("link", "add", "br0", "type", "bridge")
	p.IP("link", "add", "far", "type", "veth", "peer", "name", "far", "netns", elsewhere.Path())
	w.node.Run(func() error {
		if link, err := new(Shaper).HostEnd(p.Path(), "eth0"); link != "vetha" || err != nil {
			t.Errorf("HostEnd(eth0) = %q, %v", link, err)
		}
		for _, name := range []string{"br0", "far", "eth9"} {
			if link, err := new(Shaper).HostEnd(p.Path(), name); !errors.Is(err, ErrNoHostEnd) {
				t.Errorf("HostEnd(%s) = %q, %v", name, link, err)
			}
		}
		if link, err := new(Shaper).HostEnd("/run/netns/never-was", "eth0"); err == nil || errors.Is(err, ErrNoHostEnd) {
			t.Errorf("HostEnd() in no namespace = %q, %v", link, err)
		}
		return nil
	})
}
