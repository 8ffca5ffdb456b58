// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/gate"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/cni/api"
)

func addresses(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// An address that several containers have belongs to the one that lives.
func TestLocals(t *testing.T) {
	db, web := api.Pod{Namespace: "shop", Name: "db", UID: "1"}, api.Pod{Namespace: "shop", Name: "web", UID: "2"}
	all := map[string]Container{
		"old":   {Pod: db, ID: "old", NetNS: "/n/old", Addresses: addresses("10.0.0.1", "10.0.0.9"), Ending: true},
		"new":   {Pod: web, ID: "new", NetNS: "/n/new", Addresses: addresses("10.0.0.1")},
		"again": {Pod: db, ID: "again", NetNS: "/n/again", Addresses: addresses("10.0.0.3")},
		"pod/3": {Pod: api.Pod{Namespace: "shop", Name: "lost", UID: "3"}, ID: "pod/3", Addresses: addresses("10.0.0.3", "10.0.0.4")},
	}
	taker := Container{Pod: api.Pod{Namespace: "shop", Name: "taker", UID: "4"}, ID: "taker", NetNS: "/n/taker", Addresses: addresses("10.0.0.7")}
	all["holder"] = Container{Pod: web, ID: "holder", NetNS: "/n/holder", Addresses: addresses("10.0.0.7")}
	places := map[string]place.Place{"old": {Direct: []string{"net1"}}, "again": {Direct: []string{"net1", "eth0"}}}
	// Of a pod that no policy governs only the addresses on record count.
	all["plain"] = Container{Pod: api.Pod{Namespace: "shop", Name: "plain", UID: "5"}, ID: "plain", NetNS: "/n/plain", Addresses: addresses("10.0.0.8")}
	places["plain"] = place.Place{Direct: []string{"net1"}, Bridged: addresses("10.0.0.12")}
	states := []*container{{Container: Container{Pod: db, ID: "left", Addresses: addresses("10.0.0.5")}, phase: going}}
	states = append(states, &container{Container: taker, phase: adding, governed: true})
	name := func(n string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: n} }
	want := map[types.UID]policy.Local{
		"1": {NamespacedName: name("db"), UID: "1", Addresses: addresses("10.0.0.3", "10.0.0.9"), Direct: []string{"eth0", "net1"}},
		"2": {NamespacedName: name("web"), UID: "2", Addresses: addresses("10.0.0.1")},
		"4": {NamespacedName: name("taker"), UID: "4", Addresses: addresses("10.0.0.7")},
		"5": {NamespacedName: name("plain"), UID: "5", Addresses: addresses("10.0.0.8"), Ungoverned: true},
		"3": {NamespacedName: name("lost"), UID: "3", Addresses: addresses("10.0.0.4")},
	}
	for id, c := range all {
		states = append(states, &container{Container: c, governed: id != "plain", place: places[id]})
	}
	got := map[types.UID]policy.Local{}
	for _, l := range localsOf(slices.Values(states)) {
		got[l.UID] = l
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("the pods differ (-want +got):\n%s", diff)
	}
}

// A pod without a container counts by its status in the API until the agent knows a container of
// it; afterwards its status does not count, also when the container is gone.
func TestUnrecorded(t *testing.T) {
	lost := api.Pod{Namespace: "shop", Name: "lost", UID: "3"}
	e := New(Options{Pods: PodsAll, Objects: &memory{}, Kernel: NewKernel("", nil)})
	running := Container{Pod: lost, Addresses: addresses("10.0.0.4")}
	recorded := Container{Pod: lost, ID: "c/eth0", Addresses: addresses("10.0.0.4")}
	for i, step := range []struct {
		listed []Container
		want   int
	}{{[]Container{running}, 1}, {[]Container{recorded, running}, 1}, {[]Container{running}, 0}, {nil, 0}, {[]Container{running}, 1}} {
		e.list(step.listed)
		if len(e.containers) != step.want {
			t.Errorf("step %d: %d containers, want %d: %v", i, len(e.containers), step.want, e.containers)
		}
	}
	e.Forget(lost.UID)
	e.list([]Container{running})
	if len(e.containers) != 0 {
		t.Errorf("a pod whose network is gone counts: %v", e.containers)
	}
}

// Trace names the deciding policy and rule, and the rules of the kernel; rules in force are shown
// and counted.
func TestTraceAndShow(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	if text, err := w.enforcer.Trace(inquiry.PolicyTrace{From: "shop/db", To: "10.0.0.1", Port: 80, Protocol: "TCP"}); err == nil || !strings.Contains(err.Error(), "not known here") {
		t.Errorf("Trace() = %q, %v", text, err)
	}
	w.set(allow("db", "db", "web"))
	db, web, other := w.newPod("db", "10.1.0.1"), w.newPod("web", "10.1.0.2"), w.newPod("other", "10.1.0.3")
	for _, p := range []*pod{db, web, other} {
		w.add(p, "routed")
	}
	direct := w.newPod("direct", "10.0.60.21")
	w.add(direct, "macvlan")
	w.set(allow("direct", "direct", "web"))
	w.eventually("the pod's own rules apply", func() bool { return w.applies(direct.Host) })
	for _, test := range []struct {
		from, to string
		want     []string
	}{
		{"shop/web", "shop/db", []string{
			"shop/web (10.1.0.2) to shop/db (10.1.0.1), TCP port 80", "egress from shop/web, on the node: passes: no policy selects the pod in this direction",
			"ingress to shop/db: policies that select it: NetworkPolicy shop/db\n", "ingress to shop/db, on the node: passes: by NetworkPolicy shop/db, Ingress rule 0", "chain ingress:", "ip saddr @a4-",
		}},
		{"10.1.0.3", "shop/db", []string{"shop/other (10.1.0.3) to", "ingress to shop/db, on the node: dropped: by default deny of NetworkPolicies, Ingress", "drop"}},
		{"192.0.2.1", "10.1.0.1", []string{"egress from 192.0.2.1: not a pod of this node", "dropped"}},
		{"shop/db", "shop/db", []string{"a pod always reaches itself"}},
		{"shop/other", "shop/direct", []string{"in the pod's namespace, by eth0 past the node: dropped", "chain input: "}},
		{"shop/db", "192.0.2.1", []string{"passes: no policy selects the pod in this direction", "ingress to 192.0.2.1: not a pod of this node"}},
	} {
		text, err := w.enforcer.Trace(inquiry.PolicyTrace{From: test.from, To: test.to, Port: 80, Protocol: "tcp"})
		if err != nil {
			t.Errorf("from %s to %s: %v", test.from, test.to, err)
			continue
		}
		t.Log(text)
		if got, want := inquiry.IsDropped(text), strings.Contains(strings.Join(test.want, " "), inquiry.Dropped); got != want {
			t.Errorf("from %s to %s: it is dropped: %t, want %t", test.from, test.to, got, want)
		}
		for _, want := range test.want {
			if !strings.Contains(text, want) {
				t.Errorf("from %s to %s: lacks %q:\n%s", test.from, test.to, want, text)
			}
		}
	}
	for _, wrong := range []inquiry.PolicyTrace{
		{From: "192.0.2.1", To: "192.0.2.2", Protocol: "TCP"}, {From: "shop/none", To: "shop/db", Protocol: "TCP"}, {From: "db", To: "shop/db", Protocol: "TCP"},
		{From: "shop/web", To: "shop/db", Protocol: "ICMP"}, {From: "2001:db8::1", To: "shop/db", Protocol: "TCP"},
	} {
		if text, err := w.enforcer.Trace(wrong); err == nil {
			t.Errorf("Trace(%+v) = %s", wrong, text)
		}
	}

	if reaches(other.Host, db) {
		t.Error("other reaches db")
	}
	w.eventually("web reaches db", func() bool { return reaches(web.Host, db) })
	in := w.enforcer.Inspect()
	if !in.Known || in.Tables != 2 || in.Rules == 0 || in.Elements == 0 || len(in.Failures)+len(in.Unenforced)+len(in.Problems) > 0 {
		t.Errorf("Inspect() = %+v", in)
	}
	if err := w.enforcer.Ready(); err != nil {
		t.Errorf("Ready() = %v", err)
	}
	packets := w.enforcer.packets(t.Context())
	for about, some := range map[counted]bool{
		{"NetworkPolicy", "shop", "db", "Ingress", "accept"}:     true,
		{"", "", "", "Ingress", "drop"}:                          true,
		{"NetworkPolicy", "shop", "direct", "Ingress", "accept"}: false,
	} {
		if number, there := packets[about]; !there || (number > 0) != some {
			t.Errorf("%+v counts %d, there %t, want some: %t", about, number, there, some)
		}
	}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(w.enforcer.Collector())
	if _, err := registry.Gather(); err != nil {
		t.Errorf("the metrics: %v", err)
	}
}

// A pod that can change its own rules is told where they are in its namespace.
func TestTellNetAdmin(t *testing.T) {
	w := newTopology(t)
	w.set(allow("policy", "direct"))
	w.set(allow("routed", "routed"))
	direct, routed := w.newPod("direct", "10.0.60.21"), w.newPod("routed", "10.1.0.1")
	direct.NetAdmins, routed.NetAdmins = []string{"vpn"}, []string{"vpn"}
	w.add(direct, "macvlan")
	w.add(routed, "routed")
	said := func(text string) bool {
		w.events.mu.Lock()
		defer w.events.mu.Unlock()
		return slices.ContainsFunc(w.events.notes, func(note string) bool { return strings.Contains(note, text) })
	}
	w.eventually("the pod's event", func() bool {
		return said("Pod direct " + EventNotEnforced + ": network policies for eth0 can be passed by the containers vpn")
	})
	if said("Pod routed") {
		t.Errorf("the events are %q", w.events.notes)
	}
}

// A pod whose packets nothing sees, and a policy that cannot be carried out, are told once.
func TestTell(t *testing.T) {
	w := newTopology(t)
	w.set(allow("db", "db"))
	db := w.newPod("db", "10.1.0.1")
	w.add(db, "routed")
	w.enforcer.mu.Lock()
	w.enforcer.containers[db.ID].place = place.Place{Unseen: map[string]place.Reason{"eth0": place.L3S}}
	w.enforcer.mu.Unlock()
	broken := allow("broken", "db")
	broken.Spec.PodSelector.MatchLabels = map[string]string{"a b": "c"}
	w.set(broken)
	said := func(text string) (times int) {
		w.events.mu.Lock()
		defer w.events.mu.Unlock()
		for _, note := range w.events.notes {
			times += strings.Count(note, text)
		}
		return times
	}
	w.eventually("the pod's event", func() bool { return said("Pod db "+EventNotEnforced+": network policies do not hold for eth0") == 1 })
	w.enforcer.refresh(t.Context(), w)
	w.enforcer.refresh(t.Context(), w)
	if said(EventNotEnforced) != 1 {
		t.Errorf("events: %q", w.events.notes)
	}
	w.cluster.Do(func() { w.cluster.unserved = errors.New("not served") })
	w.enforcer.Soon()
	w.eventually("the definition's event", func() bool {
		return said("CustomResourceDefinition clusternetworkpolicies.policy.networking.k8s.io "+EventNotServed+": not served") == 1
	})
	if in := w.enforcer.Inspect(); len(in.Unenforced) != 1 || len(in.Problems) != 2 {
		t.Errorf("Inspect() = %+v", in)
	}
}

// Cleanup finds the rules in the namespaces of pods, and only these.
func TestLeftovers(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	folder := t.TempDir()
	w.set(allow("db", "db"))
	db, web := w.newPod("db", "10.0.60.21"), w.newPod("web", "10.0.60.22")
	w.add(db, "macvlan")
	w.add(web, "macvlan")
	w.end()
	if err := gate.Close(web.Path()); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"db": db.Path(), "web": web.Path(), "node": w.node.Path(), "gone": "/run/none", "file": "/etc/hostname"} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	w.node.Run(func() error {
		items, err := Leftovers(folder)
		for _, item := range items {
			names = append(names, filepath.Base(item.Name))
			err = errors.Join(err, item.Remove())
		}
		return err
	})
	if diff := cmp.Diff([]string{"db", "web"}, names); diff != "" {
		t.Errorf("the leftovers differ (-want +got):\n%s", diff)
	}
	if w.has(db.Host) || !w.has(w.node) {
		t.Errorf("tables: in the pod %t, on the node %t", w.has(db.Host), w.has(w.node))
	}
	other := netnstest.New(t)
	other.Run(func() error {
		items, err := Leftovers(folder)
		if len(items) != 1 {
			t.Errorf("%d things are left besides the rules of what was the node, which is none here", len(items)-1)
		}
		return err
	})
	if items, err := Leftovers(filepath.Join(folder, "none")); len(items) > 0 || err != nil {
		t.Errorf("Leftovers() of no folder = %v, %v", items, err)
	}
}

// A listing that began before the end of an ADD does not count: its containers are older than the
// ADD's.
func TestListDuringADD(t *testing.T) {
	e := New(Options{Pods: PodsAll, Objects: &memory{}, Kernel: NewKernel("", nil)})
	c := Container{Pod: api.Pod{Namespace: "shop", Name: "db", UID: "1"}, ID: "c/eth0", NetNS: "/run/none", Addresses: addresses("10.0.0.1")}
	early := c
	early.Addresses = nil
	has := func() int { return len(e.containers[c.ID].Addresses) }
	e.note(c, nil)
	e.Attached(c.ID)
	if e.list([]Container{early}); has() != 1 {
		t.Error("a listing of before the end of the ADD took the pod's address")
	}
	e.settle()
	if e.list([]Container{c}); has() != 1 || e.containers[c.ID].phase != listed {
		t.Errorf("after the ADD: %+v", e.containers[c.ID])
	}
	// A second ADD of the container begins after the listing began, and may end before the listing
	// ends.
	for _, ends := range []bool{false, true} {
		e.settle()
		e.note(c, nil)
		if ends {
			e.Attached(c.ID)
		}
		if e.list([]Container{early}); has() != 1 {
			t.Errorf("a listing of before a second ADD took the pod's address; the ADD has ended: %t", ends)
		}
	}
	e.Detached(c.ID)
	if e.list(nil); e.containers[c.ID].phase != going {
		t.Errorf("after a failed ADD: %+v", e.containers[c.ID])
	}
}

// A container goes with its table, and one that comes back meanwhile stays.
func TestGoing(t *testing.T) {
	e := New(Options{Pods: PodsAll, Objects: &memory{}, Kernel: NewKernel("", nil)})
	c := Container{Pod: api.Pod{Namespace: "shop", Name: "db", UID: "1"}, ID: "c/eth0", NetNS: "/run/none", Addresses: addresses("10.0.0.1")}
	for _, comesBack := range []bool{false, true} {
		e.list([]Container{c})
		e.ensureTargets()
		e.list(nil)
		j := e.start(c.ID)
		if j == nil || !j.gone {
			t.Fatalf("the job of a container that goes is %+v", j)
		}
		if comesBack {
			e.list([]Container{c})
			e.ensureTargets()
		}
		if e.finish(j); (e.containers[c.ID] != nil) != comesBack {
			t.Errorf("the container is known: %t, want %t", !comesBack, comesBack)
		}
	}
	if s := e.containers[c.ID]; s.phase != listed || s.target == nil || s.target.gone || s.target.written != nil {
		t.Errorf("a container that came back is %+v, its table %+v", s, s.target)
	}
}
