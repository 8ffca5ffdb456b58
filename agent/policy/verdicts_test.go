// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// Verdicts are policies in one world, with what the documents of their APIs say about connections.
// They were written from these documents alone, without a look at how this package reads them.
type verdicts struct {
	World world `json:"world"`
	// Verdicts hold.
	Verdicts []verdict `json:"verdicts"`
	// Disputed do not hold here: Why says why this package decides otherwise, or cannot decide so. The
	// test fails where one holds, so that it is moved to the others.
	Disputed []verdict `json:"disputed"`
}

type world struct {
	// Nodes have their addresses by name, which is their label "node", and DNS has those of the DNS
	// cache of each node.
	Nodes      map[string][]netip.Addr      `json:"nodes"`
	DNS        []netip.Addr                 `json:"dns"`
	Namespaces map[string]map[string]string `json:"namespaces"`
	Pods       []worldPod                   `json:"pods"`
}

type worldPod struct {
	// Name is NAMESPACE/NAME.
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	Addresses []netip.Addr      `json:"addresses"`
	// Containers have their named ports: NAME PROTOCOL NUMBER.
	Containers [][]string `json:"containers"`
	// HostNetwork is the node in whose network it is.
	HostNetwork string          `json:"hostNetwork"`
	Phase       corev1.PodPhase `json:"phase"`
}

type verdict struct {
	Case string `json:"case"`
	// Says is the sentence, and At its place.
	Says string `json:"says"`
	At   string `json:"at"`
	// Note says what the documents leave open, or where they contradict each other.
	Note string `json:"note"`
	Why  string `json:"why"`

	// NetworkPolicies by NAMESPACE/NAME, and the others by name.
	NetworkPolicies        map[string]networkingv1.NetworkPolicySpec          `json:"networkPolicies"`
	ClusterNetworkPolicies map[string]policyv1alpha2.ClusterNetworkPolicySpec `json:"clusterNetworkPolicies"`
	Allowed                []string                                           `json:"allowed"`
	Denied                 []string                                           `json:"denied"`
}

func TestVerdicts(t *testing.T) {
	text, err := os.ReadFile("testdata/verdicts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all verdicts
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, v := range all.Verdicts {
		t.Run(v.Case, func(t *testing.T) {
			for _, wrong := range v.wrong(t, &all.World) {
				t.Errorf("%s\n%q (%s)", wrong, v.Says, v.At)
			}
		})
	}
	for _, v := range all.Disputed {
		t.Run(v.Case, func(t *testing.T) {
			wrong := v.wrong(t, &all.World)
			if v.Why == "" || len(wrong) == 0 {
				t.Errorf("it is not disputed: %d connections are decided otherwise, because %q", len(wrong), v.Why)
			}
			t.Logf("%s\n%q (%s)\nDisputed: %s", strings.Join(wrong, "\n"), v.Says, v.At, v.Why)
		})
	}
}

// wrong returns which connections are decided otherwise, by what.
func (v *verdict) wrong(t *testing.T, w *world) []string {
	t.Helper()
	if v.Case == "" || v.Says == "" || v.At == "" || len(v.Allowed)+len(v.Denied) == 0 {
		t.Fatal("a verdict has a case, a sentence, its place, and connections")
	}
	var wrong []string
	for want, list := range map[ruleset.Verdict][]string{ruleset.Accept: v.Allowed, ruleset.Drop: v.Denied} {
		for _, text := range list {
			for _, c := range w.connections(t, text) {
				for name, way := range c.ways() {
					if got, by := v.decide(t, w, way); got != want {
						wrong = append(wrong, fmt.Sprintf("%s (from %s to %s, %s): %s by %s", text, c.source, c.destination, name, got, by))
					}
				}
			}
		}
	}
	slices.Sort(wrong)
	return wrong
}

// connection is one packet of a connection, the first unless it is a reply.
type connection struct {
	source, destination netip.Addr
	from, to            end
	protocol            ruleset.Protocol
	port                uint16
	reply, hairpin      bool
}

// end is a pod or a node; neither is outside of the cluster.
type end struct {
	pod  *worldPod
	node string
}

// connectionText is "[v4|v6] [reply|hairpin] FROM > TO PROTOCOL[/PORT]", where FROM and TO are
// NAMESPACE/NAME of pods, names of nodes, or addresses. A hairpin is a connection of a pod to
// itself through a Service.
var connectionText = regexp.MustCompile(`^(?:(v4|v6) )?(?:(reply|hairpin) )?(\S+) > (\S+) (tcp|udp|sctp|icmp)(?:/(\d+))?$`)

// connections returns a connection in each family that both ends have.
func (w *world) connections(t *testing.T, text string) []connection {
	t.Helper()
	m := connectionText.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("connection %q", text)
	}
	from, sources := w.end(t, m[3])
	to, destinations := w.end(t, m[4])
	port, _ := strconv.ParseUint(cmp.Or(m[6], "0"), 10, 16)
	var all []connection
	for _, s := range sources {
		for _, d := range destinations {
			if s.Is4() != d.Is4() || m[1] == "v4" && s.Is6() || m[1] == "v6" && s.Is4() {
				continue
			}
			c := connection{source: s, destination: d, from: from, to: to, port: uint16(port), reply: m[2] == "reply", hairpin: m[2] == "hairpin"}
			switch m[5] {
			case "tcp":
				c.protocol = ruleset.TCP
			case "udp":
				c.protocol = ruleset.UDP
			case "sctp":
				c.protocol = ruleset.SCTP
			case "icmp":
				if c.protocol = 58; s.Is4() {
					c.protocol = 1
				}
			}
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		t.Fatalf("connection %q: the ends have no common family", text)
	}
	return all
}

func (w *world) end(t *testing.T, text string) (end, []netip.Addr) {
	t.Helper()
	if addresses := w.Nodes[text]; addresses != nil {
		return end{node: text}, addresses
	}
	for i := range w.Pods {
		p := &w.Pods[i]
		switch {
		case p.Name != text:
		case p.HostNetwork != "":
			return end{node: p.HostNetwork}, w.Nodes[p.HostNetwork]
		case p.isIn():
			return end{pod: p}, p.Addresses
		}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.Fatalf("%q is no running pod, no node and no address", text)
	}
	if slices.Contains(w.DNS, a) {
		return end{node: here}, []netip.Addr{a}
	}
	return end{}, []netip.Addr{a}
}

// here is the node of all pods, unless a way has one at there.
const (
	here  = "one"
	there = "two"
)

// uplink leads out of each node, and direct out of pods whose packets do not pass their node.
const (
	uplink = "uplink"
	direct = "net1"
)

// link is the node's link to a pod.
func (p *worldPod) link() string { return "to-" + strings.ReplaceAll(p.Name, "/", "-") }

// isIn returns whether a pod has a network of its own.
func (p *worldPod) isIn() bool {
	return p.HostNetwork == "" && p.Phase != corev1.PodSucceeded && p.Phase != corev1.PodFailed
}

// way is how a packet goes: through the rulesets of nodes, of which the destination's may be
// another, and of pods where isDirect.
type way struct {
	connection
	node     string
	isDirect bool
}

// ways returns the ways of a connection. The API knows no ways, so all lead to the same verdict.
func (c connection) ways() map[string]way {
	all := map[string]way{}
	if c.from.pod != c.to.pod || c.hairpin {
		all["on one node"] = way{connection: c, node: here}
	}
	if c.from.pod != nil && c.to.pod != nil && c.from.pod != c.to.pod {
		all["between two nodes"] = way{connection: c, node: there}
	}
	if (c.from.pod != nil || c.to.pod != nil) && !c.hairpin {
		all["past the node"] = way{connection: c, node: here, isDirect: true}
	}
	return all
}

// decide walks a connection through all rulesets that it passes.
func (v *verdict) decide(t *testing.T, w *world, way way) (ruleset.Verdict, string) {
	t.Helper()
	packet := ruleset.Packet{Source: way.source, Destination: way.destination, Protocol: way.protocol, Port: way.port, Established: way.reply}
	problems := map[string]string{}
	walk := func(rs *ruleset.Ruleset, hook ruleset.Hook, in, out string, local bool) (ruleset.Verdict, string) {
		if err := rulesettest.Check(rs); err != nil {
			t.Fatal(err)
		}
		p := packet
		p.InInterface, p.OutInterface, p.LocalSource = in, out, local
		d := ruleset.Walk(rs, hook, p)
		return d.Verdict, fmt.Sprintf("%v at %s %v", d.Origin(), hook, slices.Collect(maps.Values(problems)))
	}
	index := func(node string) *policy.Index {
		x := v.index(w, node, way)
		for _, p := range x.Problems() {
			problems[p.Text] = p.Text
		}
		return x
	}
	source, destination := here, way.node
	if way.from.node != "" {
		source = way.from.node
	}
	if way.to.node != "" {
		destination = way.to.node
	}

	if way.isDirect {
		wire := direct
		if way.from.pod == way.to.pod {
			wire = ruleset.Loopback
		}
		if p := way.from.pod; p != nil {
			if got, by := walk(index(source).Pod(p.uid()), ruleset.Output, "", wire, true); got != ruleset.Accept {
				return got, by
			}
		}
		if p := way.to.pod; p != nil {
			return walk(index(destination).Pod(p.uid()), ruleset.Input, wire, "", way.from.pod == p)
		}
		return ruleset.Accept, "nothing"
	}

	// Each node sees the packet once: where it begins, where it ends, or on its way between two of its
	// links.
	cross := func(node string, hasSource, hasDestination bool) (ruleset.Verdict, string) {
		hook, in, out := ruleset.Forward, uplink, uplink
		if hasSource && way.from.pod != nil {
			in = way.from.pod.link()
		}
		if hasDestination && way.to.pod != nil {
			out = way.to.pod.link()
		}
		switch {
		case hasSource && way.from.node != "":
			hook, in = ruleset.Output, ""
		case hasDestination && way.to.node != "":
			hook, out = ruleset.Input, ""
		}
		return walk(index(node).Node(), hook, in, out, hook == ruleset.Output)
	}
	outside := end{}
	switch {
	case way.from == outside:
		return cross(destination, false, true)
	case way.to == outside:
		return cross(source, true, false)
	case source == destination:
		return cross(source, true, true)
	}
	if got, by := cross(source, true, false); got != ruleset.Accept {
		return got, by
	}
	return cross(destination, false, true)
}

// index returns the policies of a node.
func (v *verdict) index(w *world, node string, way way) *policy.Index {
	cluster := cluster{w.namespaces(), map[types.NamespacedName]*policy.Pod{}}
	var locals []policy.Local
	for i := range w.Pods {
		p := &w.Pods[i]
		if !p.isIn() {
			continue
		}
		pod := p.pod()
		cluster.pods[pod.NamespacedName] = pod
		at := here
		if p == way.to.pod {
			at = way.node
		}
		if at != node {
			continue
		}
		l := policy.Local{NamespacedName: pod.NamespacedName, UID: pod.UID, Addresses: pod.Addresses, Ways: []string{p.link()}}
		if way.isDirect {
			l.Ways, l.Direct, l.ByWire = nil, []string{direct}, slices.SortedFunc(slices.Values(pod.Addresses), netip.Addr.Compare)
		}
		locals = append(locals, l)
	}
	for name, addresses := range w.Nodes {
		node := &policy.Pod{NamespacedName: types.NamespacedName{Namespace: policy.NodeNamespace, Name: name}, UID: types.UID(name), Labels: map[string]string{"node": name}, Addresses: addresses}
		cluster.pods[node.NamespacedName] = node
	}
	x := policy.NewIndex(cluster)
	for name, labels := range cluster.namespaces {
		x.SetNamespace(name, labels)
	}
	x.SetNodeAddresses(w.Nodes[node], w.DNS)
	for _, l := range locals {
		x.SetLocal(l)
	}
	for name, spec := range v.NetworkPolicies {
		n := namespacedName(name)
		x.SetNetworkPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}, Spec: spec})
	}
	for name, spec := range v.ClusterNetworkPolicies {
		x.SetClusterPolicy(&policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	}
	return x
}

// namespaces returns them with the label that the control plane sets.
func (w *world) namespaces() map[string]map[string]string {
	all := map[string]map[string]string{}
	for name, labels := range w.Namespaces {
		all[name] = map[string]string{corev1.LabelMetadataName: name}
		maps.Copy(all[name], labels)
	}
	return all
}

func (p *worldPod) uid() types.UID { return types.UID(p.Name) }

func (p *worldPod) pod() *policy.Pod {
	pod := &policy.Pod{NamespacedName: namespacedName(p.Name), UID: p.uid(), Labels: p.Labels, Addresses: p.Addresses}
	for _, text := range slices.Concat(p.Containers...) {
		var port policy.NamedPort
		if _, err := fmt.Sscan(text, &port.Name, &port.Protocol, &port.Port); err != nil {
			panic(fmt.Sprintf("port %q of pod %s: %v", text, p.Name, err))
		}
		pod.Ports = append(pod.Ports, port)
	}
	return pod
}

func namespacedName(text string) types.NamespacedName {
	namespace, name, _ := strings.Cut(text, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// cluster is a policy.Cluster.
type cluster struct {
	namespaces map[string]map[string]string
	pods       map[types.NamespacedName]*policy.Pod
}

func (c cluster) Namespaces() iter.Seq2[string, map[string]string] { return maps.All(c.namespaces) }

func (c cluster) Pods(namespace string) iter.Seq[*policy.Pod] {
	return func(yield func(*policy.Pod) bool) {
		for name, pod := range c.pods {
			if name.Namespace == namespace && !yield(pod) {
				return
			}
		}
	}
}

func (c cluster) Pod(name types.NamespacedName) *policy.Pod { return c.pods[name] }
