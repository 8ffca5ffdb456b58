// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostBatch(t *testing.T) {
	all := DefaultNetwork().hostLinks(3)
	tests := map[string]string{
		nodeName(2): `link set lo up
link add oob0 address 02:00:c0:a8:3c:0c type veth peer name node2-oob0 netns 7
link set oob0 up
addr add 192.168.60.12/24 brd + dev oob0
link add eth0 address 02:00:0a:00:3c:0c type veth peer name node2 netns 7
link set eth0 up
addr add 10.0.60.12/24 brd + dev eth0
addr add fd00:60::c/64 dev eth0 nodad
link add uplink2 address 02:00:0a:00:3d:0c type veth peer name node2-uplink2 netns 7
link set uplink2 up
addr add 10.0.61.12/24 brd + dev uplink2
addr add fd00:61::c/64 dev uplink2 nodad
route add 0.0.0.0/0 via 10.0.60.1
route add ::/0 via fd00:60::1
route add 10.244.1.0/24 via 10.0.60.11
route add 10.244.3.0/24 via 10.0.60.13
route add 0.0.0.0/0 via 10.0.61.1 metric 2048
route add ::/0 via fd00:61::1 metric 2048
`,
		routerHost: `link set lo up
link add eth0 address 02:00:0a:00:3c:01 type veth peer name router netns 7
link set eth0 up
addr add 10.0.60.1/24 brd + dev eth0
addr add fd00:60::1/64 dev eth0 nodad
addr add 10.0.70.1/24 brd + dev eth0
addr add fd00:70::1/64 dev eth0 nodad
link add uplink2 address 02:00:0a:00:3d:01 type veth peer name router-uplink2 netns 7
link set uplink2 up
addr add 10.0.61.1/24 brd + dev uplink2
addr add fd00:61::1/64 dev uplink2 nodad
route add 10.244.1.0/24 via 10.0.60.11
route add 10.244.2.0/24 via 10.0.60.12
route add 10.244.3.0/24 via 10.0.60.13
`,
		clientHost: `link set lo up
link add eth0 address 02:00:0a:00:46:fa type veth peer name client netns 7
link set eth0 up
addr add 10.0.70.250/24 brd + dev eth0
addr add fd00:70::fa/64 dev eth0 nodad
route add 0.0.0.0/0 via 10.0.70.1
route add ::/0 via fd00:70::1
`,
	}
	for host, want := range tests {
		t.Run(host, func(t *testing.T) {
			if diff := cmp.Diff(want, hostBatch(host, all[host], 7)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Two hosts with one address would make every other test lie.
func TestHostLinksAreDistinct(t *testing.T) {
	owner := map[string]string{}
	for host, l := range DefaultNetwork().hostLinks(MaxNodes) {
		var all []netip.Prefix
		for _, c := range l.cards {
			all = append(all, c.addrs...)
		}
		for _, a := range all {
			if other, ok := owner[a.Addr().String()]; ok {
				t.Errorf("%s and %s both have %s", host, other, a)
			}
			owner[a.Addr().String()] = host
		}
		for _, r := range l.routes {
			if !slices.ContainsFunc(all, func(a netip.Prefix) bool { return a.Contains(r.via) }) {
				t.Errorf("%s has a route via %s, which it does not reach", host, r.via)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	tests := []struct {
		name string
		in   Options
		ok   bool
	}{
		{"zero", Options{}, true},
		{"name", Options{Name: "a-1"}, true},
		{"path in name", Options{Name: "../x"}, false},
		{"long name", Options{Name: strings.Repeat("a", 21)}, false},
		{"too many nodes", Options{Nodes: MaxNodes + 1}, false},
		{"negative nodes", Options{Nodes: -1}, false},
		{"many pods", Options{MaxPods: MaxPods}, true},
		{"too many pods", Options{MaxPods: MaxPods + 1}, false},
		{"half a second", Options{EvictAfter: 500_000_000}, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.in.complete()
			if (err == nil) != tc.ok {
				t.Errorf("complete() = %+v, %v", got, err)
			}
		})
	}
}

func TestInitScriptMountsBeforeSharing(t *testing.T) {
	s := initScript("node1", hostSysctls(true), "/disk")
	private, bind, shared := strings.Index(s, "make-rprivate"), strings.Index(s, "--bind /disk/var-lib-cni /var/lib/cni"), strings.Index(s, "make-rshared")
	if private < 0 || bind < private || shared < bind {
		t.Errorf("want private, then mounts, then shared:\n%s", s)
	}
	if strings.Contains(initScript("client", hostSysctls(false), ""), "--bind") {
		t.Error("a host that is no node has a disk")
	}
}
