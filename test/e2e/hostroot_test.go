// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// publishedAt publishes the pod's port on its node.
func publishedAt(port int32) option {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: port, ContainerPort: 8080}}
	}
}

// TestNodesOwnPlugins: the agent runs flannel's plugin, bridge with ipMasq and portmap with the
// iptables of its image, which writes where the node's does; with manifests/agent/host-root it
// runs them with files and iptables of the node, for pods that start after the agent,
// and after its restart, too. Floating IPs, which the agent wires itself, stay as they are.
func TestNodesOwnPlugins(t *testing.T) {
	s := newStage(t, "10.0.70.93-10.0.70.95")
	node := s.Cluster.Nodes()[0]
	before := s.start("before", s.floating, on(node.Name()))
	subnet := netip.PrefixFrom(half(node.PodSubnet), node.PodSubnet.Bits()+1)

	s.atEnd(func() {
		// Their DEL needs the node's iptables.
		s.kubectl("-n", s.name, "delete", "pods", "--all", "--wait=true", patiently)
		s.run(node.Name(), "sh", "-c", "rm -rf /etc/cni/net.d/05-flannel.conflist /run/flannel /var/lib/cni/flannel; ip link del cni0")
		s.must(deploy.Customize(s.ctx, s.Cluster))
		s.settled()
	})
	s.must(node.InstallPlugins(s.ctx, os.Stderr, "meta/flannel", "meta/portmap"))
	// As the DaemonSet kube-flannel leaves a node. The agent runs already: it reads the
	// configuration at each ADD.
	s.run(node.Name(), "sh", "-c", fmt.Sprintf(`mkdir -p /run/flannel && printf %%s '%s' >/run/flannel/subnet.env && printf %%s '%s' >/etc/cni/net.d/05-flannel.conflist`,
		fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s/%d\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", s.Cluster.Network().Pods, subnet.Addr().Next(), subnet.Bits()),
		`{"name":"cbr0","cniVersion":"0.3.1","plugins":[
			{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
			{"type":"portmap","capabilities":{"portMappings":true}}]}`))

	image := s.start("image", bound(node.Name()), publishedAt(18079))
	s.publishes(node.IP, 18079, image, subnet)
	s.answers(before)
	s.delete(image.Name)
	s.noRulesOf(node.Name(), "18079", image.Status.PodIP)

	s.must(deploy.Customize(s.ctx, s.Cluster, "agent/host-root"))
	s.settled()
	first := s.start("first", bound(node.Name()), publishedAt(18080))
	s.publishes(node.IP, 18080, first, subnet)
	s.answers(before)
	s.answers(s.start("meanwhile", s.floating, on(node.Name())))

	s.freshAgents()
	second := s.start("second", bound(node.Name()), publishedAt(18081))
	s.publishes(node.IP, 18081, second, subnet)
	s.publishes(node.IP, 18080, first, subnet)
	s.answers(s.start("after", s.floating, on(node.Name())))

	s.delete(first.Name, second.Name)
	s.noRulesOf(node.Name(), "18080", "18081", first.Status.PodIP, second.Status.PodIP)
	s.answers(before)
}

// noRulesOf checks that a node's iptables have no rule that names a port or an address.
func (s *stage) noRulesOf(node string, names ...string) {
	s.t.Helper()
	for _, name := range names {
		if rules := s.run(node, "iptables-save", "-t", "nat"); strings.Contains(rules, name) {
			s.t.Errorf("rules of %s are left:\n%s", name, rules)
		}
	}
}

// publishes waits until the pod answers at a port of its node, and checks that flannel's plugin
// gave it its address, and that portmap and bridge wrote rules that the node's iptables reads.
func (s *stage) publishes(node netip.Addr, port uint16, pod *v1.Pod, subnet netip.Prefix) {
	s.t.Helper()
	if addr, err := netip.ParseAddr(pod.Status.PodIP); err != nil || !subnet.Contains(addr) {
		s.t.Errorf("pod %s has the address %s, want one of %s", pod.Name, pod.Status.PodIP, subnet)
	}
	rules := s.run(pod.Spec.NodeName, "iptables-save", "-t", "nat")
	for _, want := range []string{"CNI-HOSTPORT-DNAT", fmt.Sprintf("--dport %d", port), "CNI-HOSTPORT-MASQ", "-A POSTROUTING -s " + pod.Status.PodIP} {
		if !strings.Contains(rules, want) {
			s.t.Errorf("the node's iptables have no %s:\n%s", want, rules)
		}
	}
	url := "http://" + net.JoinHostPort(node.String(), fmt.Sprint(port)) + "/"
	s.eventually(url+" is answered by "+pod.Name, func() error {
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		said, err := witness.Get(ctx, s.Cluster.Client(), url)
		if err == nil && said != string(pod.UID) {
			err = fmt.Errorf("it says %q", said)
		}
		return err
	})
}

// half returns the first address of the second half of the prefix.
func half(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[p.Bits()/8] |= 1 << (7 - p.Bits()%8)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
