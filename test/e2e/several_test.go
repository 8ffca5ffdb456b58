// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// addressesOf returns all addresses of a pod that the scheduler placed, in their
// order.
func (s *stage) addressesOf(pod *v1.Pod) []string {
	s.t.Helper()
	var all []string
	for name := range strings.SplitSeq(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",") {
		addr, err := v1alpha1.AddrOf(name)
		s.must(err)
		all = append(all, addr.String())
	}
	return all
}

func shown(pod *v1.Pod) []string {
	var all []string
	for _, ip := range pod.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

// macInside returns the MAC address that the pod's interface has.
func (s *stage) macInside(pod *v1.Pod) string {
	s.t.Helper()
	records, err := recordsOf(s.ctx, s.t, s.node(pod.Spec.NodeName))
	s.must(err)
	for _, r := range records {
		if r.Pod.UID != string(pod.UID) {
			continue
		}
		fields := strings.Fields(s.run(pod.Spec.NodeName, "nsenter", "--net="+r.NetNS, "ip", "-o", "link", "show", "eth0"))
		if i := slices.Index(fields, "link/ether"); i >= 0 {
			return fields[i+1]
		}
	}
	s.t.Fatalf("the agent of %s has no record of pod %s, or the pod has no MAC address", pod.Spec.NodeName, pod.Name)
	return ""
}

// expectMAC checks that the pod has the MAC of its first address.
func (s *stage) expectMAC(pod *v1.Pod) {
	s.t.Helper()
	first := s.addressesOf(pod)[0]
	if got, want := s.macInside(pod), v1alpha1.MACOf(netip.MustParseAddr(first)).String(); got != want {
		s.t.Errorf("%s on %s has MAC %s inside, want %s, which belongs to %s", pod.Name, pod.Spec.NodeName, got, want, first)
	}
}

// answersAtAll waits until the pod answers at each of its addresses, as itself,
// and checks that only its node answers ARP for them.
func (s *stage) answersAtAll(pod *v1.Pod) {
	s.t.Helper()
	for _, address := range s.addressesOf(pod) {
		s.must(s.AskUntil(s.ctx, address, string(pod.UID)))
		if netip.MustParseAddr(address).Is4() {
			s.expectOneAnswer(address, pod.Spec.NodeName)
		}
	}
}

// TestTwoAddresses: a pod with two addresses of one family has both; its status
// shows the first.
func TestTwoAddresses(t *testing.T) {
	s := newStage(t, "10.0.70.221-10.0.70.224")
	pod := s.start("web", s.floating, number(2))
	all := s.addressesOf(pod)
	if len(all) != 2 || all[0] == all[1] {
		t.Fatalf("the pod has %v, want two addresses", all)
	}
	if got := shown(pod); !slices.Equal(got, all[:1]) {
		t.Errorf("status.podIPs is %v, want %v", got, all[:1])
	}
	s.answersAtAll(pod)
	s.expectMAC(pod)
	s.agree()
	tr := s.ask(pod)
	s.freshAgents()
	s.expectUnbroken(tr, "the agents' restart")
	s.answersAtAll(pod)
	s.delete(pod.Name)
	s.agree()
	for _, address := range all {
		if _, err := s.Ask(s.ctx, address); err == nil {
			t.Errorf("a deleted pod answers at %s", address)
		}
	}
}

// TestDualStack: a pod with an address of each family on a cluster whose nodes
// Kubernetes knows by IPv4 only; it is reached at both and speaks from both.
func TestDualStack(t *testing.T) {
	network := shared.Cluster.Network()
	s := newStageOf(t,
		v1alpha1.IPPoolSpec{Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.225-10.0.70.228"}},
		v1alpha1.IPPoolSpec{Subnet: network.Floating6.String(), Gateway: "fd00:70::1", Ranges: []string{"fd00:70::30-fd00:70::3f"}})
	client := map[bool]party{
		true: s.hostParty(s.Cluster.Client(), network.Client().String()), false: s.hostParty(s.Cluster.Client(), "fd00:70::fa"),
	}
	for families, node := range map[string]string{"IPv4,IPv6": "node1", "IPv6,IPv4": "node2"} {
		name := strings.ToLower(strings.ReplaceAll(families, ",", "-"))
		pod := s.start(name, netexec, s.floating, number(2), annotated(v1alpha1.AnnotationFamilies, families), on(node))
		all := s.addressesOf(pod)
		if len(all) != 2 || netip.MustParseAddr(all[0]).Is4() != strings.HasPrefix(families, "IPv4") || netip.MustParseAddr(all[1]).Is4() == netip.MustParseAddr(all[0]).Is4() {
			t.Fatalf("%s: the pod has %v", families, all)
		}
		// The kubelet puts the family of its node first.
		want := slices.SortedFunc(slices.Values(all), func(x, y string) int { return netip.MustParseAddr(x).Compare(netip.MustParseAddr(y)) })
		if got := shown(pod); !slices.Equal(got, want) {
			t.Errorf("%s: status.podIPs is %v, want %v", families, got, want)
		}
		s.expectMAC(pod)
		teller := s.podParty(pod)
		for _, address := range all {
			asked := teller
			asked.address = address
			other := client[netip.MustParseAddr(address).Is4()]
			s.expectSeen("http", other, asked, asked.port)
			s.expectSeen("http", asked, other, other.port)
		}
	}
	s.agree()
}

// TestTwoAddressesMove: a StatefulSet's pod moves from node to node with both
// addresses, in their order, and its MAC.
func TestTwoAddressesMove(t *testing.T) {
	s := newStage(t, "10.0.70.229-10.0.70.234")
	old := s.statefulSet(s.pod("web", s.floating, number(2), retaining, on("node1")), 1)[0]
	all, mac := s.addressesOf(old), s.macInside(old)
	if len(all) != 2 {
		t.Fatalf("the pod has %v, want two addresses", all)
	}
	s.answersAtAll(old)
	s.expectMAC(old)
	for _, node := range []string{"node2", "node3", "node1"} {
		s.moveTo("web", node)
		next := s.wait(old.Name, successor(old))
		if got := s.addressesOf(next); !slices.Equal(got, all) || next.Spec.NodeName != node {
			t.Fatalf("%s came up with %v on %s, want %v on %s", next.Name, got, next.Spec.NodeName, all, node)
		}
		ready := time.Now()
		for _, address := range all {
			s.must(s.AskUntil(s.ctx, address, string(next.UID)))
		}
		t.Logf("the client reached both on %s %s after it was Ready", node, time.Since(ready).Round(time.Millisecond))
		s.answersAtAll(next)
		s.expectMAC(next)
		if got := s.macInside(next); got != mac {
			t.Errorf("%s has MAC %s on %s, had %s", next.Name, got, node, mac)
		}
		old = next
	}
	s.agree()
}

// TestExactAddresses: pods get the addresses that they name, one of each list.
func TestExactAddresses(t *testing.T) {
	s := newStage(t, "10.0.70.235-10.0.70.240")
	exact := func(value string) option { return annotated(v1alpha1.AnnotationAddresses, value) }
	one := s.start("one", s.floating, exact("10.0.70.238"))
	if got := s.addressesOf(one); !slices.Equal(got, []string{"10.0.70.238"}) || one.Status.PodIP != "10.0.70.238" {
		t.Errorf("the pod has %v and shows %s, want 10.0.70.238", got, one.Status.PodIP)
	}
	two := s.start("two", s.floating, number(2), exact("10.0.70.240; 10.0.70.235-10.0.70.236"))
	got := s.addressesOf(two)
	if len(got) != 2 || got[0] != "10.0.70.240" || got[1] != "10.0.70.235" && got[1] != "10.0.70.236" {
		t.Errorf("the pod has %v, want 10.0.70.240 and one of 10.0.70.235-10.0.70.236", got)
	}
	for _, pod := range []*v1.Pod{one, two} {
		s.answersAtAll(pod)
		s.expectMAC(pod)
	}
	s.agree()
}
