// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/cluster"
	"github.com/berth-dev/berth/agent/policy/gate"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/port"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
)

// memory is a cluster in memory, all of which is known at once.
type memory struct {
	mu   sync.Mutex
	sink cluster.Sink
	// labels of namespaces.
	labels map[string]map[string]string
	pods   []*policy.Pod
	// known is closed when Wait returns, and before, if given, runs until then.
	known  chan struct{}
	before func()
	// unserved is of Unserved.
	unserved error
}

func (m *memory) Namespaces() iter.Seq2[string, map[string]string] { return maps.All(m.labels) }

func (m *memory) Pods(namespace string) iter.Seq[*policy.Pod] {
	return func(yield func(*policy.Pod) bool) {
		for _, p := range m.pods {
			if p.Namespace == namespace && !yield(p) {
				return
			}
		}
	}
}

func (m *memory) Pod(name types.NamespacedName) *policy.Pod {
	for _, p := range m.pods {
		if p.NamespacedName == name {
			return p
		}
	}
	return nil
}

func (m *memory) Run(ctx context.Context, sink cluster.Sink) error {
	m.Do(func() {
		m.sink = sink
		if m.before != nil {
			m.before()
		}
	})
	close(m.known)
	<-ctx.Done()
	return nil
}

func (m *memory) Do(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *memory) HasSynced() bool {
	select {
	case <-m.known:
		return true
	default:
		return false
	}
}

func (m *memory) Wait(ctx context.Context) error {
	select {
	case <-m.known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *memory) Ensure(context.Context, types.NamespacedName, types.UID) error { return nil }

func (m *memory) Unserved() (err error) {
	m.Do(func() { err = m.unserved })
	return err
}

func (m *memory) Held() (held cluster.Held) {
	m.Do(func() { held.Pods = len(m.pods) })
	return held
}

// onNode is the kernel of a test's node.
type onNode struct {
	*netnstest.Host
	place.Shower
	backend Backend
	faults
}

// faults are what a kernel does that fails; each may be nil.
type faults struct {
	// refuse, hide and unguard return the kernel's error for tables, for places and for ports.
	refuse, hide, unguard func() error
	// unlist returns the kernel's error for the addresses of the node.
	unlist func() error
	// look returns the connections that a namespace shows instead of these, its own.
	look func(netns string, all []socket.Connection) []socket.Connection
}

func (k onNode) kernel() Kernel {
	return Kernel{
		Table: k.Table, Find: k.Find, IsNode: k.IsNode, NodeAddresses: k.NodeAddresses, Show: k.Show, Guard: k.Guard, Connections: k.Connections,
		Flows: k.Flows, EndOf: k.EndOf, DropQueued: k.DropQueued, Close: gate.Close, Open: gate.Open,
	}
}

func (k onNode) Table(netns string) Table {
	if netns == "" {
		netns = k.Path()
	}
	return refusing{k.backend.Open(netns), k.refuse}
}

// refusing is a table of a kernel that may have no memory left.
type refusing struct {
	Table
	refuse func() error
}

func (r refusing) Apply(ctx context.Context, rs *ruleset.Ruleset) error {
	if r.refuse != nil {
		if err := r.refuse(); err != nil {
			return err
		}
	}
	return r.Table.Apply(ctx, rs)
}

func (k onNode) Find(netns string, names []string) (p place.Place, err error) {
	if k.hide != nil {
		if err := k.hide(); err != nil {
			return place.Place{}, err
		}
	}
	_ = k.Try(func() error { p, err = place.Find(netns, names); return nil })
	return p, err
}

func (k onNode) IsNode(netns string) (is bool, err error) {
	_ = k.Try(func() error { is, err = place.IsNode(netns); return nil })
	return is, err
}

func (k onNode) NodeAddresses() (own, dns []netip.Addr, err error) {
	if k.unlist != nil {
		if err := k.unlist(); err != nil {
			return nil, nil, err
		}
	}
	err = k.Try(func() error { own, dns, err = place.NodeAddresses(); return err })
	return own, dns, err
}

func (k onNode) Show(bridge string) error {
	return k.Try(func() error { return k.Shower.Show(bridge) })
}
func (k onNode) Guard(ports []place.Port) error {
	if k.unguard != nil {
		if err := k.unguard(); err != nil {
			return err
		}
	}
	return k.Try(func() error { return port.Guard(ports) })
}
func (k onNode) EndOf(addrs []netip.Addr) error {
	return k.Try(func() error { return conntrack.EndOf(addrs) })
}
func (k onNode) Flows(yield func(*conntrack.Flow) bool) error {
	return k.Try(func() error { return NewKernel(BackendNFTables, nil).Flows(yield) })
}
func (k onNode) DropQueued(addresses []netip.Addr) error {
	return k.Try(func() error { return rtnl.DropQueued(addresses) })
}
func (k onNode) Connections(netns string) ([]socket.Connection, error) {
	all, err := socket.Connections(netns)
	if k.look != nil {
		all = k.look(netns, all)
	}
	return all, err
}

// topology is a node that routes between its pods, on veth pairs, on a bridge and on macvlan links.
type topology struct {
	t       *testing.T
	node    *netnstest.Host
	cluster *memory
	events  *recorder

	// pods are the governed ones.
	pods    Pods
	backend Backend

	mu     sync.Mutex
	listed []Container

	enforcer *Enforcer
	end      func()
	// faults are of onNode.
	faults
	// made are all pods that were made.
	made []*pod
	// sysctlRoot is the path of /proc/sys where it is another.
	sysctlRoot string
}

// recorder keeps the notes of events.
type recorder struct {
	mu    sync.Mutex
	notes []string
}

func (r *recorder) Eventf(about, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := ""
	if ref, ok := about.(*corev1.ObjectReference); ok {
		name = ref.Kind + " " + ref.Name
	}
	r.notes = append(r.notes, name+" "+reason+": "+fmt.Sprintf(note, args...))
}

func newTopology(t *testing.T) *topology { return newTopologyOf(t, BackendNFTables) }

func newTopologyOf(t *testing.T, b Backend) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, node: netnstest.New(t), pods: PodsAll, backend: b, events: &recorder{}, cluster: &memory{
		labels: map[string]map[string]string{"shop": {"kubernetes.io/metadata.name": "shop"}}, known: make(chan struct{}),
	}}
	w.node.IPBatch(`link add uplink type veth peer name switch
link set uplink up
link set switch up
addr add 10.0.60.11/24 dev uplink
link add cni0 type bridge
link set cni0 up
addr add 10.244.0.1/24 dev cni0
`)
	if _, err := w.node.Command("sysctl", "-w", "net.ipv4.ip_forward=1"); err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

func (w *topology) Policed() []Container {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.listed)
}

func (w *topology) WaitForPods(context.Context) bool { return true }

// start starts an agent's enforcer.
func (w *topology) start() {
	w.cluster.known = make(chan struct{})
	ctx, cancel := context.WithCancel(w.t.Context())
	w.enforcer = New(Options{Pods: w.pods, Objects: w.cluster, Kernel: onNode{w.node, place.Shower{SysctlRoot: cmp.Or(w.sysctlRoot, "/proc/sys")}, w.backend, w.faults}.kernel(), Events: w.events})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.enforcer.Run(ctx, w); err != nil {
			w.t.Errorf("Run() = %v", err)
		}
	}()
	w.end = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(w.end)
	if err := w.enforcer.known(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// pod is a pod of the node.
type pod struct {
	*netnstest.Host
	Container
	api *policy.Pod
}

// newPod is a pod of the app of its name that the API knows, and whose network is not made.
func (w *topology) newPod(name, address string) *pod { return w.newPodOf(name, name, address) }

func (w *topology) newPodOf(app, name, address string) *pod {
	p := &pod{Host: netnstest.New(w.t)}
	p.Container = Container{Pod: api.Pod{Namespace: "shop", Name: name, UID: "uid-" + name}, ID: "c-" + name + "/eth0", NetNS: p.Path(), Interfaces: []string{"eth0"}}
	p.api = &policy.Pod{NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}}
	w.cluster.Do(func() {
		w.cluster.pods = append(w.cluster.pods, p.api)
		w.cluster.sink.SetPod(nil, p.api)
	})
	p.Addresses = []netip.Addr{netip.MustParseAddr(address)}
	w.made = append(w.made, p)
	return p
}

// wire gives the pod its network, as a plugin does.
func (w *topology) wire(p *pod, kind string) {
	short := p.Pod.Name
	address := p.Addresses[0].String()
	switch kind {
	case "routed":
		w.node.IPBatch("link add v" + short + " type veth peer name eth0 netns " + p.Path() + "\nlink set v" + short + " up\n" +
			"addr add 169.254.1.1/32 dev v" + short + "\nroute add " + address + " dev v" + short + "\n")
		p.IPBatch("link set eth0 up\naddr add " + address + "/32 dev eth0\nroute add 169.254.1.1 dev eth0\nroute add default via 169.254.1.1 dev eth0\n")
	case "routed6":
		w.node.IPBatch("link add v" + short + " type veth peer name eth0 netns " + p.Path() + "\nlink set v" + short + " up\n" +
			"addr add fe80::1/64 dev v" + short + " nodad\nroute add " + address + " dev v" + short + "\n")
		p.IPBatch("link set eth0 up\naddr add " + address + "/128 dev eth0 nodad\nroute add default via fe80::1 dev eth0\n")
	case "bridge":
		w.node.IPBatch("link add v" + short + " type veth peer name eth0 netns " + p.Path() + "\nlink set v" + short + " master cni0 up\n")
		p.IPBatch("link set eth0 up\naddr add " + address + "/24 dev eth0\nroute add default via 10.244.0.1\n")
	case "macvlan":
		w.node.IPBatch("link add eth0 link uplink netns " + p.Path() + " type macvlan mode bridge\n")
		p.IPBatch("link set eth0 up\naddr add " + address + "/24 dev eth0\n")
	case "linked":
		// As Berth's own direct types.
		w.wire(p, "macvlan")
		w.node.IPBatch("link add v" + short + " type veth peer name up0 netns " + p.Path() + "\nlink set v" + short + " up\n" +
			"route add " + address + " dev v" + short + " src 10.0.60.11\n")
		p.IPBatch("link set up0 up\nroute add 10.0.60.11 dev up0\n")
	}
}

// add makes the calls of an ADD.
func (w *topology) add(p *pod, kind string) {
	w.t.Helper()
	if err := w.enforcer.Prepare(w.t.Context(), p.Container); err != nil {
		w.t.Fatal(err)
	}
	w.wire(p, kind)
	if err := w.enforcer.Enforce(w.t.Context(), p.Container); err != nil {
		w.t.Fatal(err)
	}
	w.list(p)
	w.enforcer.Attached(p.ID)
}

func (w *topology) list(p *pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed = append(w.listed, p.Container)
}

// del makes the calls of a DEL.
func (w *topology) del(p *pod) {
	w.mu.Lock()
	w.listed = slices.DeleteFunc(w.listed, func(c Container) bool { return c.ID == p.ID })
	w.mu.Unlock()
	w.enforcer.Detached(p.ID)
}

// allow is a policy that lets only pods of certain apps reach the pods of an app.
func allow(name, to string, from ...string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": to}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
	for _, app := range from {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
		})
	}
	return p
}

func (w *topology) set(p *networkingv1.NetworkPolicy) {
	w.cluster.Do(func() { w.cluster.sink.SetNetworkPolicy(p) })
}

func (w *topology) unset(p *networkingv1.NetworkPolicy) {
	w.cluster.Do(func() { w.cluster.sink.DeletePolicy(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}) })
}

// applies returns whether the rules of policies apply in a namespace. A new table has its sets and
// chains first, and its hooks after them.
func (w *topology) applies(h *netnstest.Host) bool {
	w.t.Helper()
	return w.has(h) && strings.Contains(mustNFT(w.t, h), " hook ")
}

// has returns whether a namespace has a table of policies.
func (w *topology) has(h *netnstest.Host) bool {
	w.t.Helper()
	out, err := h.Command("nft", "list", "tables")
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Contains(out, ruleset.TableName)
}

func (w *topology) eventually(what string, is func() bool) {
	w.t.Helper()
	came := false
	defer func() {
		if !came {
			w.t.Log(w.state())
		}
	}()
	netnstest.Eventually(w.t, func() error {
		if !is() {
			return fmt.Errorf("not yet: %s", what)
		}
		return nil
	})
	came = true
}

func reaches(from *netnstest.Host, to *pod) bool {
	_, err := from.Command("ping", "-c", "1", "-W", "1", to.Addresses[0].String())
	return err == nil
}

// answers is reaches where the answer must come, however busy the machine is.
func answers(from *netnstest.Host, to *pod) bool {
	_, err := from.Command("ping", "-c", "1", "-w", "60", to.Addresses[0].String())
	return err == nil
}

// Policies hold for pods of each kind from their ADD on, follow changes, and leave nothing.
func TestKinds(t *testing.T) {
	for kind, addresses := range map[string][3]string{
		"routed":  {"10.1.0.1", "10.1.0.2", "10.1.0.3"},
		"bridge":  {"10.244.0.11", "10.244.0.12", "10.244.0.13"},
		"macvlan": {"10.0.60.21", "10.0.60.22", "10.0.60.23"},
	} {
		t.Run(kind, func(t *testing.T) {
			w := newTopology(t)
			policy := allow("db", "db", "web")
			w.set(policy)
			db, web, other := w.newPod("db", addresses[0]), w.newPod("web", addresses[1]), w.newPod("other", addresses[2])
			for _, p := range []*pod{db, web, other} {
				w.add(p, kind)
			}
			// The rule for the pods that came later is followed, which ADD does not wait for.
			w.eventually("web reaches db", func() bool { return reaches(web.Host, db) })
			if reaches(other.Host, db) {
				t.Error("other reaches db")
			}
			if !answers(other.Host, web) || !answers(db.Host, other) {
				t.Error("pods without a policy are not reached")
			}
			if kind != "macvlan" && !answers(w.node, db) {
				t.Error("the node does not reach db")
			}
			if direct := w.has(db.Host); direct != (kind == "macvlan") {
				t.Errorf("the pod has a table: %t", direct)
			}
			w.set(allow("db", "db", "other"))
			w.eventually("other reaches db", func() bool { return reaches(other.Host, db) })
			w.eventually("web does not reach db", func() bool { return !reaches(web.Host, db) })
			w.unset(policy)
			w.eventually("web reaches db without a policy", func() bool { return reaches(web.Host, db) })
			w.eventually("no table is left", func() bool { return !w.has(w.node) && !w.has(db.Host) })
			for _, p := range []*pod{db, web, other} {
				w.del(p)
			}
		})
	}
}

// A packet that passed the node before its rules were known, and that waited for the pod's
// link-layer address until they were in the kernel, does not come to the pod.
func TestPacketsThatWait(t *testing.T) {
	for name, governed := range map[string]bool{"governed": true, "not governed": false} {
		t.Run(name, func(t *testing.T) {
			w := newTopology(t)
			w.set(allow("db", map[bool]string{true: "db", false: "somebody"}[governed]))
			other, db := w.newPod("other", "10.1.0.2"), w.newPod("db", "10.1.0.1")
			w.add(other, "routed")
			// Its addresses are known when the plugins have made its interfaces.
			before := db.Container
			before.Addresses = nil
			if err := w.enforcer.Prepare(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			w.wire(db, "routed")
			db.IP("link", "set", "eth0", "arp", "off")
			w.node.Run(func() error {
				return os.WriteFile("/proc/sys/net/ipv4/neigh/vdb/mcast_solicit", []byte("1000"), 0o644)
			})
			came, pinged := hear(t, db.Host), make(chan bool)
			go func() { pinged <- reaches(other.Host, db) }()
			_ = flood(t, other.Host, "10.1.0.1")
			w.eventually("packets wait", func() bool {
				return strings.Contains(w.node.IP("neigh", "show", "10.1.0.1"), "INCOMPLETE")
			})
			if err := w.enforcer.Enforce(t.Context(), db.Container); err != nil {
				t.Fatal(err)
			}
			db.IP("link", "set", "eth0", "arp", "on")
			w.eventually("the pod's link-layer address is known", func() bool { return reaches(w.node, db) })
			if governed {
				if <-pinged || came.Load() > 0 {
					t.Errorf("%d packets came that had waited", came.Load())
				}
				return
			}
			<-pinged
			w.eventually("packets come", func() bool { return came.Load() > 0 })
		})
	}
}

// Packets that the node sends for others, as kube-proxy does in mode ipvs, are judged by the pods
// at their ends; the node's own packets always arrive.
func TestPacketsThatTheNodeSends(t *testing.T) {
	w := newTopology(t)
	egress := allow("web", "web")
	egress.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	w.set(allow("db", "db", "web"))
	db, web, other := w.newPod("db", "10.1.0.1"), w.newPod("web", "10.1.0.2"), w.newPod("other", "10.1.0.3")
	for _, p := range []*pod{db, web, other} {
		w.add(p, "routed")
	}
	var heard net.PacketConn
	db.Run(func() (err error) { heard, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", discard)); return err })
	defer heard.Close()
	send := func(source string) {
		t.Helper()
		w.node.Run(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil {
				return err
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(source).As4()}); err != nil {
				return err
			}
			err = unix.Sendto(fd, []byte(source), 0, &unix.SockaddrInet4{Addr: db.Addresses[0].As4(), Port: discard})
			if errors.Is(err, unix.EPERM) {
				return nil // the error of a rule that drops
			}
			return err
		})
	}
	// Packets of different CPUs may overtake each other.
	comes := func(want ...string) {
		t.Helper()
		left := slices.Clone(want)
		for _, source := range []string{"10.1.0.2", "10.1.0.3", "10.0.60.11"} {
			send(source)
		}
		for buffer := make([]byte, 1500); len(left) > 0; {
			_ = heard.SetReadDeadline(time.Now().Add(time.Minute))
			n, _, err := heard.ReadFrom(buffer)
			if err != nil {
				t.Fatalf("no packet comes from %q: %v", left, err)
			}
			source := string(buffer[:n])
			if !slices.Contains(want, source) {
				t.Errorf("a packet comes from %s, want those from %q alone", source, want)
			}
			left = slices.DeleteFunc(left, func(s string) bool { return s == source })
		}
	}
	w.eventually("the rules are there", func() bool { return w.applies(w.node) })
	comes("10.1.0.2", "10.0.60.11")
	w.set(egress)
	w.eventually("the rules are there", func() bool { return strings.Contains(mustNFT(t, w.node), "10.1.0.2 : goto") })
	comes("10.0.60.11")
}

// No packet of a flood that began before the ADD is answered.
func TestFirstInstant(t *testing.T) {
	for kind, addresses := range map[string][2]string{
		"routed": {"10.1.0.1", "10.1.0.2"}, "bridge": {"10.244.0.11", "10.244.0.12"}, "macvlan": {"10.0.60.21", "10.0.60.22"},
	} {
		t.Run(kind, func(t *testing.T) {
			for _, denied := range []bool{false, true} {
				w := newTopology(t)
				if denied {
					w.set(allow("db", "db"))
				} else {
					w.set(allow("db", "somebody"))
				}
				other, db := w.newPod("other", addresses[1]), w.newPod("db", addresses[0])
				w.add(other, kind)
				if kind != "routed" {
					// Known neighbours: the first packet after the link is up is for the pod.
					other.IP("neigh", "replace", addresses[0], "lladdr", podMAC, "dev", "eth0", "nud", "permanent")
				}
				// Packets to it are dropped in silence until it is there.
				w.node.IP("route", "add", "blackhole", addresses[0], "metric", "9999")
				flood := make(chan string)
				go func() {
					out, _ := other.Command("ping", "-i", "0.002", "-w", "3", "-q", addresses[0])
					flood <- out
				}()
				if err := w.enforcer.Prepare(t.Context(), db.Container); err != nil {
					t.Fatal(err)
				}
				w.wire(db, kind)
				if kind != "routed" {
					db.IP("link", "set", "eth0", "address", podMAC)
				}
				<-time.After(500 * time.Millisecond) // a slow plugin
				if err := w.enforcer.Enforce(t.Context(), db.Container); err != nil {
					t.Fatal(err)
				}
				out := <-flood
				if none := strings.Contains(out, " 0 received"); none != denied {
					t.Errorf("denied %t: %s", denied, out)
				}
				w.end()
			}
		})
	}
}

const podMAC = "0a:58:00:00:00:01"

// Rules that another program deletes come back, also in the namespace of a pod.
func TestDeletedRules(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	w.set(allow("db", "db", "web"))
	db, other := w.newPod("db", "10.0.60.21"), w.newPod("other", "10.0.60.22")
	w.add(db, "macvlan")
	w.add(other, "macvlan")
	for _, h := range []*netnstest.Host{db.Host, w.node} {
		if _, err := h.Command("nft", "delete", "table", "inet", ruleset.TableName); err != nil {
			t.Fatal(err)
		}
		w.enforcer.Recheck()
		w.eventually("the rules are back", func() bool { return w.applies(h) })
	}
	if reaches(other.Host, db) {
		t.Error("other reaches db")
	}
	chain := strings.TrimSpace(strings.Split(strings.SplitN(mustNFT(t, db.Host), "chain i4-", 2)[1], " ")[0])
	if _, err := db.Command("nft", "flush", "chain", "inet", ruleset.TableName, "i4-"+chain); err != nil {
		t.Fatal(err)
	}
	if !answers(other.Host, db) {
		t.Error("the test deleted nothing that matters")
	}
	w.enforcer.Recheck()
	w.eventually("the rule is back", func() bool { return !reaches(other.Host, db) })
}

func mustNFT(t *testing.T, h *netnstest.Host) string {
	t.Helper()
	out, err := h.Command("nft", "list", "table", "inet", ruleset.TableName)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A connection that began while the rules were gone ends when they are back, if they forbid it.
func TestConnectionsWhileRulesAreGone(t *testing.T) {
	for kind, addresses := range map[string][2]string{"routed": {"10.1.0.1", "10.1.0.2"}, "macvlan": {"10.0.60.21", "10.0.60.22"}} {
		t.Run(kind, func(t *testing.T) {
			netnstest.NeedLinks(t, "macvlan")
			w := newTopology(t)
			w.set(allow("db", "db"))
			db, other := w.newPod("db", addresses[0]), w.newPod("other", addresses[1])
			w.add(db, kind)
			w.add(other, kind)
			at := map[string]*netnstest.Host{"routed": w.node, "macvlan": db.Host}[kind]
			if _, err := at.Command("nft", "delete", "table", "inet", ruleset.TableName); err != nil {
				t.Fatal(err)
			}
			goes, both := echo(t, other.Host, db), chatterOf(t, other.Host, db)
			if !goes() || both.isSilent() {
				t.Fatal("a connection does not begin, so that the test shows nothing")
			}
			w.enforcer.Recheck()
			w.eventually("the connection that is forbidden ends", func() bool { return !goes() })
			// Also where the first packet that meets the rules is one of the pod itself.
			w.eventually("the connection on which both sides send ends", both.isSilent)
		})
	}
}

// The first policy of a node covers the node's own addresses from the first moment: they are known
// before any policy.
func TestNodeAddressesBeforePolicies(t *testing.T) {
	for _, b := range []Backend{BackendNFTables, BackendIPTablesNFT} {
		t.Run(string(b), func(t *testing.T) {
			w := newTopologyOf(t, b)
			w.end()
			var started atomic.Bool
			w.unlist = func() error {
				if started.Load() {
					return errors.New("no memory left")
				}
				return nil
			}
			w.start()
			started.Store(true)
			w.set(&networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"},
				Spec: networkingv1.NetworkPolicySpec{
					PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
				},
			})
			web, other := w.newPod("web", "10.1.0.1"), w.newPod("other", "10.1.0.2")
			w.add(web, "routed")
			w.add(other, "routed")
			if !reaches(w.node, web) {
				t.Error("the node does not reach its pod")
			}
			node := &pod{Host: w.node, Container: Container{Addresses: addresses("10.0.60.11")}}
			if !reaches(other.Host, node) {
				t.Error("a pod without a policy does not reach its node")
			}
			if reaches(web.Host, node) {
				t.Error("a pod that may reach nothing reaches its node")
			}
		})
	}
}

// A policy that comes after the ADD of a pod that is not on the node's path is in its namespace at
// once, and one that goes while a pod is attached leaves its gate open.
func TestPolicyComesAndGoesWithADD(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	db, other := w.newPod("db", "10.0.60.21"), w.newPod("other", "10.0.60.22")
	w.add(db, "macvlan")
	w.add(other, "macvlan")
	w.set(allow("db", "db"))
	within(t, recheck/2, "the rules apply to the pod", func() bool { return w.applies(db.Host) })
	if reaches(other.Host, db) {
		t.Errorf("other reaches db: %s\nThe rules in its namespace:\n%s", w.state(), mustNFT(t, db.Host))
	}

	for kind, address := range map[string]string{"routed": "10.1.0.1", "macvlan": "10.0.60.23"} {
		policy := allow("late-"+kind, "late-"+kind)
		w.set(policy)
		late := w.newPod("late-"+kind, address)
		if err := w.enforcer.Prepare(t.Context(), late.Container); err != nil {
			t.Fatal(err)
		}
		w.unset(policy)
		late.Pod.Name = "late" // of its link
		w.wire(late, kind)
		late.Pod.Name = "late-" + kind
		if err := w.enforcer.Enforce(t.Context(), late.Container); err != nil {
			t.Fatal(err)
		}
		from := map[string]*netnstest.Host{"routed": w.node, "macvlan": other.Host}[kind]
		if !answers(from, late) {
			t.Errorf("%s: a pod is not reached whose policy went during its ADD", kind)
		}
	}
}

// within is like eventually, with the promised limit.
func within(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// Open connections of the last pod with an address do not reach the next one.
func TestConnectionsOfPredecessor(t *testing.T) {
	w := newTopology(t)
	// Somebody else on the node has connections tracked.
	w.set(allow("other", "other", "first"))
	first, other := w.newPod("first", "10.1.0.1"), w.newPod("other", "10.1.0.2")
	w.add(other, "routed")
	w.add(first, "routed")
	listen := func(h *netnstest.Host) *net.UDPConn {
		var conn *net.UDPConn
		h.Run(func() (err error) { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: 5000}); return err })
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	server := listen(first.Host)
	var client net.Conn
	other.Run(func() (err error) { client, err = net.Dial("udp", "10.1.0.1:5000"); return err })
	defer client.Close()
	// Both ways: the kernel has it as established.
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_, from, err := server.ReadFromUDPAddrPort(make([]byte, 10))
	if err == nil {
		_, err = server.WriteToUDPAddrPort([]byte("hello"), from)
	}
	if err == nil {
		_, err = client.Read(make([]byte, 10))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.node.IP("link", "delete", "vfirst")
	w.del(first)
	first.Remove()

	w.set(allow("second", "second"))
	second := w.newPod("second", "10.1.0.1")
	leaked := listen(second.Host)
	w.add(second, "routed")
	for range 20 {
		_, _ = client.Write([]byte("again"))
	}
	if err := leaked.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := leaked.ReadFromUDPAddrPort(make([]byte, 10)); err == nil {
		t.Error("a connection with the last pod of the address reached the next one, which nobody may reach")
	}
}

// Nothing comes in by an interface that is made again before the policies hold for it, while
// connections by the pod's other one go on.
func TestRemade(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	w.set(allow("db", "db", "web"))
	db, web, other := w.newPod("db", "10.1.0.1"), w.newPod("web", "10.1.0.2"), w.newPod("other", "10.0.60.22")
	w.add(web, "routed")
	w.add(other, "macvlan")
	db.Interfaces = append(db.Interfaces, "net1")
	w.add(db, "routed")
	var server *net.UDPConn
	db.Run(func() (err error) { server, err = net.ListenUDP("udp", &net.UDPAddr{Port: 5000}); return err })
	defer server.Close()
	var client net.Conn
	web.Run(func() (err error) { client, err = net.Dial("udp", "10.1.0.1:5000"); return err })
	defer client.Close()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := server.ReadFromUDPAddrPort(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	tracked := func() bool {
		found := false
		w.node.Run(func() error {
			return NewKernel(BackendNFTables, nil).Flows(func(f *conntrack.Flow) bool { found = found || f.Original.Destination.Port() == 5000; return true })
		})
		return found
	}
	if !tracked() {
		t.Fatal("the connection is not tracked")
	}

	again := db.Container
	again.Remade = map[string][]netip.Addr{"net1": nil}
	if err := w.enforcer.Prepare(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	w.node.IPBatch("link add net1 link uplink netns " + db.Path() + " type macvlan mode bridge\n")
	db.IPBatch("link set net1 up\naddr add 10.0.60.21/24 dev net1\n")
	second := &pod{Container: Container{Addresses: addresses("10.0.60.21")}}
	if reaches(other.Host, second) {
		t.Error("the interface is reached before the policies hold for it")
	}
	if !answers(web.Host, db) {
		t.Error("the pod's other interface is closed meanwhile")
	}
	again.Addresses = append(slices.Clone(again.Addresses), second.Addresses...)
	again.Remade["net1"] = second.Addresses
	if err := w.enforcer.Enforce(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	w.enforcer.Attached(db.ID)
	if reaches(other.Host, second) {
		t.Error("the policies do not hold for the interface")
	}
	if !tracked() {
		t.Error("the connection by the pod's other interface was ended")
	}
	w.set(allow("db", "db", "web", "other"))
	if !answers(other.Host, second) {
		t.Error("the interface stays closed")
	}
}

// Pods on one bridge do not reach each other past their policies by the addresses that the kernel
// gives their links, nor by one that a router announced.
func TestLinkLocal(t *testing.T) {
	w := newTopology(t)
	db, other := w.newPod("db", "10.244.0.11"), w.newPod("other", "10.244.0.12")
	w.add(db, "bridge")
	w.add(other, "bridge")
	db.IP("addr", "add", "fe80::db/64", "dev", "eth0", "nodad")
	db.IP("addr", "add", "2001:db8:244::db/64", "dev", "eth0", "nodad")
	other.IP("addr", "add", "2001:db8:244::2/64", "dev", "eth0", "nodad")
	targets := []string{"fe80::db%eth0", "2001:db8:244::db"}
	pings := func(address string) bool {
		_, err := other.Command("ping", "-c", "1", "-W", "1", address)
		return err == nil
	}
	for _, address := range targets {
		w.eventually("other reaches db without a policy at "+address, func() bool { return pings(address) })
	}
	w.set(allow("db", "db"))
	for _, address := range targets {
		w.eventually("other does not reach db at "+address, func() bool { return !pings(address) })
		// Also not when the neighbour must be found first.
		other.IP("neigh", "flush", "dev", "eth0")
		if pings(address) {
			t.Errorf("other reaches db at %s", address)
		}
	}
	w.set(allow("db", "db", "other"))
	w.eventually("other reaches db at its own address", func() bool { return reaches(other.Host, db) })
}

// A change that the kernel refuses fails the ADD, is shown, and is tried again; pods keep the old
// rules.
func TestRefused(t *testing.T) {
	w := newTopology(t)
	w.end()
	var refused atomic.Bool
	w.refuse = func() error {
		if refused.Load() {
			return unix.ENOMEM
		}
		return nil
	}
	w.start()
	w.set(allow("db", "db"))
	db, other := w.newPod("db", "10.1.0.1"), w.newPod("other", "10.1.0.2")
	w.add(other, "routed")
	w.add(db, "routed")
	refused.Store(true)
	w.set(allow("db", "db", "other"))
	w.eventually("the failure is shown", func() bool { return w.enforcer.Ready() != nil && len(w.enforcer.Inspect().Failures) == 1 })
	if reaches(other.Host, db) {
		t.Error("other reaches db, though the kernel refused the policy that lets it")
	}
	late := w.newPod("late", "10.1.0.3")
	w.set(allow("late", "late"))
	if err := w.enforcer.Prepare(t.Context(), late.Container); err != nil {
		t.Fatal(err)
	}
	w.wire(late, "routed")
	if err := w.enforcer.Enforce(t.Context(), late.Container); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("Enforce() = %v, want %v", err, unix.ENOMEM)
	}
	if reaches(other.Host, late) {
		t.Error("a pod whose policies are not in the kernel is reached")
	}
	w.enforcer.Detached(late.ID)
	refused.Store(false)
	w.eventually("it is tried again", func() bool { return reaches(other.Host, db) })
	w.eventually("the agent is ready", func() bool { return w.enforcer.Ready() == nil && len(w.enforcer.Inspect().Failures) == 0 })
}

// An agent whose records were lost enforces for the pods that the API shows, and the rules stand
// until it knows them; one that starts without policies leaves none.
func TestLostRecords(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	policy := allow("db", "db")
	w.set(policy)
	db, other, direct := w.newPod("db", "10.1.0.1"), w.newPod("other", "10.1.0.2"), w.newPod("direct", "10.0.60.21")
	w.set(allow("direct", "direct"))
	w.add(db, "routed")
	w.add(other, "routed")
	w.add(direct, "macvlan")
	w.end()
	w.mu.Lock()
	for i := range w.listed {
		w.listed[i] = Container{Pod: w.listed[i].Pod, Addresses: w.listed[i].Addresses}
	}
	w.mu.Unlock()
	known := make(chan struct{})
	w.cluster.before = func() {
		<-known
		w.cluster.sink.SetNetworkPolicy(policy)
		for _, p := range w.cluster.pods {
			w.cluster.sink.SetPod(nil, p)
		}
	}
	go func() {
		// The agent runs and knows nothing yet.
		if reaches(other.Host, db) {
			t.Error("other reaches db while the agent knows no policies")
		}
		close(known)
	}()
	w.start()
	w.eventually("the agent has written", func() bool { return w.enforcer.Inspect().Tables == 1 })
	if reaches(other.Host, db) {
		t.Error("other reaches db, whose record is lost")
	}
	w.end()

	// The records are back, and no policy is.
	w.mu.Lock()
	w.listed = []Container{db.Container, other.Container, direct.Container}
	w.mu.Unlock()
	w.cluster.before = nil
	if !w.has(direct.Host) || !w.has(w.node) {
		t.Error("the rules do not stand while the agent is away")
	}
	w.start()
	w.eventually("no table is left", func() bool { return !w.has(w.node) && !w.has(direct.Host) })
	if !answers(other.Host, db) {
		t.Error("other does not reach db without a policy")
	}
}

// The rules of a direct pod stand while the agent cannot find out where the pod's packets can be
// seen, as after a restart; it says so, and looks again soon.
func TestPlaceNotFound(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	policy := allow("direct", "direct")
	w.set(policy)
	direct, other := w.newPod("direct", "10.0.60.21"), w.newPod("other", "10.0.60.22")
	w.add(direct, "macvlan")
	w.add(other, "macvlan")
	w.end()
	w.cluster.before = func() {
		w.cluster.sink.SetNetworkPolicy(policy)
		for _, p := range w.cluster.pods {
			w.cluster.sink.SetPod(nil, p)
		}
	}
	var blind atomic.Bool
	blind.Store(true)
	w.hide = func() error {
		if blind.Load() {
			return unix.ENOBUFS
		}
		return nil
	}
	told := func() bool {
		w.events.mu.Lock()
		defer w.events.mu.Unlock()
		return slices.ContainsFunc(w.events.notes, func(n string) bool {
			return strings.HasPrefix(n, "Pod direct "+EventNotEnforced) && strings.Contains(n, "is not known")
		})
	}
	w.start()
	w.eventually("the pod's event", told)
	// The queue of tables is empty when this write has ended.
	later := w.newPod("later", "10.1.0.3")
	w.cluster.Do(func() { w.enforcer.index.SetPod(nil, later.api) })
	version := w.enforcer.publish()
	w.enforcer.queue.Add(nodeKey)
	if err := w.enforcer.wait(t.Context(), nodeKey, version); err != nil {
		t.Fatal(err)
	}
	if !w.has(direct.Host) || reaches(other.Host, direct) {
		t.Error("the rules of a pod went because its place was not found")
	}
	// An ADD of another attachment of the container does not know the place either.
	w.enforcer.note(direct.Container, nil)
	w.enforcer.Attached(direct.ID)

	w.cluster.Do(func() { w.cluster.sink.SetNetworkPolicy(allow("direct", "direct", "other")) })
	blind.Store(false)
	within(t, 10*time.Second, "the place is found and the newer policy holds", func() bool { return reaches(other.Host, direct) })
	// The kernel has the rules a moment before the write of them has ended.
	within(t, 10*time.Second, "the policies of all pods are enforced", func() bool { return len(w.enforcer.Inspect().Unenforced) == 0 })
}

// A host that sends from the node's address does not reach a direct pod that has an interface to
// its node; the node does, also by connections that are older than a policy.
func TestHostWithNodeAddress(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t)
	outside := netnstest.New(t)
	w.node.IP("link", "set", "switch", "netns", outside.Path())
	outside.IPBatch("link set switch up\naddr add 10.0.60.11/24 dev switch\n")
	w.set(allow("direct", "direct"))
	direct := w.newPod("direct", "10.0.60.21")
	for _, setting := range []string{"all", "default"} {
		if _, err := direct.Command("sysctl", "-w", "net.ipv4.conf."+setting+".rp_filter=0"); err != nil {
			t.Fatal(err)
		}
	}
	w.add(direct, "linked")
	if !answers(w.node, direct) {
		t.Error("the node does not reach its pod")
	}
	came := hear(t, direct.Host)
	sent := flood(t, outside, "10.0.60.21")
	w.eventually("a host sends", func() bool { return sent.Load() > 200 })
	if n := came.Load(); n > 0 {
		t.Errorf("%d datagrams came from a host with the node's address", n)
	}
	goes := echo(t, w.node, direct)
	w.set(allow("direct", "direct", "other"))
	if err := w.enforcer.wait(t.Context(), direct.ID, w.enforcer.publish()); err != nil {
		t.Fatal(err)
	}
	w.eventually("the connections are looked at", func() bool {
		w.enforcer.mu.Lock()
		defer w.enforcer.mu.Unlock()
		return !w.enforcer.containers[direct.ID].target.open
	})
	if !goes() {
		t.Error("a connection of the node ended")
	}
	// Without its rules the datagrams come.
	w.unset(allow("direct", "direct"))
	w.eventually("datagrams come", func() bool { return came.Load() > 0 })
}

// A connection that policies begin to forbid ends; one that they still allow goes on.
func TestConnections(t *testing.T) {
	for kind, addresses := range map[string][3]string{
		"routed": {"10.1.0.1", "10.1.0.2", "10.1.0.3"}, "bridge": {"10.244.0.11", "10.244.0.12", "10.244.0.13"}, "macvlan": {"10.0.60.21", "10.0.60.22", "10.0.60.23"},
	} {
		t.Run(kind, func(t *testing.T) {
			w := newTopology(t)
			db, web, other := w.newPod("db", addresses[0]), w.newPod("web", addresses[1]), w.newPod("other", addresses[2])
			for _, p := range []*pod{db, web, other} {
				w.add(p, kind)
			}
			w.set(allow("db", "db", "web", "other"))
			w.eventually("both reach db", func() bool { return reaches(web.Host, db) && reaches(other.Host, db) })
			fromWeb, fromOther := echo(t, web.Host, db), echo(t, other.Host, db)
			// The first rules may not know all pods, and end connections for a while.
			for _, goes := range []func() bool{fromWeb, fromOther} {
				w.eventually("a connection begins", goes)
			}
			w.set(allow("db", "db", "other"))
			w.eventually("the connection that is forbidden ends", func() bool { return !fromWeb() })
			w.eventually("the connection that is still allowed goes on", fromOther)
		})
	}
}

// A connection that begins while the sockets of its pods are looked at ends where a later policy
// forbids it, also where its server listens no more when it is looked at, so that it looks as if
// the server had begun it.
func TestConnectionDuringLook(t *testing.T) {
	w := newTopology(t)
	w.end()
	db, web := w.newPod("db", "10.1.0.1"), w.newPod("web", "10.1.0.2")
	begin, began := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.look = func(netns string, all []socket.Connection) []socket.Connection {
		// The second look, after which there is none.
		if !w.has(w.node) {
			return all
		}
		if netns == web.Path() {
			// It was looked at before the connection began.
			return nil
		}
		once.Do(func() {
			close(begin)
			<-began
			all, _ = socket.Connections(netns)
			for i, c := range all {
				all[i].From, all[i].To, all[i].Certain = c.To, c.From, false
			}
		})
		return all
	}
	w.start()
	w.add(db, "routed")
	w.add(web, "routed")
	// The first rules know both.
	w.enforcer.refresh(t.Context(), w)
	w.set(allow("db", "db", "web"))
	select {
	case <-begin:
	case <-time.After(time.Minute):
		t.Fatal("nobody looks at the sockets a second time")
	}
	goes := func() func() bool {
		defer close(began)
		goes := echo(t, web.Host, db)
		w.eventually("the connection begins", goes)
		return goes
	}()
	w.set(allow("db", "db"))
	w.eventually("the connection that is forbidden ends", func() bool { return !goes() })
}

// A connection that policies begin to forbid ends also while the ports of a bridge cannot be
// guarded.
func TestConnectionsWithoutGuard(t *testing.T) {
	w := newTopology(t)
	w.end()
	var fails atomic.Bool
	w.unguard = func() error {
		if fails.Load() {
			return unix.EOPNOTSUPP
		}
		return nil
	}
	w.start()
	db, web := w.newPod("db", "10.244.0.11"), w.newPod("web", "10.244.0.12")
	w.set(allow("db", "db", "web"))
	w.add(db, "bridge")
	w.add(web, "bridge")
	goes := echo(t, web.Host, db)
	w.eventually("the connection begins", goes)
	fails.Store(true)
	// One port more is to be guarded.
	w.set(allow("web", "web"))
	w.eventually("the failure is shown", func() bool { return w.enforcer.Ready() != nil })
	w.set(allow("db", "db"))
	w.eventually("the connection that is forbidden ends", func() bool { return !goes() })
	if w.enforcer.Ready() == nil {
		t.Error("the agent is ready though the ports are not guarded")
	}
	late := w.newPod("late", "10.244.0.13")
	w.set(allow("late", "late"))
	if err := w.enforcer.Prepare(t.Context(), late.Container); err != nil {
		t.Fatal(err)
	}
	w.wire(late, "bridge")
	if err := w.enforcer.Enforce(t.Context(), late.Container); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("Enforce() = %v, want %v", err, unix.EOPNOTSUPP)
	}
}

// A change that comes while a table is written again after a failure is written soon.
func TestChangeDuringRetry(t *testing.T) {
	w := newTopology(t)
	w.end()
	other := w.newPod("other", "10.1.0.2")
	var tries atomic.Int32
	w.refuse = func() error {
		switch tries.Add(1) {
		case 1:
			return unix.ENOMEM
		case 2:
			// The pod is no peer any more.
			labeled := *other.api
			labeled.Labels = map[string]string{"app": "another"}
			w.cluster.Do(func() {
				w.cluster.pods[slices.Index(w.cluster.pods, other.api)] = &labeled
				w.cluster.sink.SetPod(other.api, &labeled)
			})
		}
		return nil
	}
	db := w.newPod("db", "10.1.0.1")
	w.start()
	w.add(other, "routed")
	w.add(db, "routed")
	w.enforcer.refresh(t.Context(), w)
	w.cluster.Do(func() {
		// Not as one of a policy, which has the containers listed again, and all tables written after
		// that.
		w.enforcer.index.Told = nil
		w.enforcer.index.SetNetworkPolicy(allow("db", "db", "other"))
		w.enforcer.index.Told = w.enforcer.told
		w.enforcer.told(false)
	})
	within(t, recheck/2, "the change is written", func() bool { return tries.Load() >= 2 && !reaches(other.Host, db) })
}

// A connection that is older than all policies of its pods ends where the first policy forbids it,
// and goes on where it allows it, whichever side's packet comes first after that, and whichever
// side has the policy.
func TestOlderConnections(t *testing.T) {
	kinds := map[string][3]string{
		"routed": {"10.1.0.1", "10.1.0.2", "10.1.0.3"}, "bridge": {"10.244.0.11", "10.244.0.12", "10.244.0.13"}, "macvlan": {"10.0.60.21", "10.0.60.22", "10.0.60.23"},
	}
	egress := func(name, from string, to ...string) *networkingv1.NetworkPolicy {
		p := allow(name, from)
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		for _, app := range to {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
				To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
			})
		}
		return p
	}
	for kind, addresses := range kinds {
		for name, policies := range map[string][2]*networkingv1.NetworkPolicy{
			"ingress": {allow("db", "db", "web"), nil},
			"egress":  {egress("web", "web", "db"), egress("other", "other")},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				netnstest.Need(t)
				if kind == "macvlan" {
					netnstest.NeedLinks(t, kind)
				}
				w := newTopology(t)
				db, web, other := w.newPod("db", addresses[0]), w.newPod("web", addresses[1]), w.newPod("other", addresses[2])
				for _, p := range []*pod{db, web, other} {
					w.add(p, kind)
				}
				allowed, forbidden := chatterOf(t, web.Host, db), chatterOf(t, other.Host, db)
				for _, policy := range policies {
					if policy != nil {
						w.set(policy)
					}
				}
				w.eventually("the connection that is forbidden ends", func() bool { return forbidden.isSilent() })
				if err := allowed.stop(); err != nil {
					t.Errorf("a connection ends that is still allowed: %v", err)
				}
				if !forbidden.isSilent() {
					t.Error("a connection goes on again that was ended")
				}
				if !echo(t, web.Host, db)() {
					t.Error("web does not reach db anew")
				}
			})
		}
	}
}

// chatter is a connection on which both sides send all the time.
type chatter struct {
	client, server net.Conn
	received       atomic.Int64
	stopped        atomic.Bool
	ended          chan error
}

func chatterOf(t *testing.T, from *netnstest.Host, to *pod) *chatter {
	t.Helper()
	c := &chatter{ended: make(chan error, 1)}
	var listener net.Listener
	to.Run(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to.Addresses[0], 0).String())
		return err
	})
	t.Cleanup(func() { _ = listener.Close() })
	from.Run(func() (err error) {
		c.client, err = net.DialTimeout("tcp", listener.Addr().String(), time.Minute)
		return err
	})
	t.Cleanup(func() { _ = c.client.Close() })
	var err error
	if c.server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.server.Close() })
	for _, side := range []net.Conn{c.client, c.server} {
		go func() {
			pace := time.NewTicker(200 * time.Microsecond)
			defer pace.Stop()
			for b := make([]byte, 512); ; <-pace.C {
				if _, err := side.Write(b); err != nil {
					return
				}
			}
		}()
	}
	go func() { _, _ = io.Copy(io.Discard, c.server) }()
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := c.client.Read(b)
			c.received.Add(int64(n))
			if err != nil || c.stopped.Load() {
				c.ended <- err
				return
			}
		}
	}()
	return c
}

// isSilent returns whether nothing comes for a time.
func (c *chatter) isSilent() bool {
	before := c.received.Load()
	<-time.After(time.Second)
	return c.received.Load() == before
}

// stop returns an error where the connection was interrupted.
func (c *chatter) stop() error {
	c.stopped.Store(true)
	return <-c.ended
}

// echo opens a connection to a pod, and returns a function that tells whether it still works.
func echo(t *testing.T, from *netnstest.Host, to *pod) (goes func() bool) {
	t.Helper()
	var listener net.Listener
	to.Run(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to.Addresses[0], 0).String())
		return err
	})
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	var conn net.Conn
	from.Run(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), time.Minute)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return func() bool {
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		_, err := conn.Write([]byte("x"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		return err == nil
	}
}
