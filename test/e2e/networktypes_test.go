// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// networkType is a network type that the lab's kernel has. Network types with VLANs, ipvlan links
// and virtual functions are tested in the machine of package machine, without a kubelet.
type networkType struct {
	name string
	// plugin is the plugin of the nodes' floating network.
	plugin string
	// past says that pods and other hosts talk past the pods' node.
	past bool
	// onUplink says that the pods' interfaces are on the node's uplink itself. From there
	// nothing reaches the node, and what the node answers for, and back.
	onUplink bool
}

var (
	veth    = &networkType{name: "veth", plugin: `{"type":"berth-veth"}`}
	macvlan = &networkType{name: "macvlan", plugin: `{"type":"berth-vlan","mode":"macvlan"}`, past: true, onUplink: true}
	// The kernel hands bridged packets to kube-proxy's rules: net.bridge.bridge-nf-call-iptables.
	bridge = &networkType{name: "bridge", plugin: `{"type":"berth-vlan","mode":"bridge","bridge":"` + poolBridge + `"}`, past: true}
	// pure is veth on the lab, where no pool has a VLAN.
	pure = &networkType{name: "pure", plugin: `{"type":"berth-vlan","mode":"pure"}`}
)

// networkTypes are the network types of the test.
func networkTypes() []*networkType { return []*networkType{veth, macvlan, bridge, pure} }

const (
	// poolBridge is a bridge of each node with a second network card as its port.
	poolBridge = "lan0"
	poolCard   = "eth1"
	// floatingFile is where the agents read the floating network at each ADD.
	floatingFile = "/var/lib/berth/floating.conflist"
)

// TestNetworkTypes: pods of each network type that the lab's kernel has, side by side on the same
// nodes. The test asks which pod reaches which in which way, and by which address each is seen;
// and pods move between nodes with their addresses.
func TestNetworkTypes(t *testing.T) {
	network := shared.Cluster.Network()
	s := newStageOf(t,
		v1alpha1.IPPoolSpec{Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.45-10.0.70.64"}},
		v1alpha1.IPPoolSpec{Subnet: network.Floating6.String(), Gateway: "fd00:70::1", Ranges: []string{"fd00:70::40-fd00:70::5f"}})
	s.networkTypesByFile()
	members := s.members()
	for _, m := range members {
		if m.name == "veth-2" || m.name == "ordinary-1" {
			s.kubectl("-n", s.name, "exec", m.name, "--", "/agnhost", "connect", "--timeout=60s", net.JoinHostPort(members[0].address, witness.Port))
		}
	}
	t.Run("matrix", func(t *testing.T) { s.in(t).expectMatrix(members) })
	t.Run("moves", func(t *testing.T) { s.in(t).expectMoves() })
}

// in returns the stage for a part of its test.
func (s *stage) in(t *testing.T) *stage {
	part := *s
	part.t = t
	return &part
}

// networkTypesByFile has the agents read the floating network from a file of their node, and makes
// the bridges of the nodes, until the end of the test.
func (s *stage) networkTypesByFile() {
	s.t.Helper()
	s.atEnd(func() {
		s.kubectl("-n", s.name, "delete", "statefulsets,pods", "--all", "--wait=true", patiently)
		s.must(deploy.Customize(s.ctx, s.Cluster))
		s.freshAgents()
		for _, node := range s.Cluster.Nodes() {
			s.run(node.Name(), "sh", "-c", "rm -f "+floatingFile+"; ip link del "+poolCard+"; ip link del "+poolBridge)
		}
	})
	for _, node := range s.Cluster.Nodes() {
		s.must(s.Cluster.AddCable(s.ctx, node.Name(), poolCard))
		// Both cards are on one segment, and the node answers for its addresses on one of them.
		s.run(node.Name(), "sh", "-c", fmt.Sprintf("ip link add %[1]s type bridge && echo 1 >/proc/sys/net/ipv4/conf/%[1]s/arp_ignore && ip link set %[2]s master %[1]s && ip link set %[1]s up", poolBridge, poolCard))
		s.use(node.Name(), veth)
	}
	s.kubectl("-n", deploy.Namespace, "patch", "daemonset", "berth-agent", "--type=json",
		"-p", `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--floating-network=`+floatingFile+`"}]`)
	s.freshAgents()
}

// use has the node's next floating pods get a network type.
func (s *stage) use(node string, kind *networkType) {
	s.t.Helper()
	s.run(node, "sh", "-c", fmt.Sprintf(`printf %%s '{"cniVersion":"1.1.0","name":"floating","plugins":[%s]}' >%[2]s.new && mv %[2]s.new %[2]s`, kind.plugin, floatingFile))
}

// bothFamilies gives a floating pod an address of each family.
func bothFamilies(pod *v1.Pod) {
	number(2)(pod)
	annotated(v1alpha1.AnnotationFamilies, "IPv4,IPv6")(pod)
}

// members starts three floating pods of each network type, two of them on one node, and two pods
// of the default network, and has the hosts serve.
func (s *stage) members() []*member {
	s.t.Helper()
	var all []*member
	start := func(name, node string, kind *networkType, options ...option) {
		n := len(all)
		pod := s.create(s.pod(name, append(options, netexec, on(node), published(int32(n)))...))
		all = append(all, &member{party: party{name: pod.Name}, node: s.node(node), kind: kind, pod: pod, hostPort: publishedPort(int32(n))})
	}
	for _, kind := range networkTypes() {
		for _, node := range s.Cluster.Nodes() {
			s.use(node.Name(), kind)
		}
		first := len(all)
		start(kind.name+"-1a", "node1", kind, s.floating, bothFamilies)
		start(kind.name+"-1b", "node1", kind, s.floating, bothFamilies)
		start(kind.name+"-2", "node2", kind, s.floating, bothFamilies)
		// The next type's pods come when these have theirs.
		for _, m := range all[first:] {
			s.wait(m.name, wired)
		}
	}
	start("ordinary-1", "node1", nil)
	start("ordinary-3", "node3", nil)
	for _, m := range all {
		m.pod = s.ready(m.name)
		m.party = s.podParty(m.pod)
		m.addresses = addrs(shown(m.pod)...)
	}
	for i, node := range s.Cluster.Nodes() {
		m := s.hostMember(node.Host.Name(), s.Cluster.Network().NodeAddresses(i+1)...)
		m.node = node
		all = append(all, m)
	}
	router := s.hostMember("router", addrs(s.Cluster.Network().FloatingGateway().String(), "fd00:70::1")...)
	router.others = addrs(s.Cluster.Network().Router().String(), "fd00:60::1", "10.0.61.1", "fd00:61::1")
	return append(all, router, s.hostMember("client", addrs(s.Cluster.Network().Client().String(), "fd00:70::fa")...))
}

// hostMember serves at addresses of a host.
func (s *stage) hostMember(name string, at ...netip.Addr) *member {
	s.t.Helper()
	host, err := s.Cluster.Host(name)
	s.must(err)
	m := &member{addresses: at}
	for _, address := range slices.Backward(at) {
		m.party = s.hostParty(host, address.String())
	}
	return m
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// expectMoves checks that a pod of each network type moves from node to node with its addresses
// of both families while the client keeps asking, and so has neighbours in its cache all the time.
func (s *stage) expectMoves() {
	s.t.Helper()
	// A node has one type at a time, so that as many move at once.
	for kinds := range slices.Chunk(networkTypes(), labNodes) {
		s.expectMovesOf(kinds)
	}
}

// expectMovesOf does so for no more types than there are nodes.
func (s *stage) expectMovesOf(kinds []*networkType) {
	s.t.Helper()
	nodes := s.Cluster.Nodes()
	rounds := 1 + len(nodes)
	nodeOf := func(i, round int) string { return nodes[(i+round)%len(nodes)].Name() }
	pods := make([]*v1.Pod, len(kinds))
	for round := range rounds {
		for i, kind := range kinds {
			s.use(nodeOf(i, round), kind)
		}
		for i, kind := range kinds {
			if round == 0 {
				s.createStatefulSet(s.pod("moving-"+kind.name, s.floating, bothFamilies, retaining, on(nodeOf(i, round))), 1)
			} else {
				s.moveTo("moving-"+kind.name, nodeOf(i, round))
			}
		}
		for i, kind := range kinds {
			s.t.Run(fmt.Sprintf("%s to %s", kind.name, nodeOf(i, round)), func(t *testing.T) {
				s := s.in(t)
				if round == 0 {
					pods[i] = s.ready("moving-" + kind.name + "-0")
				} else {
					pods[i] = s.expectMoved(pods[i], nodeOf(i, round))
				}
				s.expectReached(kind, pods[i])
			})
		}
		if s.t.Failed() {
			return
		}
		if round == 0 {
			for _, pod := range pods {
				s.keepAsking(s.addressesOf(pod)...)
			}
		}
	}
}

// expectMoved waits for the pod's successor on a node, and checks that it has the same addresses.
func (s *stage) expectMoved(old *v1.Pod, node string) *v1.Pod {
	s.t.Helper()
	next := s.wait(old.Name, successor(old))
	if got, want := fmt.Sprint(s.addressesOf(next)), fmt.Sprint(s.addressesOf(old)); got != want || next.Spec.NodeName != node {
		s.t.Fatalf("%s came up with %s on %s, want %s on %s", next.Name, got, next.Spec.NodeName, want, node)
	}
	return next
}

// expectReached checks that the client and all nodes reach the pod at each of its addresses, and
// that the client knows it by the right MAC address.
func (s *stage) expectReached(kind *networkType, pod *v1.Pod) {
	s.t.Helper()
	ready := time.Now()
	all := s.addressesOf(pod)
	for _, address := range all {
		s.must(s.AskUntil(s.ctx, address, string(pod.UID)))
	}
	s.t.Logf("the client reached it at both addresses %s after the test saw it Ready", time.Since(ready).Round(time.Millisecond))
	mac := s.macOf(pod.Spec.NodeName)
	if kind.past {
		mac = v1alpha1.MACOf(netip.MustParseAddr(all[0])).String()
	}
	for _, address := range all {
		if known, err := s.Neighbour(s.ctx, address); err != nil || known != mac {
			s.t.Errorf("the client has %s for %s, %v, want %s", known, address, err, mac)
		}
		for _, node := range s.Cluster.Nodes() {
			s.eventually(node.Name()+" reaches "+address, func() error {
				ctx, cancel := context.WithTimeout(s.ctx, time.Second)
				defer cancel()
				got, err := witness.Get(ctx, node.Host, "http://"+net.JoinHostPort(address, witness.Port)+"/")
				if err == nil && got != string(pod.UID) {
					err = fmt.Errorf("%q answered", got)
				}
				return err
			})
		}
	}
	if err := s.OneAnswers(s.ctx, all[0], mac); err != nil {
		s.t.Errorf("%s on %s should answer: %v", pod.Name, pod.Spec.NodeName, err)
	}
}

// keepAsking has the client ask at the addresses, whoever answers, until the test ends.
func (s *stage) keepAsking(addresses ...string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	var asking sync.WaitGroup
	s.t.Cleanup(func() { cancel(); asking.Wait() })
	for _, address := range addresses {
		asking.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for ctx.Err() == nil {
				_, _ = s.Ask(ctx, address)
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
}
