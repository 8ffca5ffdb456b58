// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/speaker/status"
)

// The links table and session say where routers stop to lead to an address.
func TestAnnounced(t *testing.T) {
	addr, router := netip.MustParseAddr("10.99.0.12"), netip.MustParseAddr("10.11.0.1")
	ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Address: addr.String(), Node: "node1"}}
	table := Link{Name: "table", State: ok, Text: "table 98 of node node1 has the address"}
	broken := func(text string) []Link {
		return []Link{table, {Name: "session", State: Broken, Text: "no session of node node1 announces the address: " + text, Command: "kubectl berth bgp --node node1"}}
	}
	exported := []status.Exported{{Address: addr}}
	for name, test := range map[string]struct {
		carried []status.Carried
		peers   []status.Peer
		want    []Link
	}{
		"not in the table": {[]status.Carried{{Address: router}}, []status.Peer{{Name: "tor", Established: true}}, []Link{{
			Name: "table", State: Broken, Command: "kubectl berth bgp 10.99.0.12",
			Text: "table 98 of node node1 lacks 10.99.0.12, so no router leads to it: with the annotation berth.dev/advertise: Ready the pod must be Ready",
		}}},
		"announced by one of two": {[]status.Carried{{Address: addr}}, []status.Peer{
			{Name: "tor-1", Address: router, Established: true, Exported: exported}, {Name: "tor-2", Error: "it does not answer"},
		}, []Link{table, {Name: "session", State: ok, Text: "announced to 10.11.0.1 (BGPPeer tor-1)"}}},
		"the session is down":         {[]status.Carried{{Address: addr}}, []status.Peer{{Name: "tor", Exported: exported, Error: "it does not answer"}}, broken("tor: it does not answer")},
		"no export names it":          {[]status.Carried{{Address: addr}}, []status.Peer{{Name: "tor", Established: true}}, broken("tor: spec.export names no prefix of the address")},
		"no BGPPeer selects the node": {[]status.Carried{{Address: addr}}, nil, broken("no BGPPeer selects the node")},
	} {
		t.Run(name, func(t *testing.T) {
			got := announced(ip, &status.Status{Node: "node1", Carried: test.carried, Peers: test.peers})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
