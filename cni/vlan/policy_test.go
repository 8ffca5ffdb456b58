// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/table"
)

// policed is the pods of a topology as policies see them, in one namespace.
type policed struct {
	w     *topology
	pods  map[*pod]*policy.Pod
	index *policy.Index
}

func (p *policed) Namespaces() iter.Seq2[string, map[string]string] {
	return maps.All(map[string]map[string]string{"default": {}})
}

func (p *policed) Pods(string) iter.Seq[*policy.Pod] { return maps.Values(p.pods) }

func (p *policed) Pod(name types.NamespacedName) *policy.Pod {
	for _, known := range p.pods {
		if known.NamespacedName == name {
			return known
		}
	}
	return nil
}

// add makes pods of node A known to the index, with the place of their packets.
func (p *policed) add(role string, local *pod) {
	p.w.t.Helper()
	name := types.NamespacedName{Namespace: "default", Name: local.spec.ContainerID}
	known := &policy.Pod{NamespacedName: name, UID: types.UID(name.Name), Labels: map[string]string{"role": role}}
	for _, a := range local.spec.Addresses {
		known.Addresses = append(known.Addresses, a.Address)
	}
	p.pods[local] = known
	var at place.Place
	p.w.nodeA.Run(func() (err error) { at, err = place.Find(local.Path(), []string{"eth0"}); return err })
	p.index.SetLocal(policy.Local{NamespacedName: name, UID: known.UID, Addresses: known.Addresses, Direct: at.Direct})
	p.index.SetPod(nil, known)
}

// apply brings the rulesets into the kernels of the node and of the pods.
func (p *policed) apply() {
	p.w.t.Helper()
	if err := table.New(p.w.nodeA.Path()).Apply(p.w.t.Context(), p.index.Node()); err != nil {
		p.w.t.Fatal(err)
	}
	for local, known := range p.pods {
		if ruleset := p.index.Pod(known.UID); ruleset != nil {
			if err := table.New(local.Path()).Apply(p.w.t.Context(), ruleset); err != nil {
				p.w.t.Fatal(err)
			}
		}
	}
}

// listen accepts connections at a port of a pod until the test ends.
func listen(t *testing.T, h *netnstest.Host, port int) {
	t.Helper()
	var listener net.Listener
	h.Run(func() (err error) { listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err })
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
}

// connects tries to open a connection. A machine that is emulated takes its time.
func connects(from *netnstest.Host, to netip.Addr, port uint16, within time.Duration) error {
	return from.Try(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), within)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// TestPolicies: network policies hold for pods of every network type except ipvlan in mode l3s,
// whose packets no policy table sees: for packets from pods of the same node, from another node and
// from other hosts, and for packets that leave; and the node reaches its pods under every policy.
func TestPolicies(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		server, friend, stranger := w.pod("server", "10.0.70.5", "2001:db8:70::5"), w.pod("friend", "10.0.70.6", "2001:db8:70::6"), w.pod("stranger", "10.0.70.7", "2001:db8:70::7")
		elsewhere := w.pod("elsewhere", "10.0.70.8", "2001:db8:70::8")
		for p, node := range map[*pod]*netnstest.Host{server: w.nodeA, friend: w.nodeA, stranger: w.nodeA, elsewhere: w.nodeB} {
			w.setup(node, p)
			w.route(p, node)
		}
		if w.config.IPvlanMode == L3S {
			var at place.Place
			w.nodeA.Run(func() (err error) { at, err = place.Find(server.Path(), []string{"eth0"}); return err })
			if len(at.Direct) > 0 || at.Unseen["eth0"] != place.L3S {
				t.Errorf("the place of an ipvlan link in mode l3s is %+v, want it unseen", at)
			}
			return
		}
		p := &policed{w: w, pods: map[*pod]*policy.Pod{}}
		p.index = policy.NewIndex(p)
		p.index.SetNamespace("default", nil)
		p.index.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("10.0.60.11"), netip.MustParseAddr("2001:db8:60::11")}, nil)
		p.add("server", server)
		p.add("friend", friend)
		p.add("stranger", stranger)
		for _, port := range []int{80, 81} {
			listen(t, server.Host, port)
			listen(t, friend.Host, port)
		}

		expect := func(who string, from *netnstest.Host, to *pod, port uint16, want bool) {
			t.Helper()
			within := time.Minute
			if !want {
				within = 2 * time.Second
			}
			var group sync.WaitGroup
			for _, a := range to.spec.Addresses {
				group.Go(func() {
					if err := connects(from, a.Address, port, within); (err == nil) != want {
						t.Errorf("%s to %s port %d: %v, want it to pass: %t", who, a.Address, port, err, want)
					}
				})
			}
			group.Wait()
		}
		all := func(want bool) {
			t.Helper()
			var group sync.WaitGroup
			for who, from := range map[string]*netnstest.Host{"stranger": stranger.Host, "pod elsewhere": elsewhere.Host, "client": w.client} {
				group.Go(func() { expect(who, from, server, 80, want) })
			}
			group.Wait()
		}
		p.apply()
		all(true)

		in := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "in"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"role": "server"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "friend"}}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(80))}},
			}},
		}}
		p.index.SetNetworkPolicy(in)
		p.apply()
		all(false)
		expect("friend", friend.Host, server, 80, true)
		expect("friend", friend.Host, server, 81, false)
		expect("the node", w.nodeA, server, 80, true)
		expect("the node", w.nodeA, server, 81, true)
		w.nodeA.Ping("10.0.70.5")

		out := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "out"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"role": "stranger"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		}}
		expect("stranger", stranger.Host, friend, 80, true)
		p.index.SetNetworkPolicy(out)
		p.apply()
		expect("stranger", stranger.Host, friend, 80, false)

		p.index.DeletePolicy(types.NamespacedName{Namespace: "default", Name: "in"})
		p.index.DeletePolicy(types.NamespacedName{Namespace: "default", Name: "out"})
		p.apply()
		all(true)
		expect("stranger", stranger.Host, friend, 80, true)
	})
}
