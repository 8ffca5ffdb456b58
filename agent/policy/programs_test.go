// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// The chart's NetworkPolicies of Berth's own pods let in whom they need, at their port: kubelets'
// probes and the API server's proxy, which come from nodes, and scrapes. They leave ways out alone.
// With the values of docs/explanation/security.md the pods reach the API server only.
func TestPoliciesOfPrograms(t *testing.T) {
	addresses := func(a string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(a)} }
	// The page's nodes are 10.0.0.0/24, and its Prometheus is in the namespace monitoring.
	w := world{
		Nodes: map[string][]netip.Addr{here: addresses("10.0.0.1"), there: addresses("10.0.0.2")},
		Namespaces: map[string]map[string]string{
			"b": {}, "m": {"kubernetes.io/metadata.name": "monitoring"}, "tenant": {"kubernetes.io/metadata.name": "tenant"},
		},
		Pods: []worldPod{
			{Name: "m/scraper", Addresses: addresses("10.1.0.1")}, {Name: "tenant/pod", Addresses: addresses("10.1.0.2")},
			{Name: "b/other", Labels: map[string]string{"app.kubernetes.io/name": "other"}, Addresses: addresses("10.1.0.3")},
		},
	}
	open := verdict{Case: "enabled", Says: "at the port that each serves", At: "the template", NetworkPolicies: map[string]networkingv1.NetworkPolicySpec{}}
	limited := verdict{Case: "limited", Says: "say both where you know them", At: "the page", NetworkPolicies: map[string]networkingv1.NetworkPolicySpec{}}
	shipped, values := policiesOfPrograms(t)
	for i, p := range shipped {
		pod, port := strings.Replace(p.Name, "berth-", "b/", 1), p.Spec.Ingress[0].Ports[0].Port.String()
		w.Pods = append(w.Pods, worldPod{Name: pod, Labels: map[string]string{"app.kubernetes.io/name": p.Name}, Addresses: addresses(fmt.Sprintf("10.1.1.%d", i))})
		open.NetworkPolicies["b/"+p.Name] = *p.Spec.DeepCopy()
		// As the template does; test/helm/render has what it makes.
		p.Spec.Ingress[0].From, p.Spec.Egress = values.From, values.Egress
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		limited.NetworkPolicies["b/"+p.Name] = p.Spec

		at := func(from, port string) string { return from + " > " + pod + " tcp/" + port }
		to := func(whom string) string { return pod + " > " + whom }
		open.Allowed = append(open.Allowed, at(here, port), at(there, port), at("m/scraper", port), at("tenant/pod", port), at("198.51.100.7", port), to("10.0.0.2 tcp/6443"), to("198.51.100.7 udp/53"))
		open.Denied = append(open.Denied, at("m/scraper", "6060"), at("tenant/pod", "22"), strings.Replace(at("198.51.100.7", port), "tcp", "udp", 1))
		limited.Allowed = append(limited.Allowed, at(here, port), at(there, port), at("m/scraper", port), to("one tcp/6443"), to("two tcp/6443"))
		limited.Denied = append(limited.Denied, at("m/scraper", "6060"), at("tenant/pod", port), at("198.51.100.7", port), to("two tcp/22"), to("tenant/pod tcp/6443"), to("198.51.100.7 tcp/443"), to("198.51.100.7 udp/53"))
	}
	open.Allowed = append(open.Allowed, "tenant/pod > b/other tcp/80")
	for _, v := range []verdict{open, limited} {
		for _, wrong := range v.wrong(t, &w) {
			t.Errorf("%s: %s", v.Case, wrong)
		}
	}
}

type programsValues struct {
	Enabled bool                                   `json:"enabled"`
	From    []networkingv1.NetworkPolicyPeer       `json:"from"`
	Egress  []networkingv1.NetworkPolicyEgressRule `json:"egress"`
}

// policiesOfPrograms returns the policies without further values, and the page's values.
func policiesOfPrograms(t *testing.T) (shipped []networkingv1.NetworkPolicy, page programsValues) {
	t.Helper()
	text, err := os.ReadFile("../../manifests/network-policies/programs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var p networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(document), &p); err != nil {
			t.Fatal(err)
		}
		shipped = append(shipped, p)
	}
	if len(shipped) != 2 {
		t.Fatalf("%d policies, want the scheduler's and the controller's", len(shipped))
	}
	if text, err = os.ReadFile("../../docs/explanation/security.md"); err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(# values.yaml\nnetworkPolicy:\n.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/explanation/security.md has no values of them")
	}
	var values struct {
		NetworkPolicy struct {
			Programs programsValues `json:"programs"`
		} `json:"networkPolicy"`
	}
	if err := yaml.UnmarshalStrict(block[1], &values); err != nil {
		t.Fatal(err)
	}
	return shipped, values.NetworkPolicy.Programs
}
