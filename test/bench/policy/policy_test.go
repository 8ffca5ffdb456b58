// SPDX-License-Identifier: Apache-2.0

// Package policy measures network policies by themselves, without an API server: the agent's
// work between an event and the kernel, and the cost for packets.
package policy

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/policytest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	benchtable "github.com/berth-dev/berth/test/bench/table"
)

// The tests measure where results are wanted (table.EnvOut), and otherwise try their own code
// with few pods. They never fail for how long something took.

// few is the number for a quick trial, and many that for figures.
func few(quick, many int) int {
	if benchtable.Full() {
		return many
	}
	return quick
}

// labels of pods.
type labels = map[string]string

// letsIn lets peers in, on all ports or some.
func letsIn(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}},
	}
}

// letsOut lets out to peers, to all ports or some.
func letsOut(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}},
	}
}

// crowd is a cluster in memory: pods in namespaces, of which some are of this node.
type crowd struct {
	pods   map[string][]*policy.Pod
	locals []policy.Local
}

// Apps and namespaces of a crowd.
const (
	crowdNamespaces = 20
	crowdApps       = 50
)

// newCrowd makes pods of the cluster, the first of which are of this node.
func newCrowd(local, all int) *crowd {
	c := &crowd{pods: map[string][]*policy.Pod{}}
	for i := range all {
		pod := crowdPod(i)
		c.pods[pod.Namespace] = append(c.pods[pod.Namespace], pod)
		if i < local {
			c.locals = append(c.locals, policy.Local{NamespacedName: pod.NamespacedName, UID: pod.UID, Addresses: pod.Addresses, Ways: []string{fmt.Sprint("veth", i)}})
		}
	}
	return c
}

func crowdPod(i int) *policy.Pod {
	return &policy.Pod{
		NamespacedName: types.NamespacedName{Namespace: fmt.Sprint("ns-", i%crowdNamespaces), Name: fmt.Sprint("pod-", i)},
		UID:            types.UID(fmt.Sprint(i)),
		Labels:         map[string]string{"app": fmt.Sprint("app-", i/crowdNamespaces%crowdApps), "number": fmt.Sprint(i)},
		Addresses:      []netip.Addr{netip.AddrFrom4([4]byte{10, byte(100 + i>>16), byte(i >> 8), byte(i)})},
		Ports:          []policy.NamedPort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 8080}},
	}
}

func (c *crowd) Namespaces() iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for name := range c.pods {
			if !yield(name, map[string]string{"team": name}) {
				return
			}
		}
	}
}

func (c *crowd) Pods(namespace string) iter.Seq[*policy.Pod] { return slices.Values(c.pods[namespace]) }
func (c *crowd) Pod(name types.NamespacedName) *policy.Pod {
	for _, p := range c.pods[name.Namespace] {
		if p.NamespacedName == name {
			return p
		}
	}
	return nil
}

// policies select the pods of this node by turns, each one of them by its number, and let a few
// ports in from the pods of an app in all namespaces, or out to these.
func (c *crowd) policies(n int) policytest.Policies {
	var all policytest.Policies
	for i := range n {
		local := c.locals[i%len(c.locals)]
		app := networkingv1.NetworkPolicyPeer{
			PodSelector:       &metav1.LabelSelector{MatchLabels: labels{"app": fmt.Sprint("app-", i%crowdApps)}},
			NamespaceSelector: &metav1.LabelSelector{},
		}
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: local.Namespace, Name: fmt.Sprint("policy-", i)}}
		ports := []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(80 + i%7))}, {Port: ptr.To(intstr.FromInt(8000)), EndPort: ptr.To[int32](8100)}}
		// Of every two that select a pod, one is of each direction.
		if i/len(c.locals)%2 == 0 {
			p.Spec = letsIn(ports, app)
		} else {
			p.Spec = letsOut(ports, app)
		}
		p.Spec.PodSelector.MatchLabels = labels{"number": string(local.UID)}
		all.Network = append(all.Network, p)
	}
	return all
}

// index compiles policies for the pods of this node.
func (c *crowd) index(n int) *policy.Index {
	x := policy.NewIndex(c)
	for name, has := range c.Namespaces() {
		x.SetNamespace(name, has)
	}
	c.policies(n).Tell(x)
	for _, local := range c.locals {
		x.SetLocal(local)
		for pod := range c.Pods(local.Namespace) {
			if pod.UID == local.UID {
				x.SetPod(nil, pod)
			}
		}
	}
	return x
}

// heap returns the memory of Go's objects after a collection.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// TestCostPolicySync measures the way from objects to the kernel.
func TestCostPolicySync(t *testing.T) {
	const local = 100
	peers, rounds := few(500, 10_000), few(3, 100)
	full := benchtable.Table{
		Title: fmt.Sprintf("Policies: full sync for %d local pods with %d pods in the cluster", local, peers),
		Note: "From objects in memory to the kernel: compiled, and applied where there was no rule. Every local pod is selected by a hundredth of the policies; each policy lets " +
			"the pods of one app of all namespaces in or out. Median of 3. `same again` is a sync in which nothing has changed; heap is the memory of the index and the ruleset.",
		Rows: benchtable.Rows{{"backend", "policies", "compile, ms", "apply, ms", "both, ms", "same again, ms", "heap, MB", "chains", "rules", "sets", "elements"}},
	}
	events := benchtable.Table{
		Title: "Policies: one event, from the index to the kernel, ms",
		Note:  fmt.Sprintf("The same cluster. %d events each, the kernel has the change when the time ends.", rounds),
		Rows:  benchtable.Rows{{"backend", "policies", "event", "p50", "p90", "max"}},
	}
	for _, of := range cases(few(5, 10), few(10, 100), few(20, 1000)) {
		policies := of.policies
		c := newCrowd(local, peers)
		host := netnstest.New(t)
		var compiles, applies, both, again []time.Duration
		var x *policy.Index
		var kernel enforce.Table
		var grown float64
		for range few(1, 3) {
			x = nil
			empty := heap()
			kernel = of.backend.Open(host.Path())
			if err := kernel.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			x = c.index(policies)
			rules := x.Node()
			compiled := time.Now()
			if err := kernel.Apply(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			end := time.Now()
			if err := kernel.Apply(t.Context(), x.Node()); err != nil {
				t.Fatal(err)
			}
			compiles, applies, both, again = append(compiles, compiled.Sub(start)), append(applies, end.Sub(compiled)), append(both, end.Sub(start)), append(again, time.Since(end))
			grown = heap() - empty
			runtime.KeepAlive(rules)
		}
		row := []string{string(of.backend), fmt.Sprint(policies)}
		for _, times := range [][]time.Duration{compiles, applies, both, again} {
			row = append(row, benchtable.MS(benchtable.Median(times)))
		}
		full.Rows = append(full.Rows, append(append(row, fmt.Sprintf("%.1f", grown/1e6)), sizes(t, host, of.backend)...))

		next := peers
		apply := func() {
			if err := kernel.Apply(t.Context(), x.Node()); err != nil {
				t.Fatal(err)
			}
		}
		var last *policy.Pod
		spec := c.policies(policies)
		for _, event := range []struct {
			name   string
			change func(i int)
		}{
			{"a pod elsewhere is added", func(int) {
				last = crowdPod(next)
				next++
				c.pods[last.Namespace] = append(c.pods[last.Namespace], last)
				x.SetPod(nil, last)
			}},
			{"a pod elsewhere is relabelled", func(i int) {
				changed := *last
				changed.Labels = map[string]string{"app": fmt.Sprint("app-", i%crowdApps)}
				list := c.pods[last.Namespace]
				list[len(list)-1] = &changed
				x.SetPod(last, &changed)
				last = &changed
			}},
			{"a pod of this node is added", func(i int) {
				x.SetLocal(policy.Local{
					NamespacedName: types.NamespacedName{Namespace: "ns-0", Name: fmt.Sprint("new-", i)}, UID: types.UID(fmt.Sprint("new-", i)),
					Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})}, Ways: []string{fmt.Sprint("new", i)},
				})
				x.SetPod(nil, &policy.Pod{
					NamespacedName: types.NamespacedName{Namespace: "ns-0", Name: fmt.Sprint("new-", i)}, UID: types.UID(fmt.Sprint("new-", i)),
					Labels: map[string]string{"app": "app-0", "number": "0"},
				})
			}},
			{"a policy changes", func(i int) {
				p := spec.Network[i%len(spec.Network)].DeepCopy()
				selector := p.Spec.PodSelector
				p.Spec = letsIn([]networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(1000 + i))}})
				p.Spec.PodSelector = selector
				x.SetNetworkPolicy(p)
			}},
		} {
			var took []time.Duration
			for i := range rounds {
				start := time.Now()
				event.change(i)
				apply()
				took = append(took, time.Since(start))
			}
			events.Rows = append(events.Rows, append([]string{string(of.backend), fmt.Sprint(policies), event.name}, benchtable.Millis(took, 0.5, 0.9, 1)...))
		}
	}
	benchtable.Log(t, full, events)
}

// sized is a backend with a number of policies.
type sized struct {
	backend  enforce.Backend
	policies int
}

// cases are the numbers of policies, each with every backend.
func cases(policies ...int) []sized {
	var all []sized
	for _, n := range policies {
		for _, b := range []enforce.Backend{enforce.BackendNFTables, enforce.BackendIPTablesNFT, enforce.BackendIPTablesLegacy} {
			all = append(all, sized{b, n})
		}
	}
	return all
}

// sizes counts the objects of policies in the kernel of a host: chains, rules, sets and elements.
func sizes(t *testing.T, h *netnstest.Host, b enforce.Backend) []string {
	t.Helper()
	if b != enforce.BackendNFTables {
		return sizesOfIPTables(t, h, b)
	}
	text, err := h.Command("nft", "--json", "list", "table", "inet", ruleset.TableName)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, kind := range []string{"chain", "rule", "set", "map"} {
		counts[kind] = strings.Count(text, `{"`+kind+`": {"family"`)
	}
	elements := 0
	for _, name := range strings.Split(text, `"elem": [`)[1:] {
		list, _, _ := strings.Cut(name, `]}}`)
		elements += 1 + strings.Count(list, `, "1`) + strings.Count(list, `], [`)
	}
	return []string{fmt.Sprint(counts["chain"]), fmt.Sprint(counts["rule"]), fmt.Sprint(counts["set"] + counts["map"]), fmt.Sprint(elements)}
}

func sizesOfIPTables(t *testing.T, h *netnstest.Host, b enforce.Backend) []string {
	t.Helper()
	out, err := h.Command("sh", "-c", fmt.Sprintf("%s-save -t security; ip6%s-save -t security; ipset save", b, strings.TrimPrefix(string(b), "ip")))
	if err != nil {
		t.Fatal(err, out)
	}
	counts := map[string]int{}
	for line := range strings.Lines(out) {
		for _, prefix := range []string{":BERTH-", "-A BERTH-", "create berth-", "add berth-"} {
			if strings.HasPrefix(line, prefix) {
				counts[prefix]++
			}
		}
	}
	return []string{fmt.Sprint(counts[":BERTH-"]), fmt.Sprint(counts["-A BERTH-"]), fmt.Sprint(counts["create berth-"]), fmt.Sprint(counts["add berth-"])}
}

// TestCostPolicyTraffic measures what packets pay: connections a second, and the throughput of one
// stream, through a node with more and more policies.
func TestCostPolicyTraffic(t *testing.T) {
	const local = 100
	rounds, length := few(1, 40), time.Duration(few(100, 300))*time.Millisecond
	client, node, server := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	c := newCrowd(local, few(200, 10_000))
	// The server is the first pod of this node; the client is of an app that its policies let in.
	pod, peer := crowdPod(0), crowdPod(crowdNamespaces*crowdApps)
	join := func(h *netnstest.Host, link, address, gateway string) {
		h.IP("link", "add", "eth0", "type", "veth", "peer", "name", link)
		h.IP("link", "set", link, "netns", node.Path())
		h.IP("addr", "add", address+"/32", "dev", "eth0")
		h.IP("link", "set", "eth0", "up")
		h.IP("route", "add", gateway, "dev", "eth0")
		h.IP("route", "add", "default", "via", gateway)
		node.IP("addr", "add", gateway+"/32", "dev", link)
		node.IP("link", "set", link, "up")
		node.IP("route", "add", address, "dev", link)
	}
	join(server, "server0", pod.Addresses[0].String(), "169.254.1.1")
	join(client, "client0", peer.Addresses[0].String(), "169.254.1.2")
	node.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) })
	// Every node follows connections, for kube-proxy and for Berth's other tables.
	if out, err := node.Command("nft", "add table inet others; add chain inet others post { type nat hook postrouting priority srcnat; }; add rule inet others post ct status dnat masquerade"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	to := serveCosts(t, server)

	none := sized{enforce.BackendNFTables, 0}
	counts := append([]sized{none}, cases(few(2, 10), few(10, 1000))...)
	results := map[sized][2][]float64{}
	for round := range rounds {
		order := slices.Clone(counts)
		if round%2 > 0 {
			slices.Reverse(order)
		}
		for _, of := range order {
			kernels := of.backend.Open(node.Path())
			if of != none {
				x := c.index(0)
				withServer(c.policies(of.policies), pod).Tell(x)
				if err := kernels.Apply(t.Context(), x.Node()); err != nil {
					t.Fatal(err)
				}
			}
			all := results[of]
			all[0] = append(all[0], connections(t, client, netip.AddrPortFrom(pod.Addresses[0], to.connect).String(), length))
			all[1] = append(all[1], throughput(t, client, netip.AddrPortFrom(pod.Addresses[0], to.stream).String(), length))
			results[of] = all
			if err := kernels.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	report := benchtable.Table{
		Title: "Policies: cost for packets",
		Note: fmt.Sprintf("One client and one pod in namespaces, a node between them that forwards; the node has %d pods, and policies select each of them in turn, the measured one with one policy more that lets the client in. "+
			"0 policies is no table of policies; connections are followed in each case, as by kube-proxy on every node. %d rounds of %s each, in which the numbers take turns; medians, and the ratios to that without policies in the same round.", local, rounds, length),
		Rows: benchtable.Rows{{"backend", "policies", "new connections/s", "ratio", "its quartiles", "one stream, Gbit/s", "ratio", "its quartiles"}},
	}
	for _, of := range counts {
		row := []string{string(of.backend), fmt.Sprint(of.policies)}
		for side, unit := range []float64{1, 1e9} {
			var ratios []float64
			for round, value := range results[of][side] {
				ratios = append(ratios, value/results[none][side][round])
			}
			slices.Sort(ratios)
			format := "%.0f"
			if unit > 1 {
				format = "%.2f"
			}
			row = append(row, fmt.Sprintf(format, middle(results[of][side])/unit), fmt.Sprintf("%.2f", middle(ratios)),
				fmt.Sprintf("%.2f to %.2f", ratios[len(ratios)/4], ratios[len(ratios)*3/4]))
		}
		report.Rows = append(report.Rows, row)
	}
	benchtable.Log(t, report)
}

// withServer adds a policy that lets the client in, so that the pod is isolated with few
// policies too.
func withServer(all policytest.Policies, pod *policy.Pod) policytest.Policies {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "zz-server"}}
	p.Spec = letsIn(nil, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}}, networkingv1.NetworkPolicyPeer{
		IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"},
	})
	p.Spec.PodSelector.MatchLabels = labels{"number": string(pod.UID)}
	all.Network = append(all.Network, p)
	return all
}

func middle(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[(len(values)-1)/2]
}

// costServer has a port at which connections are closed at once, and one that swallows a stream.
type costServer struct{ connect, stream uint16 }

func serveCosts(t *testing.T, h *netnstest.Host) costServer {
	t.Helper()
	listen := func(serve func(net.Conn)) uint16 {
		var listener net.Listener
		h.Run(func() (err error) { listener, err = net.Listen("tcp4", ":0"); return err })
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				serve(conn)
			}
		}()
		return uint16(listener.Addr().(*net.TCPAddr).Port)
	}
	return costServer{
		connect: listen(func(conn net.Conn) { _ = conn.Close() }),
		stream:  listen(func(conn net.Conn) { go func() { defer conn.Close(); _, _ = io.Copy(io.Discard, conn) }() }),
	}
}

// connections opens one connection after the other, by a few at once, and returns how many a
// second were accepted and closed.
func connections(t *testing.T, from *netnstest.Host, to string, length time.Duration) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var made atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for range 4 {
		group.Go(func() {
			_ = from.Try(func() error {
				for ctx.Err() == nil {
					conn, err := net.DialTimeout("tcp", to, 10*time.Second)
					if err != nil {
						t.Errorf("connect: %v", err)
						return nil
					}
					// No port is left waiting for the connection's late packets.
					_, _ = conn.Read(make([]byte, 1))
					_ = conn.(*net.TCPConn).SetLinger(0)
					_ = conn.Close()
					made.Add(1)
				}
				return nil
			})
		})
	}
	group.Wait()
	return float64(made.Load()) / time.Since(start).Seconds()
}

// throughput sends zeros for a time and returns bits a second.
func throughput(t *testing.T, from *netnstest.Host, to string, length time.Duration) float64 {
	t.Helper()
	var conn net.Conn
	from.Run(func() (err error) { conn, err = net.DialTimeout("tcp", to, 10*time.Second); return err })
	defer conn.Close()
	buffer := make([]byte, 1<<18)
	var sent int64
	start := time.Now()
	for time.Since(start) < length {
		n, err := conn.Write(buffer)
		sent += int64(n)
		if err != nil {
			t.Fatal(err)
		}
	}
	return float64(sent) * 8 / time.Since(start).Seconds()
}
