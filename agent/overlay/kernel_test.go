// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/podlink"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// plugins compiles the plugins, once.
var plugins = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "berth-overlay-plugins-")
	if err != nil {
		return "", err
	}
	const upstream = "github.com/containernetworking/plugins/plugins/"
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir, "../../cni/overlay", upstream+"main/bridge", upstream+"ipam/host-local")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w: %s", build, err, out)
	}
	for built, name := range map[string]string{"overlay": api.OverlayType, "bridge": BridgeType, "host-local": HostLocalType} {
		if err := os.Rename(filepath.Join(dir, built), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := plugins(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// topology is three nodes in 10.0.60.0/24 and an outside host, on one layer 2 network. The
// outside host knows no pods.
type topology struct {
	t       *testing.T
	wire    *netnstest.Wire
	api     *fake.Clientset
	berth   *ipamtest.Server
	outside *netnstest.Host
	nodes   []*node
	// leases has the files of host-local.
	leases string
}

// A fake clientset does not support the list at the begin of a watch.
type (
	fakeNodes struct{ corev1client.NodeInterface }
	fakeCIDRs struct {
		networkingv1client.ServiceCIDRInterface
	}
)

func (fakeNodes) IsWatchListSemanticsUnSupported() bool { return true }
func (fakeCIDRs) IsWatchListSemanticsUnSupported() bool { return true }

// node is a node with its agent's overlay.
type node struct {
	*netnstest.Host
	name    string
	overlay *Overlay
	stop    func()
}

// pod is a pod of the overlay.
type pod struct {
	*netnstest.Host
	v4, v6 netip.Addr
}

const (
	outside4 = "10.99.0.1"
	outside6 = "2001:db8:99::1"
)

func newTopology(t *testing.T, backend Backend, nodes int) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, wire: netnstest.NewWire(t), berth: ipamtest.NewServer(), outside: netnstest.New(t), leases: t.TempDir()}
	w.api = fake.NewClientset(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	})
	w.wire.Plug(w.outside, "eth0", netip.MustParsePrefix("10.0.60.1/24"), netip.MustParsePrefix("fd00:60::1/64"))
	w.outside.IP("addr", "add", outside4+"/32", "dev", "lo")
	w.outside.IP("addr", "add", outside6+"/128", "dev", "lo")
	for range nodes {
		w.join(backend)
	}
	return w
}

// join adds a node with its overlay.
func (w *topology) join(backend Backend) *node {
	w.t.Helper()
	i := len(w.nodes) + 1
	n := &node{Host: netnstest.New(w.t), name: fmt.Sprintf("node%d", i)}
	n.Run(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644) })
	w.wire.Plug(n.Host, "eth0", netip.MustParsePrefix(fmt.Sprintf("10.0.60.1%d/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:60::1%d/64", i)))
	n.IP("route", "add", "default", "via", "10.0.60.1")
	n.IP("-6", "route", "add", "default", "via", "fd00:60::1")
	_, err := w.api.CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:0:%d::/64", i)}},
		// As a cloud makes them.
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue}}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.nodes = append(w.nodes, n)
	w.start(n, i, backend)
	return n
}

// start starts the node's overlay.
func (w *topology) start(n *node, i int, backend Backend, change ...func(*Options)) {
	w.t.Helper()
	o := Options{
		Node: n.name, Address: netip.MustParseAddr(fmt.Sprintf("10.0.60.1%d", i)), Backend: backend,
		SubnetFile: filepath.Join(w.t.TempDir(), "subnet.env"), SysctlRoot: "/proc/sys", PluginSysctlRoot: "/proc/sys", Nodes: fakeNodes{w.api.CoreV1().Nodes()}, ServiceCIDRs: fakeCIDRs{w.api.NetworkingV1().ServiceCIDRs()}, Berth: w.berth.Client(),
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	n.overlay, err = New(o)
	w.must(err)
	ctx, cancel := context.WithCancel(w.t.Context())
	var group sync.WaitGroup
	n.stop = func() { cancel(); group.Wait() }
	w.t.Cleanup(n.stop)
	// As Run does, but in the node's network namespace.
	group.Go(func() { n.overlay.cluster.run(ctx) })
	group.Go(func() { _ = n.Try(func() error { n.overlay.watchKernel(ctx); return nil }) })
	group.Go(func() {
		_ = n.Try(func() error {
			if n.overlay.cluster.waitForSync(ctx) {
				return n.overlay.loop(ctx)
			}
			return nil
		})
	})
	w.eventually(func() error { _, err := n.overlay.Conflist(); return err })
}

// pod starts a pod with the network's own plugins.
func (w *topology) pod(n *node) *pod {
	w.t.Helper()
	dir, err := plugins()
	w.must(err)
	raw, err := n.overlay.Conflist()
	w.must(err)
	// Nodes are namespaces here and have one file system.
	raw = []byte(strings.Replace(string(raw), `"ranges"`, fmt.Sprintf(`"dataDir":%q,"ranges"`, w.leases), 1))
	network, err := chain.Parse(raw)
	w.must(err)
	p := &pod{Host: netnstest.New(w.t)}
	var result []byte
	n.Run(func() error {
		result, err = chain.NewRunner(&chain.Exec{}, []string{dir}).Add(w.t.Context(), network, chain.Attachment{ContainerID: filepath.Base(p.Path()), NetNS: p.Path(), IfName: "eth0"}, nil)
		return err
	})
	var got struct{ IPs []struct{ Address string } }
	w.must(json.Unmarshal(result, &got))
	for _, ip := range got.IPs {
		if addr := netip.MustParsePrefix(ip.Address).Addr(); addr.Is4() {
			p.v4 = addr
		} else {
			p.v6 = addr
		}
	}
	if !p.v4.IsValid() || !p.v6.IsValid() {
		w.t.Fatalf("the pod got %s", result)
	}
	return p
}

func (w *topology) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *topology) eventually(f func() error) {
	w.t.Helper()
	netnstest.Eventually(w.t, f)
}

// expectReached checks that one pod reaches the other with both families, in time.
func (w *topology) expectReached(from, to *pod) {
	w.t.Helper()
	for _, addr := range []netip.Addr{to.v4, to.v6} {
		w.eventually(func() error { return ping(from.Host, addr.String()) })
	}
}

func ping(from *netnstest.Host, to string, args ...string) error {
	_, err := from.Command("ping", append([]string{"-c", "1", "-W", "1"}, append(args, to)...)...)
	return err
}

// seen asks server at its address from a host and returns the source that the server saw.
func (w *topology) seen(from, server *netnstest.Host, address netip.Addr) netip.Addr {
	w.t.Helper()
	var listener *net.UDPConn
	server.Run(func() error {
		var err error
		listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
		return err
	})
	defer listener.Close()
	to := listener.LocalAddr().(*net.UDPAddr)
	var source netip.Addr
	// The first packet may be lost while neighbours are found.
	w.eventually(func() error {
		err := from.Try(func() error {
			conn, err := net.DialUDP("udp", nil, to)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("who am I?"))
			return err
		})
		if err != nil {
			return err
		}
		if err := listener.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		_, client, err := listener.ReadFromUDPAddrPort(make([]byte, 100))
		source = client.Addr().Unmap()
		return err
	})
	return source
}

func (w *topology) expectSeen(from, server *netnstest.Host, address, want netip.Addr) {
	w.t.Helper()
	if got := w.seen(from, server, address); got != want {
		w.t.Errorf("the server at %s sees %s, want %s", address, got, want)
	}
}

// Pods of different nodes reach each other, see each other's addresses, and can send
// packets of their whole MTU; the network outside sees their node.
func TestTraffic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend Backend
		mtu     int
	}{{VXLAN, 1430}, {HostGW, 1500}} {
		t.Run(string(c.backend), func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, c.backend, 3)
			a, neighbour, b, third := w.pod(w.nodes[0]), w.pod(w.nodes[0]), w.pod(w.nodes[1]), w.pod(w.nodes[2])
			for _, to := range []*pod{neighbour, b, third} {
				w.expectReached(a, to)
				w.expectReached(to, a)
				w.expectSeen(a.Host, to.Host, to.v4, a.v4)
				w.expectSeen(a.Host, to.Host, to.v6, a.v6)
			}
			w.must(errors.Join(ping(a.Host, b.v4.String(), "-M", "do", "-s", fmt.Sprint(c.mtu-28)), ping(a.Host, b.v6.String(), "-M", "do", "-s", fmt.Sprint(c.mtu-48))))
			if err := ping(a.Host, b.v4.String(), "-M", "do", "-s", fmt.Sprint(c.mtu-27)); err == nil {
				t.Errorf("the pods' MTU is not %d", c.mtu)
			}
			// The node itself reaches pods of others.
			w.must(errors.Join(ping(w.nodes[0].Host, b.v4.String()), ping(w.nodes[0].Host, b.v6.String())))
			w.expectSeen(a.Host, w.outside, netip.MustParseAddr(outside4), netip.MustParseAddr("10.0.60.11"))
			w.expectSeen(a.Host, w.outside, netip.MustParseAddr(outside6), netip.MustParseAddr("fd00:60::11"))
		})
	}
}

// Nodes that a cloud made say that their network is there, when it is, and again when somebody says
// that it is not.
func TestNetworkIsAvailable(t *testing.T) {
	w := newTopology(t, VXLAN, 1)
	available := func() error {
		node, err := w.api.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var said []string
		for _, c := range node.Status.Conditions {
			said = append(said, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		if slices.Sort(said); !slices.Equal(said, []string{"NetworkUnavailable=False OverlayIsUp", "Ready=True "}) {
			return fmt.Errorf("the conditions are %q", said)
		}
		return nil
	}
	w.eventually(available)
	_, err := w.api.CoreV1().Nodes().Patch(t.Context(), "node1", types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"CalicoIsDown"}]}}`), metav1.PatchOptions{}, "status")
	w.must(err)
	w.eventually(available)
}

// Anything lost in the kernel comes back by itself, and traffic with it.
func TestRepair(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backend Backend
		lose    func(*node)
	}{
		"VTEPs deleted":         {VXLAN, func(n *node) { n.IP("link", "del", link4); n.IP("link", "del", link6) }},
		"VTEPs down":            {VXLAN, func(n *node) { n.IP("link", "set", link4, "down"); n.IP("link", "set", link6, "down") }},
		"VTEP with another MAC": {VXLAN, func(n *node) { n.IP("link", "set", link4, "address", "02:00:00:00:00:99") }},
		"uplink down and up":    {VXLAN, flap},
		"routes flushed":        {VXLAN, flushRoutes},
		"neighbours flushed": {VXLAN, func(n *node) {
			n.IP("neigh", "flush", "nud", "permanent", "dev", link4)
			n.IP("-6", "neigh", "flush", "nud", "permanent", "dev", link6)
		}},
		"forwarding flushed": {VXLAN, flushFDB},
		"pods' routes flushed": {VXLAN, func(n *node) {
			n.IP("route", "flush", "root", "10.244.1.0/24")
			n.IP("-6", "route", "flush", "root", "fd00:244:0:1::/64")
		}},
		"pods' links down": {VXLAN, func(n *node) {
			n.Run(func() error {
				links, err := podlink.Links()
				for _, l := range links {
					err = errors.Join(err, netlink.LinkSetDown(l))
				}
				return err
			})
			n.overlay.Recheck()
		}},
		"host-gw: uplink flapped": {HostGW, flap},
		"host-gw: routes flushed": {HostGW, flushRoutes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, c.backend, 2)
			a, b := w.pod(w.nodes[0]), w.pod(w.nodes[1])
			w.expectReached(a, b)
			c.lose(w.nodes[0])
			w.expectReached(a, b)
			w.expectReached(b, a)
		})
	}
}

func flap(n *node) {
	n.IP("link", "set", "eth0", "down")
	n.IP("link", "set", "eth0", "up")
	n.IP("route", "replace", "default", "via", "10.0.60.1")
	// The kernel drops the link's IPv6 addresses; the program that configured them puts them back.
	n.IP("-6", "addr", "replace", fmt.Sprintf("fd00:60::1%s/64", strings.TrimPrefix(n.name, "node")), "dev", "eth0", "nodad")
}

func flushRoutes(n *node) {
	n.IP("route", "flush", "proto", fmt.Sprint(rtnl.Protocol))
	n.IP("-6", "route", "flush", "proto", fmt.Sprint(rtnl.Protocol))
}

func flushFDB(n *node) {
	for _, link := range []string{link4, link6} {
		out, err := n.Command("bridge", "fdb", "show", "dev", link)
		n.Run(func() error { return err })
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			if i := slices.Index(fields, "dst"); i > 0 {
				_, err := n.Command("bridge", "fdb", "del", fields[0], "dev", link, "dst", fields[i+1], "self")
				n.Run(func() error { return err })
			}
		}
	}
}

// entries are all that a node has for others.
func (n *node) entries() string {
	return n.IP("route") + n.IP("-6", "route") + n.IP("neigh", "show", "nud", "permanent") + n.IP("-6", "neigh", "show", "nud", "permanent") + n.fdb()
}

func (n *node) fdb() string {
	out, err := n.Command("bridge", "fdb", "show")
	n.Run(func() error { return err })
	return out
}

// A node that leaves the cluster leaves nothing on the others, also on one whose agent was
// down meanwhile, and its place can be taken.
func TestNodeGone(t *testing.T) {
	t.Parallel()
	for _, backend := range []Backend{VXLAN, HostGW} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, backend, 3)
			a, b, c := w.pod(w.nodes[0]), w.pod(w.nodes[1]), w.pod(w.nodes[2])
			w.expectReached(a, c)
			w.expectReached(b, c)
			w.nodes[1].stop()
			gone, err := w.api.CoreV1().Nodes().Get(t.Context(), "node3", metav1.GetOptions{})
			w.must(err)
			w.nodes[2].stop()
			w.must(w.api.CoreV1().Nodes().Delete(t.Context(), "node3", metav1.DeleteOptions{}))
			traces := func(n *node) error {
				for _, trace := range []string{"10.244.3.", "fd00:244:0:3:", "10.0.60.13", "fd00:60::13"} {
					for line := range strings.Lines(n.entries()) {
						if strings.Contains(line, trace) && !strings.Contains(line, "dev eth0 lladdr") {
							return fmt.Errorf("%s has %s", n.name, line)
						}
					}
				}
				return nil
			}
			w.eventually(func() error { return traces(w.nodes[0]) })
			if traces(w.nodes[1]) == nil {
				t.Error("a node whose agent is down has lost entries: the test proves nothing")
			}
			w.start(w.nodes[1], 2, backend)
			w.eventually(func() error { return traces(w.nodes[1]) })
			w.expectReached(a, b)

			// A node of another address and MAC gets the pod CIDRs.
			heir := w.nodes[2]
			heir.IP("addr", "del", "10.0.60.13/24", "dev", "eth0")
			heir.IP("addr", "add", "10.0.60.14/24", "dev", "eth0")
			heir.IP("route", "replace", "default", "via", "10.0.60.1")
			if backend == VXLAN {
				heir.IP("link", "del", link4)
				heir.IP("link", "del", link6)
			}
			_, err = w.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "heir"}, Spec: gone.Spec}, metav1.CreateOptions{})
			w.must(err)
			heir.name = "heir"
			w.start(heir, 4, backend)
			w.expectReached(a, c)
			w.expectReached(c, b)
		})
	}
}

// A restarted agent has the same VTEP, and removes everything that flannel or an administrator left
// on it.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 2)
	a, b := w.pod(w.nodes[0]), w.pod(w.nodes[1])
	w.expectReached(a, b)
	n := w.nodes[0]
	mac := n.IP("link", "show", link4)
	n.stop()
	w.expectReached(a, b)
	n.IP("route", "add", "10.244.9.0/24", "via", "10.244.9.0", "dev", link4, "onlink")
	n.IP("neigh", "add", "10.244.9.0", "lladdr", "02:00:00:00:00:09", "nud", "permanent", "dev", link4)
	w.start(n, 1, VXLAN)
	w.eventually(func() error {
		if entries := n.entries(); strings.Contains(entries, "10.244.9.0") {
			return fmt.Errorf("left: %s", entries)
		}
		return nil
	})
	if now := n.IP("link", "show", link4); now != mac {
		t.Errorf("the VTEP was\n%s and is\n%s", mac, now)
	}
	w.expectReached(a, b)
	// Another backend takes the links of the former away.
	for i, n := range w.nodes {
		n.stop()
		w.start(n, i+1, HostGW)
	}
	w.expectReached(a, b)
	for _, n := range w.nodes {
		n.stop()
		if out := n.IP("link"); strings.Contains(out, link4) || strings.Contains(out, link6) {
			t.Errorf("links are left: %s", out)
		}
	}
}

// A VTEP that flanneld left is fixed and keeps its MAC, which other nodes know; one that
// cannot be fixed is made again, with the MAC that was published.
func TestVTEPsOfFlannel(t *testing.T) {
	t.Parallel()
	const mac = "02:00:00:00:00:77"
	for name, c := range map[string]struct {
		vtep []string
		kept bool
	}{
		"as flanneld makes it":    {[]string{"type", "vxlan", "id", "1", "local", "10.0.60.11", "dev", "eth0", "dstport", "8472", "nolearning"}, true},
		"with another VNI":        {[]string{"type", "vxlan", "id", "2", "local", "10.0.60.11", "dev", "eth0", "dstport", "8472", "nolearning"}, false},
		"with another port":       {[]string{"type", "vxlan", "id", "1", "local", "10.0.60.11", "dev", "eth0", "dstport", "4789", "nolearning"}, false},
		"with another address":    {[]string{"type", "vxlan", "id", "1", "local", "10.0.60.99", "dev", "eth0", "dstport", "8472", "nolearning"}, false},
		"that learns":             {[]string{"type", "vxlan", "id", "1", "local", "10.0.60.11", "dev", "eth0", "dstport", "8472", "learning"}, false},
		"that is no VXLAN at all": {[]string{"type", "bridge"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, VXLAN, 2)
			a, b := w.pod(w.nodes[0]), w.pod(w.nodes[1])
			w.expectReached(a, b)
			n := w.nodes[0]
			n.stop()
			published := macOf(n)
			n.IP("link", "del", link4)
			n.IP(append([]string{"link", "add", link4, "address", mac, "mtu", "1300"}, c.vtep...)...)
			n.IP("addr", "add", "10.244.77.0/24", "dev", link4)
			n.IP("link", "set", link4, "up")
			w.start(n, 1, VXLAN)
			w.expectReached(a, b)
			w.expectReached(b, a)
			want := published
			if c.kept {
				want = mac
			}
			if got := macOf(n); got != want {
				t.Errorf("the VTEP has the MAC %s, want %s", got, want)
			}
			if link := n.IP("-d", "link", "show", link4); !strings.Contains(link, alias) || !strings.Contains(link, "mtu 1430") || !strings.Contains(link, "vxlan id 1 ") {
				t.Errorf("the VTEP is %s", link)
			}
			if addrs := n.IP("-4", "-br", "addr", "show", link4); !strings.Contains(addrs, "10.244.1.0/32") || strings.Contains(addrs, "10.244.77.0") {
				t.Errorf("the VTEP has %s", addrs)
			}
			if node, err := w.api.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{}); err != nil || node.Annotations[annotationData4] != fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, want) {
				t.Errorf("published %v, %v", node.Annotations, err)
			}
		})
	}
}

func macOf(n *node) string {
	fields := strings.Fields(n.IP("-br", "link", "show", link4))
	return fields[2]
}

// A node with flanneld: the commands here do the same as flannel v0.28's backend vxlan does for the
// annotations.
func TestBesideFlanneld(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 1)
	ours := w.nodes[0]
	a := w.pod(ours)
	theirs := netnstest.New(t)
	w.wire.Plug(theirs, "eth0", netip.MustParsePrefix("10.0.60.12/24"), netip.MustParsePrefix("fd00:60::12/64"))
	theirs.Run(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644) })
	const mac4, mac6 = "02:00:00:00:00:04", "02:00:00:00:00:06"
	theirs.IP("link", "add", link4, "address", mac4, "mtu", "1430", "type", "vxlan", "id", "1", "local", "10.0.60.12", "dev", "eth0", "dstport", "8472", "nolearning")
	theirs.IP("link", "add", link6, "address", mac6, "mtu", "1430", "type", "vxlan", "id", "1", "local", "fd00:60::12", "dev", "eth0", "dstport", "8472", "nolearning")
	theirs.IP("addr", "add", "10.244.2.0/32", "dev", link4)
	theirs.IP("addr", "add", "fd00:244:0:2::/128", "dev", link6)
	theirs.IP("link", "set", link4, "up")
	theirs.IP("link", "set", link6, "up")
	// Addresses of its pods.
	theirs.IP("addr", "add", "10.244.2.5/32", "dev", "lo")
	theirs.IP("addr", "add", "fd00:244:0:2::5/128", "dev", "lo")
	_, err := w.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Annotations: map[string]string{
			annotationManaged: "true", annotationType: "vxlan", annotationPublic4: "10.0.60.12", annotationPublic6: "fd00:60::12",
			annotationData4: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac4), annotationData6: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac6),
		}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.2.0/24", "fd00:244:0:2::/64"}},
	}, metav1.CreateOptions{})
	w.must(err)
	node, err := w.api.CoreV1().Nodes().Get(t.Context(), ours.name, metav1.GetOptions{})
	w.must(err)
	for _, c := range []struct{ link, subnet, via, public, data string }{
		{link4, "10.244.1.0/24", "10.244.1.0", annotationPublic4, annotationData4},
		{link6, "fd00:244:0:1::/64", "fd00:244:0:1::", annotationPublic6, annotationData6},
	} {
		var published struct{ VtepMAC string }
		w.must(json.Unmarshal([]byte(node.Annotations[c.data]), &published))
		theirs.IP("neigh", "replace", c.via, "lladdr", published.VtepMAC, "nud", "permanent", "dev", c.link)
		_, err := theirs.Command("bridge", "fdb", "append", published.VtepMAC, "dev", c.link, "dst", node.Annotations[c.public], "self", "permanent")
		w.must(err)
		theirs.IP("route", "replace", c.subnet, "via", c.via, "dev", c.link, "onlink")
	}
	for _, to := range []string{"10.244.2.5", "fd00:244:0:2::5", "10.244.2.0", "fd00:244:0:2::"} {
		w.eventually(func() error { return ping(a.Host, to) })
	}
	for source, to := range map[string]string{"10.244.2.5": a.v4.String(), "fd00:244:0:2::5": a.v6.String()} {
		w.eventually(func() error { return ping(theirs, to, "-I", source) })
	}
}

// A cleanup removes links of the overlay, and leaves flannel's.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 1)
	n := w.nodes[0]
	w.pod(n)
	n.stop()
	n.IP("link", "set", link6, "alias", "somebody's")
	var names []string
	n.Run(func() error {
		items, err := Leftovers(t.TempDir())
		for _, item := range items {
			names = append(names, item.Name)
			// A second time, too.
			err = errors.Join(err, item.Remove(), item.Remove())
		}
		return err
	})
	if want := []string{"link " + link4}; !slices.Equal(names, want) {
		t.Errorf("found %q, want %q", names, want)
	}
	if out := n.IP("-br", "link"); strings.Contains(out, link4) || !strings.Contains(out, link6) {
		t.Errorf("links are %s", out)
	}
}

// Where the overlay was turned off nothing of it stays, but not before its last pod.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, backend := range []Backend{VXLAN, HostGW} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			w := newTopology(t, backend, 2)
			a, b := w.pod(w.nodes[0]), w.pod(w.nodes[1])
			w.expectReached(a, b)
			n := w.nodes[0]
			n.stop()
			sweep := func() (pods int) {
				n.Run(func() error {
					var err error
					pods, err = Sweep()
					return err
				})
				return pods
			}
			if pods := sweep(); pods != 1 {
				t.Errorf("found %d pods, want 1", pods)
			}
			w.expectReached(a, b)
			a.IP("link", "del", "eth0")
			if pods := sweep(); pods != 0 {
				t.Errorf("found %d pods, want none", pods)
			}
			for _, trace := range []string{netfilter.OverlayPrefix, link4, link6, "10.244.", "fd00:244:"} {
				if out := n.entries() + n.IP("link"); strings.Contains(out, trace) {
					t.Errorf("%s is left: %s", trace, out)
				}
			}
			n.Run(func() error {
				conn, err := nftables.New()
				if err != nil {
					return err
				}
				tables, err := conn.ListTables()
				if len(tables) > 0 {
					err = errors.Join(err, fmt.Errorf("tables are left: %v", tables[0].Name))
				}
				return err
			})
			sweep()
		})
	}
}

// Where flannel runs on a node its network is used, and no backend is run; where it starts
// later the overlay ends.
func TestFlannelOnTheNode(t *testing.T) {
	t.Parallel()
	w := newTopology(t, VXLAN, 0)
	n := &node{Host: netnstest.New(t), name: "node1"}
	w.wire.Plug(n.Host, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("fd00:60::11/64"))
	n.IP("route", "add", "default", "via", "10.0.60.1")
	n.IP("-6", "route", "add", "default", "via", "fd00:60::1")
	file := filepath.Join(t.TempDir(), "subnet.env")
	w.must(os.WriteFile(file, []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n"), 0o600))
	var err error
	n.overlay, err = New(Options{Node: n.name, Address: netip.MustParseAddr("10.0.60.11"), Backend: VXLAN, SubnetFile: file, SysctlRoot: "/proc/sys", Nodes: fakeNodes{w.api.CoreV1().Nodes()}, ServiceCIDRs: fakeCIDRs{w.api.NetworkingV1().ServiceCIDRs()}, Berth: w.berth.Client()})
	w.must(err)
	n.Run(func() error {
		return errors.Join(n.overlay.Run(t.Context()),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	a := w.pod(n)
	if !netip.MustParsePrefix("10.244.7.0/24").Contains(a.v4) || !netip.MustParsePrefix("fd00:244:0:7::/64").Contains(a.v6) {
		t.Errorf("the pod has %s and %s", a.v4, a.v6)
	}
	if link := a.IP("link", "show", "eth0"); !strings.Contains(link, "mtu 1400") {
		t.Errorf("the pod's link is %s", link)
	}
	links := n.IP("-br", "link")
	if !strings.Contains(links, flannelBridge) || strings.Contains(links, link4) {
		t.Errorf("the node's links are %s", links)
	}
	w.expectSeen(a.Host, w.outside, netip.MustParseAddr(outside4), netip.MustParseAddr("10.0.60.11"))
	w.expectSeen(a.Host, w.outside, netip.MustParseAddr(outside6), netip.MustParseAddr("fd00:60::11"))

	later := filepath.Join(t.TempDir(), "subnet.env")
	o, err := New(Options{Node: n.name, Address: netip.MustParseAddr("10.0.60.11"), Backend: VXLAN, SubnetFile: later, SysctlRoot: "/proc/sys", PluginSysctlRoot: "/proc/sys", Nodes: fakeNodes{w.api.CoreV1().Nodes()}, ServiceCIDRs: fakeCIDRs{w.api.NetworkingV1().ServiceCIDRs()}, Berth: w.berth.Client()})
	w.must(err)
	ended := make(chan error, 1)
	go func() { ended <- n.Try(func() error { return o.loop(t.Context()) }) }()
	w.must(os.WriteFile(later, nil, 0o600))
	o.Recheck()
	if err := <-ended; !errors.Is(err, errFlannel) {
		t.Errorf("the overlay ended with %v", err)
	}
}
