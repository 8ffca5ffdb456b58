// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/ipam/seedtest"
)

func TestCounts(t *testing.T) {
	ended := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	runs := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	deleted := func(p *corev1.Pod, containers ...corev1.ContainerStatus) {
		p.DeletionTimestamp, p.Status.ContainerStatuses = &metav1.Time{}, containers
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"running":                       {func(*corev1.Pod) {}, true},
		"in the node's network":         {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		"succeeded":                     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"failed":                        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"not bound":                     {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"crashed":                       {func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{ended} }, true},
		"deleted, not started":          {func(p *corev1.Pod) { deleted(p) }, true},
		"deleted, one container runs":   {func(p *corev1.Pod) { deleted(p, ended, runs) }, true},
		"deleted, one container waits":  {func(p *corev1.Pod) { deleted(p, ended, corev1.ContainerStatus{}) }, true},
		"deleted, its containers ended": {func(p *corev1.Pod) { deleted(p, ended, ended) }, false},
		"deleted, its sidecar runs": {func(p *corev1.Pod) {
			deleted(p, ended)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{runs}
		}, true},
		"deleted, somebody debugs it": {func(p *corev1.Pod) {
			deleted(p, ended)
			p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{runs}
		}, true},
		"deleted, its init container ended": {func(p *corev1.Pod) {
			deleted(p, ended)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{ended}
		}, false},
	} {
		p := podObject("shop", "web", otherNode, "10.0.0.1")
		c.change(p)
		if got := counts(p); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNamedPorts(t *testing.T) {
	port := func(name string, number int32, protocol corev1.Protocol) corev1.Container {
		return corev1.Container{Ports: []corev1.ContainerPort{{Name: name, ContainerPort: number, Protocol: protocol}}}
	}
	sidecar := port("proxy", 1, corev1.ProtocolSCTP)
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{port("init", 2, corev1.ProtocolTCP), sidecar},
		Containers:     []corev1.Container{port("", 3, corev1.ProtocolTCP), port("dns", 53, corev1.ProtocolUDP), port("http", 65535, "")},
	}}
	want := []policy.NamedPort{{Name: "proxy", Protocol: "SCTP", Port: 1}, {Name: "dns", Protocol: "UDP", Port: 53}, {Name: "http", Protocol: "TCP", Port: 65535}}
	if got := namedPorts(p); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestNeed(t *testing.T) {
	everything := &metav1.LabelSelector{}
	peer := networkingv1.NetworkPolicyPeer{NamespaceSelector: everything}
	block := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}}
	named := networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromString("http"))}
	numbered := networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(80))}
	type ingress = networkingv1.NetworkPolicyIngressRule
	type egress = networkingv1.NetworkPolicyEgressRule
	for name, c := range map[string]struct {
		spec networkingv1.NetworkPolicySpec
		want scope
	}{
		"isolation":                {networkingv1.NetworkPolicySpec{}, ownNode},
		"from all":                 {networkingv1.NetworkPolicySpec{Ingress: []ingress{{}}}, ownNode},
		"from a block, by a name":  {networkingv1.NetworkPolicySpec{Ingress: []ingress{{From: []networkingv1.NetworkPolicyPeer{block}, Ports: []networkingv1.NetworkPolicyPort{named}}}}, ownNode},
		"from pods":                {networkingv1.NetworkPolicySpec{Ingress: []ingress{{}, {From: []networkingv1.NetworkPolicyPeer{block, peer}}}}, allNodes},
		"to a block":               {networkingv1.NetworkPolicySpec{Egress: []egress{{To: []networkingv1.NetworkPolicyPeer{block}, Ports: []networkingv1.NetworkPolicyPort{numbered}}}}, ownNode},
		"to a port by its name":    {networkingv1.NetworkPolicySpec{Egress: []egress{{Ports: []networkingv1.NetworkPolicyPort{named}}}}, allNodes},
		"to pods of the namespace": {networkingv1.NetworkPolicySpec{Egress: []egress{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: everything}}}}}, allNodes},
	} {
		if got := needOf(&networkingv1.NetworkPolicy{Spec: c.spec}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	type to = policyv1alpha2.ClusterNetworkPolicyEgressPeer
	for name, c := range map[string]struct {
		spec policyv1alpha2.ClusterNetworkPolicySpec
		want scope
	}{
		"no rules":    {policyv1alpha2.ClusterNetworkPolicySpec{}, ownNode},
		"ingress":     {policyv1alpha2.ClusterNetworkPolicySpec{Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{}}}, allNodes},
		"to networks": {policyv1alpha2.ClusterNetworkPolicySpec{Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{To: []to{{Networks: []policyv1alpha2.CIDR{"::/0"}}}}}}, ownNode},
		"to pods":     {policyv1alpha2.ClusterNetworkPolicySpec{Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{To: []to{{Namespaces: everything}}}}}, allNodes},
		"to nodes":    {policyv1alpha2.ClusterNetworkPolicySpec{Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{}, {To: []to{{Nodes: everything}}}}}, withNodes},
		"to a port by its name": {policyv1alpha2.ClusterNetworkPolicySpec{Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
			To: []to{{Networks: []policyv1alpha2.CIDR{"::/0"}}}, Protocols: []policyv1alpha2.ClusterNetworkPolicyProtocol{{DestinationNamedPort: "http"}},
		}}}, allNodes},
	} {
		if got := needOfCluster(&policyv1alpha2.ClusterNetworkPolicy{Spec: c.spec}); got != c.want {
			t.Errorf("cluster, %s: %v", name, got)
		}
	}
}

// Pods of a workload share their labels, also a StatefulSet's.
func TestShapesAreShared(t *testing.T) {
	var s store
	pod := func(name string, labels map[string]string) *policy.Pod {
		return &policy.Pod{NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}, UID: types.UID(name), Labels: labels}
	}
	for i := range 3 {
		name := fmt.Sprintf("db-%d", i)
		s.set(pod(name, map[string]string{"app": "db", labelPodName: name, labelPodIndex: fmt.Sprint(i)}))
	}
	if len(s.shapes.all) != 1 {
		t.Errorf("%d shapes of a StatefulSet", len(s.shapes.all))
	}
	// Users write labels, too.
	s.set(pod("db-3", map[string]string{"app": "db", labelPodName: "db-0", labelPodIndex: "0"}))
	for p := range s.podsOf("shop") {
		want := p.Name
		if p.Name == "db-3" {
			want = "db-0"
		}
		if p.Labels[labelPodName] != want || p.Labels[labelPodIndex] != want[3:] || p.Labels["app"] != "db" {
			t.Errorf("pod %s has %v", p.Name, p.Labels)
		}
	}
}

// A store behaves like a plain map, and forgets shapes that no object has.
func TestStoreIsAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	var s store
	is := map[types.NamespacedName]policy.Pod{}
	check := func(c podUpdate, name types.NamespacedName, now *policy.Pod) {
		t.Helper()
		before, had := is[name]
		if now == nil {
			delete(is, name)
		} else {
			is[name] = *now
		}
		if had && now != nil && cmp.Equal(before, *now, comparison...) {
			had, now = false, nil
		}
		if (c.was != nil) != had || c.was != nil && !cmp.Equal(*c.was, before, comparison...) || (c.is != nil) != (now != nil) || c.is != nil && !cmp.Equal(c.is, now, comparison...) {
			t.Fatalf("told %+v became %+v, want %+v became %+v", c.was, c.is, before, now)
		}
	}
	for range seedtest.Draws(t, 4000, 20_000) {
		name := types.NamespacedName{Namespace: pick("a", "b"), Name: pick("web-0", "web-1", "x", "0")}
		switch r.IntN(20) {
		case 0, 1, 2, 3:
			pod, had := is[name]
			if !had || r.IntN(4) == 0 {
				check(s.delete(name, "another"), name, map[bool]*policy.Pod{true: &pod}[had])
				break
			}
			check(s.delete(name, pod.UID), name, nil)
		case 4:
			s.pass++
			for known := range is {
				if r.IntN(2) == 0 {
					pod := is[known]
					check(s.set(&pod), known, &pod)
				}
			}
			for _, namespace := range []string{"a", "b"} {
				s.sweepPods(namespace, "", func(c podUpdate) { check(c, c.was.NamespacedName, nil) })
			}
		case 5:
			s.setNamespace(name.Namespace, map[string]string{"team": pick("x", "y")})
		case 6:
			s.deleteNamespace(name.Namespace)
		default:
			pod := policy.Pod{NamespacedName: name, UID: types.UID(pick("u1", "0b5c1ce2-0e5d-4a86-9c69-57c5fb2a6d43", "0B5C1CE2-0e5d-4a86-9c69-57c5fb2a6d43", "00000000-0000-0000-0000-000000000000"))}
			if before, had := is[name]; had {
				pod.UID = before.UID
			}
			pod.Labels = map[string]string{}
			for range r.IntN(3) {
				pod.Labels[pick("app", labelPodName, labelPodIndex, "empty")] = pick("", "0", "1", "web-0", "web-1")
			}
			for range r.IntN(3) {
				pod.Ports = append(pod.Ports, policy.NamedPort{Name: pick("http", "dns"), Protocol: corev1.Protocol(pick("TCP", "UDP")), Port: uint16(r.IntN(1 << 16))})
			}
			for _, a := range []string{"10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"}[:r.IntN(5)] {
				if r.IntN(2) == 0 {
					pod.Addresses = append(pod.Addresses, netip.MustParseAddr(a))
				}
			}
			check(s.set(&pod), name, &pod)
		}
		held := map[types.NamespacedName]policy.Pod{}
		for _, namespace := range []string{"a", "b"} {
			for p := range s.podsOf(namespace) {
				pod := *p
				pod.Addresses = slices.Clone(p.Addresses)
				held[p.NamespacedName] = pod
			}
		}
		if diff := cmp.Diff(is, held, comparison...); diff != "" {
			t.Fatal(diff)
		}
	}
	for name, pod := range maps.Clone(is) {
		check(s.delete(name, pod.UID), name, nil)
	}
	s.deleteNamespace("a")
	s.deleteNamespace("b")
	if s.spaces != nil || s.shapes.all != nil || len(s.odd) > 0 || s.pods != 0 {
		t.Errorf("an empty store holds %v, %v, %v, %d pods", s.spaces, s.shapes.all, s.odd, s.pods)
	}
}
