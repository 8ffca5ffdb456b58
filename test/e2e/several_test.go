// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

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

// TestDualStack: pods with an address of each family, and with one of IPv6 alone, on a
// cluster whose nodes Kubernetes knows by IPv4 only; they are reached at each address and
// speak from each.
func TestDualStack(t *testing.T) {
	sideBySide(t)
	network := shared.Cluster.Network()
	s := newStageOf(t,
		v1alpha1.IPPoolSpec{Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.225-10.0.70.228"}},
		v1alpha1.IPPoolSpec{Subnet: network.Floating6.String(), Gateway: "fd00:70::1", Ranges: []string{"fd00:70::30-fd00:70::3f"}})
	clients := map[bool]party{
		true: s.hostParty(s.Cluster.Client(), network.Client().String()), false: s.hostParty(s.Cluster.Client(), "fd00:70::fa"),
	}
	nodes := map[string]string{"IPv4,IPv6": "node1", "IPv6,IPv4": "node2", "IPv6": "node2"}
	pods := map[string]*v1.Pod{}
	for families, node := range nodes {
		name := strings.ToLower(strings.ReplaceAll(families, ",", "-"))
		many := number(int64(1 + strings.Count(families, ",")))
		pods[families] = s.create(s.pod(name, netexec, s.floating, many, annotated(v1alpha1.AnnotationFamilies, families), on(node)))
	}
	for families, pod := range pods {
		pod = s.ready(pod.Name)
		all := s.addressesOf(pod)
		var have []string
		for _, address := range all {
			have = append(have, string(v1alpha1.FamilyOf(netip.MustParseAddr(address))))
		}
		if got := strings.Join(have, ","); got != families {
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
			client := clients[netip.MustParseAddr(address).Is4()]
			s.expectSeen("http", client, asked, asked.port)
			s.expectSeen("http", asked, client, client.port)
		}
	}
	s.agree()
}
