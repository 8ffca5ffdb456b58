// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

func networkPolicy(t testing.TB, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	var p networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// What a first policy changes: before it there is nothing.
func TestNoPolicy(t *testing.T) {
	w := newWorld()
	w.namespace("a", nil)
	w.local(w.pod("a", "server", map[string]string{"app": "server"}, "10.0.0.1"))
	if n := w.index.Node(); len(n.Chains)+len(n.Maps)+len(n.Sets) > 0 {
		t.Errorf("there is %v", ruleset.Text(n))
	}
}

func TestFirstPolicy(t *testing.T) {
	w := newWorld()
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
	t.Log("\n" + ruleset.Text(n))
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
