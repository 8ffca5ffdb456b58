// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
)

func TestPrintInspection(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := &inquiry.Inspection{
		Time: now, Started: now.Add(-time.Hour), NotReady: "agent not ready: no uplink", API: inquiry.Connection{Synced: true}, Records: map[string]int{"added": 2, "withdrawn": 1}, OldestCheck: now.Add(-20 * time.Second),
		Containers: []inquiry.InspectedContainer{
			{
				Pod: api.Pod{Namespace: "shop", Name: "web-0"}, ContainerID: "0123456789abcdef", Phase: "added", Checked: now.Add(-20 * time.Second),
				Shaping: inquiry.InspectedShaping{Profile: "gold", Group: "gold", DSCP: new(uint8(46)), Limits: []inquiry.InspectedLimit{
					{Link: "bth1", Direction: "egress", Device: "bth-e1", Rate: 20_000_000, Shared: 100_000_000}, {Link: "bth1", Direction: "ingress", Device: "bth-i1", Rate: 1_500_000},
				}},
				HostPorts: []api.HostPort{{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}},
				Interfaces: []inquiry.InspectedInterface{
					{Name: "eth0", Network: "berth-floating", Link: "bth1", FloatingIPs: []api.Address{{Address: netip.MustParseAddr("10.0.70.5")}}},
					{Name: "net1", Network: "n", Definition: "shop/storage", Result: json.RawMessage(`{"ips":[{"address":"10.9.0.2/24"}]}`)},
				},
			},
			{
				Pod: api.Pod{Namespace: "shop", Name: "web-1"}, ContainerID: "c2", Phase: "withdrawn", Reason: "another pod holds it", Error: "boom", Shaping: inquiry.InspectedShaping{Problem: "no such profile"},
				Interfaces: []inquiry.InspectedInterface{{Name: "eth0", Network: "berth-floating", Link: "bth2"}},
			},
		},
		Conflicts: []inquiry.InspectedConflict{
			{Address: netip.MustParseAddr("10.0.70.6"), Pod: api.Pod{Namespace: "shop", Name: "web-2"}, Heard: "10.0.70.6 is used by the host 02:00:00:00:00:01", Time: now.Add(-time.Minute)},
		},
		Unanswered: []inquiry.UnansweredAddress{{Address: netip.MustParseAddr("10.0.70.7"), Why: "a host with MAC 02:00:00:00:00:09 still answers for 10.0.70.7", MACs: []string{"02:00:00:00:00:09"}}},
		Segments: []inquiry.Segment{
			{Link: "eth0", Nodes: []inquiry.Neighbour{
				{Name: "node2", MAC: "02:00:00:00:00:02", Heard: now.Add(-time.Minute)}, {Name: "node3", MAC: "02:00:00:00:00:03", Heard: now.Add(-12 * time.Minute)},
			}},
			{Link: "bthv7", Error: "no key"},
		},
		Policies: &inquiry.InspectedPolicies{
			Enforced: "FloatingIP", Backend: "nftables", Governed: 4, Ungoverned: 20, Known: true, NetworkPolicies: 3, ClusterNetworkPolicies: 1, Pods: 200, Tables: 2, Rules: 40, Elements: 300, Compared: now.Add(-30 * time.Second),
			Unenforced: []string{"shop/fast-0: ipvlan"}, Problems: []string{"NetworkPolicy shop/db: odd"},
		},
		Orphans: []inquiry.InspectedOrphan{{Link: "bth3", Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.9")}}},
		OrphanPorts: []inquiry.InspectedOrphanPort{
			{HostPort: api.HostPort{HostPort: 53, ContainerPort: 53, Protocol: "UDP"}, Pod: api.Pod{Namespace: "shop", Name: "dns"}, Address: netip.MustParseAddr("10.9.0.3")},
			{HostPort: api.HostPort{HostPort: 80, ContainerPort: 81, Protocol: "TCP"}, Address: netip.MustParseAddr("10.9.0.4")},
		},
	}
	const want = `POD          CONTAINER       PHASE       INTERFACE   NETWORK          ADDRESSES     LINK   CHECKED
shop/web-0   0123456789abc   added       eth0        berth-floating   10.0.70.5     bth1   20s
                                         net1        shop/storage     10.9.0.2/24   -      
shop/web-1   c2              withdrawn   eth0        berth-floating   -             bth2   never

shop/web-0 (0123456789abc): host port: TCP 8080 leads to port 80 of the pod
shop/web-0 (0123456789abc): profile gold, shared with the pods of the node that have it, DSCP 46
shop/web-0 (0123456789abc): egress of bth1: at most 20M bit/s, the group 100M bit/s (link bth-e1)
shop/web-0 (0123456789abc): ingress of bth1: at most 1500k bit/s (link bth-i1)
shop/web-1 (c2): bandwidth: no such profile
shop/web-1 (c2): last error: boom
shop/web-1 (c2): withdrawn: another pod holds it
conflict 60s ago: 10.0.70.6 is used by the host 02:00:00:00:00:01, of pod shop/web-2
the node does not answer for 10.0.70.7: a host with MAC 02:00:00:00:00:09 still answers for 10.0.70.7
hears 1 nodes on eth0, and not any more: node3 (02:00:00:00:00:03), heard 12m ago
hears 0 nodes on bthv7; says nothing there: no key
link bth3 with [10.0.70.9] has no record: the state file was lost; it stays while a pod of this node holds the addresses
host port UDP 53 leads to port 53 of 10.9.0.3, of pod shop/dns, and has no record: the state file was lost; it stays while the pod runs
host port TCP 80 leads to port 81 of 10.9.0.4, of pod not known yet, and has no record: the state file was lost; it stays while the pod runs
agent not ready: no uplink
network policies are not enforced: shop/fast-0: ipvlan
network policy with a problem: NetworkPolicy shop/db: odd
network policies: enforced for the 4 pods with a floating IP, and not for 20 others (--network-policy-pods=FloatingIP)
network policies: 3 NetworkPolicies, 1 ClusterNetworkPolicies, 200 pods known; 40 rules and 300 elements in 2 tables through nftables, compared with the kernel within 30s
records: 2 added, 1 withdrawn; 0 wait for work; every record was compared with the kernel within 20s
API server: reached; the agent has run for 60m
`
	var out strings.Builder
	if err := printInspection(&out, in); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !unwell(in) {
		t.Error("an error of a container counts for nothing")
	}
	in.Containers[1].Error = ""
	if !unwell(in) {
		t.Error("a pod whose policies are not enforced counts for nothing")
	}
	in.Policies.Unenforced = nil
	if !unwell(in) {
		t.Error("an agent that is not ready counts for nothing")
	}
	in.NotReady = ""
	if unwell(in) {
		t.Error("a withdrawn pod alone makes the node unwell")
	}
	in.API.Error = "no route to host"
	if !unwell(in) || !strings.Contains(serverState(in), "no route to host") {
		t.Errorf("the API server cannot be reached: %q", serverState(in))
	}
}
