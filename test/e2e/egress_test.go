// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestEgress: ordinary pods of a namespace that a pool's egress selects leave with their node's
// address of the pool, to a host behind the pool's gateway, and reach each other with their own.
// They leave as before once the namespace is not selected any more.
func TestEgress(t *testing.T) {
	sideBySide(t)
	network := shared.Cluster.Network()
	s := newStageOf(t, v1alpha1.IPPoolSpec{
		Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.130-10.0.70.134"},
		NodeSubnets: []string{network.Nodes.String()}, NodeAddresses: &v1alpha1.NodeAddresses{},
		Egress: &v1alpha1.Egress{Namespaces: metav1.LabelSelector{MatchLabels: map[string]string{"egress": "partners"}}},
	})
	s.atEnd(func() {
		s.kubectl("patch", "ippool", s.pools[0], "--type=merge", "-p", `{"spec":{"egress":null,"nodeAddresses":null}}`)
	})
	// A partner's host, behind the gateway.
	const far = "198.51.100.7"
	reach := func(verb string) {
		s.client("ip", "address", verb, far+"/32", "dev", "lo")
		_, err := s.Cluster.Router().Exec(s.ctx, "ip", "route", verb, far+"/32", "via", network.Client().String())
		s.must(err)
	}
	reach("add")
	s.atEnd(func() { reach("del") })
	partner := s.hostParty(s.Cluster.Client(), far)

	nodes := []string{"node1", "node2"}
	pods := make(map[string]party, len(nodes))
	for _, node := range nodes {
		pods[node] = s.podParty(s.start("from-"+node, netexec, on(node)))
	}
	sourceOf := func(from, to party) (string, error) {
		text, err := from.ask(s.ctx, "http", to.address, to.port, "clientip")
		if err != nil {
			return "", err
		}
		source, _, err := net.SplitHostPort(text)
		return source, err
	}
	sees := func(from, to party) string {
		t.Helper()
		source, err := sourceOf(from, to)
		s.must(err)
		return source
	}
	leave := func(sources map[string]string) {
		t.Helper()
		for _, node := range nodes {
			s.eventually("pods of "+node+" leave with "+sources[node], func() error {
				source, err := sourceOf(pods[node], partner)
				if err == nil && source != sources[node] {
					err = fmt.Errorf("the partner sees %s", source)
				}
				return err
			})
		}
	}
	before, within := map[string]string{}, sees(pods["node1"], pods["node2"])
	for _, node := range nodes {
		before[node] = sees(pods[node], partner)
	}

	own := map[string]string{}
	s.eventually("the nodes have addresses of the pool", func() error {
		ips, err := s.berth.FloatingIPs.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.pool=" + s.pools[0]})
		if err != nil {
			return err
		}
		for i := range ips.Items {
			own[ips.Items[i].Spec.Node] = ips.Items[i].Spec.Address
		}
		for _, node := range nodes {
			if own[node] == "" || own[node] == before[node] {
				return fmt.Errorf("%s has %q, and its pods leave with %s", node, own[node], before[node])
			}
		}
		return nil
	})
	s.kubectl("label", "namespace", s.name, "egress=partners")
	leave(own)
	for _, node := range nodes {
		// One that starts now does from its first packet on.
		if got := sees(s.podParty(s.start("late-"+node, netexec, on(node))), partner); got != own[node] {
			t.Errorf("the partner sees a new pod of %s as %s, want %s", node, got, own[node])
		}
	}
	if got := sees(pods["node1"], pods["node2"]); got != within {
		t.Errorf("a pod of the cluster sees %s, and %s without egress", got, within)
	}

	s.kubectl("label", "namespace", s.name, "egress-")
	leave(before)
}
