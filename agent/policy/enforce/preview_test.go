// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conntrack"
)

// connected is a kernel that has connections.
type connected struct {
	flows   []conntrack.Flow
	sockets map[string][]socket.Connection
}

func (k connected) kernel() Kernel {
	all := NewKernel("", nil)
	all.Find, all.NodeAddresses, all.Flows, all.Connections = k.Find, k.NodeAddresses, k.Flows, k.Connections
	return all
}

func (connected) Find(string, []string) (place.Place, error) { return place.Place{}, nil }
func (connected) NodeAddresses() (own, dns []netip.Addr, err error) {
	return addresses("10.0.60.11"), nil, nil
}
func (k connected) Flows(yield func(*conntrack.Flow) bool) error {
	for i := range k.flows {
		if !yield(&k.flows[i]) {
			break
		}
	}
	return nil
}
func (k connected) Connections(netns string) ([]socket.Connection, error) {
	return k.sockets[netns], nil
}

// running are containers, all of which are known.
type running []Container

func (r running) Policed() []Container           { return slices.Clone(r) }
func (running) WaitForPods(context.Context) bool { return true }

// track is a connection that the node tracks: to is what the client asked for, and led where it
// really goes.
func track(protocol byte, from, to, led string) conntrack.Flow {
	port := netip.MustParseAddrPort
	return conntrack.Flow{
		Protocol: protocol, Original: conntrack.Tuple{Source: port(from), Destination: port(to)},
		Reply: conntrack.Tuple{Source: port(led), Destination: port(from)},
	}
}

// A survey judges a connection by the place where it really goes, also one that nothing tracks, and
// leaves out connections that have ended and connections with the node.
func TestSurvey(t *testing.T) {
	const tcp, udp, icmp = 6, 17, 1
	egress := allow("client", "client")
	egress.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	egress.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: allow("", "", "server").Spec.Ingress[0].From}}
	m := &memory{labels: map[string]map[string]string{"shop": {}}, known: make(chan struct{})}
	var containers running
	for name, address := range map[string]string{"client": "10.1.0.1", "server": "10.1.0.2"} {
		m.pods = append(m.pods, &policy.Pod{
			NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}, UID: types.UID(name), Labels: map[string]string{"app": name}, Addresses: addresses(address),
		})
		containers = append(containers, Container{Pod: api.Pod{Namespace: "shop", Name: name, UID: name}, ID: name, NetNS: "/n/" + name, Addresses: addresses(address)})
	}
	m.before = func() {
		m.sink.SetNetworkPolicy(egress)
		for _, p := range m.pods {
			m.sink.SetPod(nil, p)
		}
	}
	kernel := connected{sockets: map[string][]socket.Connection{}, flows: []conntrack.Flow{
		track(tcp, "10.1.0.1:1000", "10.96.0.1:80", "10.1.0.2:8080"),
		track(tcp, "10.1.0.1:1001", "10.96.0.2:80", "192.0.2.7:8080"),
		track(tcp, "10.1.0.1:1002", "192.0.2.8:443", "192.0.2.8:443"),
		track(udp, "10.1.0.1:1003", "10.0.60.11:53", "10.0.60.11:53"),
		track(udp, "10.1.0.1:1004", "192.0.2.9:53", "192.0.2.9:53"),
		track(icmp, "10.1.0.1:0", "192.0.2.10:0", "192.0.2.10:0"),
	}}
	for i, to := range []string{"10.96.0.1:80", "10.96.0.2:80", "192.0.2.11:22"} {
		from := netip.MustParseAddrPort(fmt.Sprintf("10.1.0.1:%d", 1000+i))
		kernel.sockets["/n/client"] = append(kernel.sockets["/n/client"], socket.Connection{Protocol: tcp, From: from, To: netip.MustParseAddrPort(to), Local: from.Addr()})
	}
	told, err := Survey(t.Context(), Options{Pods: PodsNone, Objects: m, Kernel: kernel.kernel()}, containers)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range told.Denied {
		got = append(got, fmt.Sprintf("%s %s %d of %s from %s to %s:%d %s", d.Pod, d.Direction, d.Count, d.Protocol, d.From, d.To, d.Port, d.Reason()))
	}
	const why = " default deny of NetworkPolicies, Egress (NetworkPolicy shop/client)"
	want := []string{
		"shop/client Egress 1 of UDP from 10.1.0.1 to 10.0.60.11:53" + why,
		"shop/client Egress 1 of TCP from 10.1.0.1 to 192.0.2.7:8080" + why,
		"shop/client Egress 1 of UDP from 10.1.0.1 to 192.0.2.9:53" + why,
		"shop/client Egress 1 of TCP from 10.1.0.1 to 192.0.2.11:22" + why,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("denied (-want +got):\n%s", diff)
	}
	if told.Enforced != "None" || told.Ungoverned != 2 || len(told.Pods) != 1 || told.Pods[0].Pod.Name != "client" || len(told.Pods[0].Ingress) > 0 || len(told.Unknown) > 0 {
		t.Errorf("the survey says %+v", told)
	}
}
