// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/witness"
)

// TestKubeProxyModes: in each mode of kube-proxy, and however it tells its own pods from
// others, everybody reaches services and host ports, and floating pods are seen by their own
// addresses. The pods stay while kube-proxy changes its mode. For mode ipvs, which the lab's
// kernel may lack, see package ipvs.
func TestKubeProxyModes(t *testing.T) {
	s := newStage(t, "10.0.70.93-10.0.70.99")
	network := s.Cluster.Network()
	members, pods := s.podsOfEachKind()
	client := s.hostParty(s.Cluster.Client(), network.Client().String()) // which has no route to ClusterIPs
	var hosts []party
	for i, node := range s.Cluster.Nodes() {
		hosts = append(hosts, s.hostParty(node.Host, network.Node(i+1).String()))
	}
	s.atEnd(func() {
		s.must(s.Cluster.RestartKubeProxy(s.ctx))
		for _, node := range s.Cluster.Nodes() {
			s.run(node.Name(), "iptables", "-P", "FORWARD", "ACCEPT")
		}
	})
	for i, mode := range []struct {
		flags string
		// drop makes the nodes' own firewalls drop forwarded packets that they do not know, as
		// Docker's does. Pods of the lab's own network have no rule against that.
		drop bool
	}{
		{flags: "--proxy-mode=iptables --masquerade-all"},
		{flags: "--proxy-mode=iptables --detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth"},
		{flags: "--proxy-mode=nftables"},
		{flags: "--proxy-mode=nftables --masquerade-all"},
		{flags: "--proxy-mode=nftables --detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth"},
		{flags: "--proxy-mode=nftables --masquerade-all", drop: true},
		{flags: "--proxy-mode=iptables", drop: true},
	} {
		name := strings.TrimPrefix(mode.flags, "--proxy-mode=")
		members, pods := members, pods
		if mode.drop {
			name += ", FORWARD drops"
			members, pods = members[:3], pods[:3]
		}
		s.must(s.Cluster.RestartKubeProxy(s.ctx, strings.Fields(mode.flags)...))
		for _, node := range s.Cluster.Nodes() {
			got, err := witness.Get(s.ctx, node.Host, "http://127.0.0.1:10249/proxyMode")
			if err != nil || !strings.HasPrefix(name, got) {
				t.Fatalf("kube-proxy on %s has the mode %q, %v, want %s", node.Name(), got, err, mode.flags)
			}
			if mode.drop {
				s.run(node.Name(), "iptables", "-P", "FORWARD", "DROP")
			}
		}
		t.Logf("kube-proxy: %s", name)
		number := strconv.Itoa(i)
		// New services, so that they are of this kube-proxy.
		// In mode nftables kube-proxy has no rule that lets packets to a NodePort pass such a
		// firewall of a node which only sends them on to another.
		if !mode.drop || strings.HasPrefix(name, "iptables") {
			service := s.expectService("floating-"+number, members[:3], slices.Concat(pods, hosts))
			s.expectNodePorts(service, client)
		}
		for _, backend := range members {
			s.expectSource("of-"+backend.Name+"-"+number, backend, pods[:3])
		}
		s.expectHostPorts(members, slices.Concat(pods, hosts, []party{client}))
		if t.Failed() {
			return // with the rules as they are
		}
	}
}
