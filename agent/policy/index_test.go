// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

func networkPolicy(t testing.TB, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	var p networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// Before the first policy there is no ruleset.
func TestNoPolicy(t *testing.T) {
	w := newFakeCluster()
	w.namespace("a", nil)
	w.local(w.pod("a", "server", map[string]string{"app": "server"}, "10.0.0.1"))
	if n := w.index.Node(); len(n.Chains)+len(n.Maps)+len(n.Sets) > 0 {
		t.Errorf("there is %v", rulesettest.Text(n))
	}
}

func TestFirstPolicy(t *testing.T) {
	w := newFakeCluster()
	w.namespace("a", nil)
	w.namespace("b", map[string]string{"team": "b"})
	w.local(w.pod("a", "server", map[string]string{"app": "server"}, "10.0.0.1"), w.pod("a", "free", nil, "10.0.0.2"))
	w.pod("a", "client", map[string]string{"app": "client"}, "10.0.1.1")
	w.pod("b", "client", map[string]string{"app": "client"}, "10.0.1.2")
	w.index.SetNetworkPolicy(networkPolicy(t, `
metadata: {namespace: a, name: server}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}]
`))
	n := w.index.Node()
	for _, c := range []struct {
		from, to string
		port     uint16
		want     bool
	}{
		{"10.0.1.1", "10.0.0.1", 80, true},
		{"10.0.1.1", "10.0.0.1", 81, false},
		{"10.0.1.2", "10.0.0.1", 80, false},
		{"10.0.0.2", "10.0.0.1", 80, false},
		{"10.0.0.1", "10.0.0.1", 80, true},
		{"10.0.0.1", "10.0.0.2", 80, true},
		{"10.0.1.2", "10.0.0.2", 80, true},
	} {
		if got := passes(t, n, c.from, c.to, ruleset.TCP, c.port); got != c.want {
			t.Errorf("from %s to %s:%d: %t", c.from, c.to, c.port, got)
		}
	}
	w.remove("a", "client")
	next := w.index.Node()
	if passes(t, next, "10.0.1.1", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the client is gone and may come")
	}
	for name, chain := range next.Chains {
		if chain != n.Chains[name] {
			t.Errorf("chain %s changed", name)
		}
	}
	if w.index.Node() != next {
		t.Error("nothing changed and the ruleset did")
	}
}

const fromClients = `
metadata: {namespace: a, name: server}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
  - from: [{namespaceSelector: {matchLabels: {team: b}}}]
`

// served is a server of the node, its policy and a client.
func served(t *testing.T) *fakeCluster {
	w := newFakeCluster()
	w.namespace("a", nil)
	w.namespace("b", map[string]string{"team": "b"})
	w.index.SetNetworkPolicy(networkPolicy(t, fromClients))
	w.local(w.pod("a", "server", map[string]string{"app": "server"}, "10.0.0.1"))
	w.pod("a", "client", map[string]string{"app": "client"}, "10.0.1.1")
	return w
}

// A pod changes the sets to which it belongs, and nothing else.
func TestPodChangesItsSets(t *testing.T) {
	w := served(t)
	last := w.index.Node()
	w.pod("a", "another", map[string]string{"app": "client"}, "10.0.1.2")
	next := w.index.Node()
	changed := 0
	for name, set := range next.Sets {
		if last.Sets[name] != set {
			changed++
		}
	}
	if changed != 1 || len(next.Sets) != len(last.Sets) {
		t.Errorf("%d sets changed", changed)
	}
	for name := range next.Maps {
		if last.Maps[name] != next.Maps[name] {
			t.Errorf("map %s changed", name)
		}
	}
	for name := range next.Chains {
		if last.Chains[name] != next.Chains[name] {
			t.Errorf("chain %s changed", name)
		}
	}
	w.pod("a", "nobody", map[string]string{"app": "nobody"}, "10.0.1.3")
	if w.index.Node() != next {
		t.Error("a pod that nobody selects changed the ruleset")
	}
}

// A pod of the node with the policies of another adds elements of maps, and no rule.
func TestLocalPodSharesChains(t *testing.T) {
	w := served(t)
	last := w.index.Node()
	for i := range 100 {
		w.local(w.pod("a", fmt.Sprintf("server-%d", i), map[string]string{"app": "server"}, fmt.Sprintf("10.0.2.%d", i)))
	}
	next := w.index.Node()
	if len(next.Chains) != len(last.Chains) {
		t.Errorf("%d chains became %d", len(last.Chains), len(next.Chains))
	}
	for name := range next.Chains {
		if last.Chains[name] != next.Chains[name] {
			t.Errorf("chain %s changed", name)
		}
	}
	if got := len(next.Maps["ingress4"].Chains); got != 101 {
		t.Errorf("%d elements", got)
	}
}

// rules counts the rules of the chain of a pod's address and of all chains that it leads to.
func rules(rs *ruleset.Ruleset, of string) int {
	var count func(name string) int
	count = func(name string) int {
		n := 0
		if chain := rs.Chains[name]; chain != nil {
			for _, r := range chain.Rules {
				n += 1 + count(r.Target)
			}
		}
		return n
	}
	return count(rs.Maps["ingress4"].Chains[netip.MustParseAddr(of)])
}

// How many rules a new connection may meet does not follow from policies that do not select its
// pods, nor from how many peers or ports a policy has.
func TestRuleCounts(t *testing.T) {
	w := served(t)
	// One for each peer, one that jumps and one that drops.
	if got := rules(w.index.Node(), "10.0.0.1"); got != 4 {
		t.Errorf("%d rules", got)
	}
	for i := range 50 {
		w.index.SetNetworkPolicy(networkPolicy(t, fmt.Sprintf("{metadata: {namespace: a, name: other-%d}, spec: {podSelector: {matchLabels: {app: other}}}}", i)))
		w.index.SetNetworkPolicy(networkPolicy(t, fmt.Sprintf("{metadata: {namespace: b, name: other-%d}}", i)))
		w.pod("a", fmt.Sprintf("client-%d", i), map[string]string{"app": "client"}, fmt.Sprintf("10.0.2.%d", i))
	}
	if got := rules(w.index.Node(), "10.0.0.1"); got != 4 {
		t.Errorf("%d rules with policies that do not select the pod", got)
	}
	w.index.SetNetworkPolicy(networkPolicy(t, `
metadata: {namespace: a, name: server}
spec:
  podSelector: {}
  ingress:
  - from:
    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.0.0/16]}
    - ipBlock: {cidr: 192.0.2.0/24}
    - podSelector: {matchLabels: {app: client}}
    - podSelector: {matchExpressions: [{key: app, operator: In, values: [client]}]}
    ports: [{port: 1}, {port: 3}, {port: 5}, {port: 7, protocol: UDP}, {port: 9, protocol: UDP}]
`))
	// Two sources with two protocols.
	if got := rules(w.index.Node(), "10.0.0.1"); got != 6 {
		t.Errorf("%d rules with many ports", got)
	}
}

// An address that moves has two pods for a moment, and stays in the set until both are gone.
func TestAddressOfTwoPods(t *testing.T) {
	w := served(t)
	w.pod("a", "next", map[string]string{"app": "client"}, "10.0.1.1")
	w.remove("a", "client")
	if !passes(t, w.index.Node(), "10.0.1.1", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the address left with the first of its pods")
	}
	w.remove("a", "next")
	if passes(t, w.index.Node(), "10.0.1.1", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the address stayed without a pod")
	}
}

// Of two local pods with one address the newer one has the packets, also where no policy selects
// it.
func TestAddressOfTwoLocalPods(t *testing.T) {
	w := served(t)
	w.local(w.pod("a", "free", nil, "10.0.0.1"))
	if !passes(t, w.index.Node(), "192.0.2.1", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the newer pod has the rules of the older one")
	}
	w.index.DeleteLocal("a/server")
	if n := w.index.Node(); len(n.Chains) > 0 {
		t.Error("rules of a pod stayed that is gone")
	}
	w.local(w.pods["a"]["server"])
	if passes(t, w.index.Node(), "192.0.2.1", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the newer pod has no rules")
	}
}

// Labels of pods and of namespaces are followed, of the policy's pods and of peers.
func TestLabels(t *testing.T) {
	w := served(t)
	w.pod("b", "friend", nil, "10.0.1.2")
	comes := func(from string, want bool) {
		t.Helper()
		if got := passes(t, w.index.Node(), from, "10.0.0.1", ruleset.TCP, 80); got != want {
			t.Errorf("%s comes: %t", from, got)
		}
	}
	comes("10.0.1.2", true)
	w.namespace("b", nil)
	comes("10.0.1.2", false)
	w.namespace("a", map[string]string{"team": "b"})
	w.pod("a", "another", nil, "10.0.1.3")
	comes("10.0.1.3", true)
	w.pod("a", "client", nil, "10.0.1.1")
	w.namespace("a", nil)
	comes("10.0.1.1", false)
	w.pod("a", "client", map[string]string{"app": "client"}, "10.0.1.4")
	comes("10.0.1.4", true)
	comes("10.0.1.1", false)
	w.pod("a", "server", nil, "10.0.0.1")
	comes("192.0.2.1", true)
	w.pod("a", "server", map[string]string{"app": "server"}, "10.0.0.1")
	comes("192.0.2.1", false)
}

// A pod that the cluster has not shown is cut off where policies may select it, and is no peer.
func TestUnknownPod(t *testing.T) {
	w := served(t)
	client := Local{NamespacedName: types.NamespacedName{Namespace: "a", Name: "new"}, UID: "a/new", Addresses: addrs("10.0.0.2")}
	w.index.SetLocal(client)
	elsewhere := Local{NamespacedName: types.NamespacedName{Namespace: "b", Name: "new"}, UID: "b/new", Addresses: addrs("10.0.0.3")}
	w.index.SetLocal(elsewhere)
	n := w.index.Node()
	if w.index.locals[client.UID].pod != nil || passes(t, n, "192.0.2.1", "10.0.0.2", ruleset.TCP, 80) || passes(t, n, "10.0.0.2", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("nothing is known of the pod, and it has a network")
	}
	if !passes(t, n, "10.0.0.2", "192.0.2.1", ruleset.TCP, 80) || !passes(t, n, "192.0.2.1", "10.0.0.3", ruleset.TCP, 80) {
		t.Error("no policy can forbid it")
	}
	// The API shows no address yet: the agent's record counts.
	w.pod("a", "new", map[string]string{"app": "client"})
	n = w.index.Node()
	if w.index.locals[client.UID].pod == nil || !passes(t, n, "192.0.2.1", "10.0.0.2", ruleset.TCP, 80) || !passes(t, n, "10.0.0.2", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the pod is known, and has none")
	}
	// The pod goes from the API and runs on for a moment.
	w.pod("a", "new", map[string]string{"app": "server"})
	w.remove("a", "new")
	n = w.index.Node()
	if passes(t, n, "10.0.0.2", "10.0.0.1", ruleset.TCP, 80) || passes(t, n, "192.0.2.1", "10.0.0.2", ruleset.TCP, 80) {
		t.Error("the pod is gone from the API, and has more than before")
	}
}

// A policy that is told again changes nothing, and one that goes leaves nothing.
func TestToldAgain(t *testing.T) {
	w := served(t)
	n := w.index.Node()
	p := networkPolicy(t, fromClients)
	w.index.SetNetworkPolicy(p)
	if w.index.Node() != n {
		t.Error("a policy that was written without a change changed the ruleset")
	}
	w.index.DeletePolicy(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	if n := w.index.Node(); len(n.Chains) > 0 || len(w.index.peers) > 0 || len(w.index.chains) > 0 {
		t.Error("without policies something stayed")
	}
}

// An ungoverned pod has no rules, also before the cluster shows it, and is a peer of others as
// before; a copy of an index says what rules it would have, and leaves the index alone.
func TestUngoverned(t *testing.T) {
	w := served(t)
	governed := w.index.Node()
	server := w.index.locals["a/server"].Local
	w.index.SetLocal(Local{NamespacedName: types.NamespacedName{Namespace: "a", Name: "client"}, UID: "a/client", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Ungoverned: true})
	if !passes(t, w.index.Node(), "10.0.0.9", "10.0.0.1", ruleset.TCP, 80) {
		t.Error("the address of an ungoverned pod is no peer's")
	}
	for _, uid := range []types.UID{"a/server", "a/unknown"} {
		server.UID, server.Name, server.Ungoverned = uid, string(uid)[2:], true
		w.index.SetLocal(server)
		if w.index.Governs(uid) || len(w.index.Selecting(uid)[ruleset.Ingress]) > 0 {
			t.Errorf("policies govern the ungoverned pod %s", uid)
		}
	}
	ungoverned := w.index.Node()
	if len(ungoverned.Chains) > 0 {
		t.Errorf("there are rules: %v", ungoverned.Chains)
	}
	server.UID, server.Name, server.Ungoverned = "a/server", "server", false
	copied := w.index.Copy()
	copied.SetLocal(server)
	if diff := cmp.Diff(governed.Chains, copied.Node().Chains); diff != "" || !copied.Governs("a/server") {
		t.Errorf("the copy has other rules (-want +got):\n%s", diff)
	}
	w.remove("a", "client")
	if w.index.Governs("a/server") || w.index.Node() != ungoverned {
		t.Error("the copy changed the index")
	}
}

// What a pod costs to call itself grows with its addresses, and not with their pairs.
func TestManyAddresses(t *testing.T) {
	w := newFakeCluster()
	w.namespace("a", nil)
	p := w.pod("a", "server", nil, "10.0.0.1")
	w.index.SetNetworkPolicy(networkPolicy(t, "{metadata: {namespace: a, name: deny}, spec: {podSelector: {}}}"))
	const many = 5000
	l := Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses, Ways: []string{"cni0"}}
	for a := netip.MustParseAddr("10.1.0.0"); len(l.Addresses) < many; a = a.Next() {
		l.Addresses = append(l.Addresses, a)
	}
	w.index.SetLocal(l)
	if own := w.index.Node().Sets["own4"].Links; len(own) != many {
		t.Errorf("%d links of %d addresses", len(own), many)
	}
	l.Shared = true
	w.index.SetLocal(l)
	if pairs := w.index.Node().Sets["self4"].Pairs; len(pairs) < many || len(pairs) > 2*many {
		t.Errorf("%d pairs of %d addresses", len(pairs), many)
	}
}

// A pod that was deleted by force and runs on keeps the policies of its namespace's labels when the
// namespace goes, also where another one takes the name.
func TestNamespaceOfRunningPodGoes(t *testing.T) {
	w := newFakeCluster()
	w.namespace("a", map[string]string{"team": "x"})
	p := w.pod("a", "server", nil, "10.0.0.1")
	w.local(p)
	var policy policyv1alpha2.ClusterNetworkPolicy
	err := yaml.UnmarshalStrict([]byte(`
metadata: {name: deny}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {matchLabels: {team: x}}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
  egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]
`), &policy)
	if err != nil {
		t.Fatal(err)
	}
	w.index.SetClusterPolicy(&policy)
	denied := func(what string, want bool) {
		t.Helper()
		if got := !passes(t, w.index.Node(), "10.0.0.1", "192.0.2.1", ruleset.TCP, 80); got != want || w.index.Governs(p.UID) != want {
			t.Errorf("%s: denied: %t, governed: %t, want %t", what, got, w.index.Governs(p.UID), want)
		}
	}
	denied("the pod runs", true)
	// The watches of pods and namespaces do not wait for each other.
	w.index.DeleteNamespace("a")
	denied("the namespace is gone", true)
	w.remove("a", "server")
	denied("the pod is gone from the API", true)
	w.namespace("a", map[string]string{"team": "y"})
	denied("another namespace has the name", true)
	// Unlike a pod that the cluster shows.
	w.set(p)
	denied("the cluster shows the pod in it", false)
	w.remove("a", "server")
	denied("the pod is gone from the API again", false)
}

// Labels of a namespace that change have the pods of this namespace read and no others.
func TestReadsOfNamespace(t *testing.T) {
	w := newFakeCluster()
	for i, name := range []string{"shop", "a", "b", "c"} {
		w.namespace(name, map[string]string{"team": "x"})
		w.pod(name, "web", nil, fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprintf("fd00:1::%d", i+1))
	}
	w.index.SetNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "team"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}},
		}}}},
	})
	w.local(w.pods["shop"]["web"])
	peers := func() string {
		var all []netip.Addr
		for name, s := range w.index.Node().Sets {
			if strings.HasPrefix(name, "a4-") {
				all = append(all, s.Addresses...)
			}
		}
		return fmt.Sprint(all)
	}
	if got := peers(); got != "[10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4]" {
		t.Fatalf("peers %s", got)
	}
	for _, tc := range []struct{ team, other, read, peers string }{
		{"x", "no requirement has it", "[]", "[10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4]"},
		{"y", "", "[]", "[10.1.0.1 10.1.0.2 10.1.0.4]"},
		{"x", "", "[b]", "[10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4]"},
		{"x", "", "[]", "[10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4]"},
	} {
		w.read = nil
		w.namespace("b", map[string]string{"team": tc.team, "other": tc.other})
		if got := peers(); got != tc.peers || fmt.Sprint(w.read) != tc.read {
			t.Errorf("team %s: peers %s, want %s; read pods of %v, want %s", tc.team, got, tc.peers, w.read, tc.read)
		}
	}
}
