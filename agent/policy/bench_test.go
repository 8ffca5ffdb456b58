// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// benchmark is a cluster of 10,000 pods, of which 100 are local, and 1,000 policies.
type benchmark struct {
	*fakeCluster
	policies []*networkingv1.NetworkPolicy
	locals   []Local
}

const (
	benchPods, benchLocals, benchPolicies = 10000, 100, 1000
	benchNamespaces, benchApps            = 20, 100
)

// spread has each policy select the pods of one application of one of the namespaces, as users
// write them. Otherwise each policy selects each local pod, and each has peers of its own.
func newBenchmark(spread bool) *benchmark {
	b := &benchmark{fakeCluster: &fakeCluster{namespaces: map[string]map[string]string{}, pods: map[string]map[string]*Pod{}}}
	for i := range benchNamespaces {
		name := fmt.Sprintf("ns-%d", i)
		b.namespaces[name] = map[string]string{corev1.LabelMetadataName: name, "team": fmt.Sprint(i % 5)}
		b.pods[name] = map[string]*Pod{}
	}
	for i := range benchPods {
		p := benchPod(i)
		b.pods[p.Namespace][p.Name] = p
		if i < benchLocals {
			b.locals = append(b.locals, Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses})
		}
	}
	for i := range benchPolicies {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%benchNamespaces), Name: fmt.Sprintf("policy-%d", i)}}
		app := func(n int) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", n%benchApps)}}
		}
		peers := []networkingv1.NetworkPolicyPeer{
			{PodSelector: app(i * 7)},
			{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint(i % 5)}}, PodSelector: app(i * 3)},
		}
		if spread {
			p.Spec.PodSelector = *app(i / benchNamespaces)
		} else {
			p.Namespace = "ns-0"
			peers = append(peers, networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"number": fmt.Sprint(i)}}})
		}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromInt32(80))}}},
			{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24", Except: []string{"192.0.2.1/32"}}}}},
		}
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: peers}, {Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromString("http"))}}}}
		b.policies = append(b.policies, p)
	}
	if !spread {
		for n := range b.locals {
			old := b.locals[n]
			p := b.pods[old.Namespace][old.Name]
			delete(b.pods[old.Namespace], old.Name)
			p.Namespace = "ns-0"
			b.pods["ns-0"][p.Name] = p
			b.locals[n].Namespace = "ns-0"
		}
	}
	return b
}

func benchPod(i int) *Pod {
	name := types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i%benchNamespaces), Name: fmt.Sprintf("pod-%d", i)}
	return &Pod{
		NamespacedName: name, UID: types.UID(name.String()), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})},
		Labels: map[string]string{"app": fmt.Sprintf("app-%d", i/benchNamespaces%benchApps), "number": fmt.Sprint(i % 1000), "pod-template-hash": "5f7d"},
		Ports:  []NamedPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}},
	}
}

func ptr[T any](v T) *T { return &v }

func (b *benchmark) compile() {
	b.index = NewIndex(b)
	for _, p := range b.policies {
		b.index.SetNetworkPolicy(p)
	}
	for _, l := range b.locals {
		b.index.SetLocal(l)
	}
	b.index.Node()
}

// both runs a benchmark with either kind of policies.
func both(b *testing.B, run func(b *testing.B, of *benchmark)) {
	for _, spread := range []bool{true, false} {
		b.Run(map[bool]string{true: "spread", false: "all"}[spread], func(b *testing.B) {
			of := newBenchmark(spread)
			of.compile()
			b.ReportAllocs()
			b.ResetTimer()
			run(b, of)
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	both(b, func(b *testing.B, of *benchmark) {
		for b.Loop() {
			of.compile()
		}
		n, rules, elements := of.index.Node(), 0, 0
		for _, c := range n.Chains {
			rules += len(c.Rules)
		}
		for _, s := range n.Sets {
			elements += len(s.Addresses) + len(s.Endpoints)
		}
		b.ReportMetric(float64(len(n.Chains)), "chains")
		b.ReportMetric(float64(rules), "rules")
		b.ReportMetric(float64(len(n.Sets)), "sets")
		b.ReportMetric(float64(elements), "elements")
	})
}

// A pod comes to and goes from another node: two events, and the ruleset after each.
func BenchmarkPodEvent(b *testing.B) {
	both(b, func(b *testing.B, of *benchmark) {
		p := benchPod(benchPods + 1)
		for b.Loop() {
			of.set(p)
			of.index.Node()
			of.remove(p.Namespace, p.Name)
			of.index.Node()
		}
	})
}

// The same without asking for the ruleset.
func BenchmarkPodEventOnly(b *testing.B) {
	both(b, func(b *testing.B, of *benchmark) {
		p := benchPod(benchPods + 1)
		for b.Loop() {
			of.set(p)
			of.remove(p.Namespace, p.Name)
		}
	})
}

// A local pod comes, as at its ADD, and goes.
func BenchmarkLocalPod(b *testing.B) {
	both(b, func(b *testing.B, of *benchmark) {
		l := of.locals[len(of.locals)-1]
		for b.Loop() {
			of.index.DeleteLocal(l.UID)
			of.index.Node()
			of.index.SetLocal(l)
			of.index.Node()
		}
	})
}

// A policy changes, and back.
func BenchmarkPolicy(b *testing.B) {
	both(b, func(b *testing.B, of *benchmark) {
		p := of.policies[0]
		other := p.DeepCopy()
		other.Spec.Ingress[0].Ports[0].Port = ptr(intstr.FromInt32(81))
		for b.Loop() {
			of.index.SetNetworkPolicy(other)
			of.index.Node()
			of.index.SetNetworkPolicy(p)
			of.index.Node()
		}
	})
}

// A pod comes to and goes from another node where one policy has all of 20,000 pods as its peers:
// the ruleset after each event, and whether the connections are to be looked at.
func BenchmarkBroadPeer(b *testing.B) {
	of := &fakeCluster{namespaces: map[string]map[string]string{}, pods: map[string]map[string]*Pod{}}
	for i := range benchNamespaces {
		name := fmt.Sprintf("ns-%d", i)
		of.namespaces[name], of.pods[name] = map[string]string{corev1.LabelMetadataName: name}, map[string]*Pod{}
	}
	for i := range 20_000 {
		p := benchPod(i)
		of.pods[p.Namespace][p.Name] = p
	}
	of.index = NewIndex(of)
	of.index.SetNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns-0", Name: "broad"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}},
		}}},
	})
	local := benchPod(0)
	of.index.SetLocal(Local{NamespacedName: local.NamespacedName, UID: local.UID, Addresses: local.Addresses})
	last := of.index.Node()
	node := func(additive bool) {
		next := of.index.Node()
		if ruleset.Additive(last, next) != additive {
			b.Fatal("the set is not as it must be")
		}
		last = next
	}
	p := benchPod(20_001)
	b.ReportAllocs()
	for b.Loop() {
		of.set(p)
		node(true)
		of.remove(p.Namespace, p.Name)
		node(false)
	}
}
