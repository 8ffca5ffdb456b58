// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/enforce"
)

// pods are the pods of one namespace.
type pods []*policy.Pod

func (p pods) Namespaces() iter.Seq2[string, map[string]string] {
	return maps.All(map[string]map[string]string{"shop": {}})
}
func (p pods) Pods(string) iter.Seq[*policy.Pod] { return slices.Values(p) }
func (p pods) Pod(name types.NamespacedName) *policy.Pod {
	if i := slices.IndexFunc(p, func(q *policy.Pod) bool { return q.NamespacedName == name }); i >= 0 {
		return p[i]
	}
	return nil
}

// Policies hold for connections to Services as well, of which the node sends the packets, with each
// backend.
func TestPolicies(t *testing.T) {
	for _, backend := range []enforce.Backend{enforce.BackendNFTables, enforce.BackendIPTablesNFT, enforce.BackendIPTablesLegacy} {
		t.Run(string(backend), func(t *testing.T) { testPolicies(t, backend) })
	}
}

func testPolicies(t *testing.T, backend enforce.Backend) {
	const (
		client, server, other       = "10.0.70.5", "10.0.70.6", "10.0.70.7"
		toServer, toOut, port       = "10.96.0.6", "10.96.0.50", 80
		nodePort              int32 = 30006
	)
	w := newTopology(t)
	a, _, c := w.pod("a", client, "eth0"), w.pod("b", server, "eth0"), w.pod("c", other, "eth0")
	settings{Services: []service{
		{Name: "server", ClusterIP: toServer, Endpoint: server, Port: port, NodePort: nodePort, Local: true},
		{Name: "outside", ClusterIP: toOut, Endpoint: outside, Port: port, NodePort: 30050},
	}}.start(t, w.node)
	var all pods
	for name, address := range map[string]string{"client": client, "server": server, "other": other} {
		all = append(all, &policy.Pod{
			NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}, UID: types.UID(name),
			Labels: map[string]string{"app": name}, Addresses: []netip.Addr{netip.MustParseAddr(address)},
		})
	}
	index := policy.NewIndex(all)
	for _, p := range all {
		index.SetLocal(policy.Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses})
	}
	rules := backend.Open(w.node.Path())
	for _, step := range []struct {
		name   string
		policy *networkingv1.NetworkPolicy
		// Whether the client and the other pod reach the Service of the server, the client the one of the
		// outside, and the outside the server's NodePort.
		client, other, out, in bool
	}{
		{"no policy", nil, true, true, true, true},
		{"the client may come to the server", allow("server", networkingv1.PolicyTypeIngress, "client"), true, false, true, false},
		{"the client may go to the server", allow("client", networkingv1.PolicyTypeEgress, "server"), true, false, false, false},
		{"the client may go to the other", allow("client", networkingv1.PolicyTypeEgress, "other"), false, false, false, false},
	} {
		t.Run(step.name, func(t *testing.T) {
			if step.policy != nil {
				index.SetNetworkPolicy(step.policy)
			}
			if err := rules.Apply(t.Context(), index.Node()); err != nil {
				t.Fatal(err)
			}
			for _, try := range []struct {
				name      string
				got, want bool
			}{
				{"the client reaches the Service of the server", w.reaches(a, toServer, port), step.client},
				{"the other reaches the Service of the server", w.reaches(c, toServer, port), step.other},
				{"the client reaches the Service of the outside", w.reaches(a, toOut, port), step.out},
				{"the outside reaches the NodePort of the server", w.reaches(w.outside, nodeAddress, nodePort), step.in},
				{"the client reaches the server without a Service", w.reaches(a, server, podPort), step.client},
				{"the node reaches the Service of the server", w.reaches(w.node, toServer, port), true},
			} {
				if try.got != try.want {
					t.Errorf("%s: %t, want %t", try.name, try.got, try.want)
				}
			}
		})
	}
}

// allow is a policy for a pod that allows one other.
func allow(pod string, direction networkingv1.PolicyType, peer string) *networkingv1.NetworkPolicy {
	selector := func(app string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: pod, UID: types.UID(pod)},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: selector(pod), PolicyTypes: []networkingv1.PolicyType{direction}},
	}
	only := selector(peer)
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: &only}}
	if direction == networkingv1.PolicyTypeIngress {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers}}
	} else {
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: peers}}
	}
	return p
}
