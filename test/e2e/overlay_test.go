// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/deploy"
)

// TestOverlay: with manifests/agent/overlay pods without a floating IP get the agents' own
// network. They and pods with a floating IP reach each other on all nodes, directly and through
// Services, and see each other's own addresses, though the network between the nodes knows no pods.
func TestOverlay(t *testing.T) {
	s := newStage(t, "10.0.70.130-10.0.70.139")
	root, err := deploy.Root()
	s.must(err)
	s.atEnd(func() {
		s.kubectl("-n", s.name, "delete", "pods", "--all", "--wait=true", patiently)
		s.must(deploy.Customize(s.ctx, s.Cluster))
		s.settled()
		s.kubectl("delete", "-f", filepath.Join(root, "manifests/agent/overlay/rbac.yaml"), "-f", filepath.Join(root, "manifests/agent/overlay/own-node.yaml"))
		for _, node := range s.Cluster.Nodes() {
			// The agents took the overlay away, and with it the nodes' routes.
			if links := s.run(node.Name(), "ip", "-br", "link"); strings.Contains(links, "flannel") || strings.Contains(links, "btho") {
				t.Errorf("%s still has the overlay's links:\n%s", node.Name(), links)
			}
			s.run(node.Name(), "rm", "-rf", "/var/lib/cni/networks/berth-overlay")
			for _, other := range s.Cluster.Nodes() {
				if other.Name() != node.Name() {
					s.run(node.Name(), "ip", "route", "replace", other.PodSubnet.String(), "via", other.IP.String())
				}
			}
		}
	})
	for _, node := range s.Cluster.Nodes() {
		// As kube-controller-manager does with --allocate-node-cidrs.
		s.kubectl("patch", "node", node.Name(), "-p", fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":[%q]}}`, node.PodSubnet, node.PodSubnet))
		// The pods of the network before have addresses of the same pod CIDRs: here they are
		// not drained.
		s.run(node.Name(), "sh", "-c", "mkdir -p /var/lib/cni/networks/berth-overlay && cp -r /var/lib/cni/networks/lab/. /var/lib/cni/networks/berth-overlay")
		for _, other := range s.Cluster.Nodes() {
			if other.Name() != node.Name() {
				s.run(node.Name(), "ip", "route", "del", other.PodSubnet.String())
			}
		}
	}
	s.must(deploy.Customize(s.ctx, s.Cluster, "agent/overlay"))
	s.settled()

	members := []*v1.Pod{
		s.pod("ordinary-1a", netexec, on("node1")), s.pod("ordinary-1b", netexec, on("node1")), s.pod("ordinary-3", netexec, on("node3")),
		s.pod("floating-1", netexec, s.floating, on("node1")), s.pod("floating-2", netexec, s.floating, on("node2")),
	}
	var pods []party
	for _, pod := range members {
		s.create(pod)
	}
	for i, pod := range members {
		members[i] = s.ready(pod.Name)
		pods = append(pods, s.podParty(members[i]))
	}
	for _, node := range s.Cluster.Nodes() {
		if link := s.run(node.Name(), "ip", "-d", "link", "show", "flannel.1"); !strings.Contains(link, "berth overlay") {
			t.Errorf("%s has no VTEP of the overlay:\n%s", node.Name(), link)
		}
	}
	for _, from := range pods {
		for _, to := range pods {
			if from.name != to.name {
				s.expectSeen("http", from, to, to.port)
				s.expectSeen("udp", from, to, udpPort)
			}
		}
	}
	client := s.hostParty(s.Cluster.Client(), s.Cluster.Network().Client().String())
	for _, floating := range pods[3:] {
		s.expectSeen("http", client, floating, floating.port)
		s.expectSeen("http", floating, client, client.port)
	}
	s.expectFromNode(pods[0], client, s.node("node1").IP)
	for _, backend := range []*v1.Pod{members[2], members[4]} {
		s.expectSource("of-"+backend.Name, backend, pods)
	}
	s.expectService("all", members, pods)

	s.expectPolicy(pods[0], pods[1], pods[2])

	// The agents' restart interrupts nobody.
	tr := s.ask(s.start("asked-2", s.floating, on("node2")), s.start("asked-3", on("node3")))
	s.freshAgents()
	s.expectSeen("http", pods[0], pods[2], pods[2].port)
	s.expectSeen("http", pods[2], pods[4], pods[4].port)
	s.expectUnbroken(tr, "the restart of all agents")
}

// expectPolicy checks that agents, as they are by default, enforce a policy of a pod of the
// overlay.
func (s *stage) expectPolicy(client, other, server party) {
	s.t.Helper()
	policy := fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: overlay}
spec:
  podSelector: {matchLabels: {role: server}}
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}, {ipBlock: {cidr: %s/32}}]}]
`, s.Cluster.Network().Client())
	s.kubectl("-n", s.name, "label", "pod", server.name, "role=server")
	s.kubectl("-n", s.name, "label", "pod", client.name, "role=client")
	parties := map[string]party{"client": client, "other": other, "server": server}
	s.apply(policy)
	s.reach(parties, map[[2]string]bool{{"client", "server"}: true, {"other", "server"}: false})
	s.kubectl("-n", s.name, "delete", "networkpolicy", "overlay")
	s.reach(parties, map[[2]string]bool{{"client", "server"}: true, {"other", "server"}: true})
}

// expectFromNode checks that a host outside sees a pod's node.
func (s *stage) expectFromNode(from, to party, node netip.Addr) {
	s.t.Helper()
	seen, err := from.ask(s.ctx, "http", to.address, to.port, "clientip")
	s.must(err)
	if addr, err := netip.ParseAddrPort(seen); err != nil || addr.Addr() != node {
		s.t.Errorf("%s sees %s as %q, want its node %s", to.name, from.name, seen, node)
	}
}
