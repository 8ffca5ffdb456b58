// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func peerOf(name string, change func(spec *v1alpha1.BGPPeerSpec)) *v1alpha1.BGPPeer {
	peer := &v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BGPPeerSpec{
		LocalASN: 65200, Peer: v1alpha1.BGPRouter{Address: "10.11.0.1", ASN: 65101},
		Export: []v1alpha1.BGPExport{{Prefixes: []string{"10.99.0.0/16", "2001:db8:99::/48"}}},
	}}
	if change != nil {
		change(&peer.Spec)
	}
	return peer
}

func route(addr string, metric uint32) Route { return Route{netip.MustParseAddr(addr), metric} }

// text writes a session as one line, with its paths in order.
func text(s Session) string {
	if s.Problem != nil {
		return s.Name + ": " + s.Problem.Error()
	}
	router := s.Interface
	if router == "" {
		router = s.Peer.String()
	}
	line := fmt.Sprintf("%s: %d to %d at %s, %d hops, %s, %s:", s.Name, s.LocalASN, s.PeerASN, router, s.Multihop, s.HoldTime, s.RestartTime)
	if s.Port != 179 || s.Source.IsValid() {
		line += fmt.Sprintf(" port %d, from %s:", s.Port, s.Source)
	}
	if s.BFDInterval > 0 {
		line += fmt.Sprintf(" bfd %s %d:", s.BFDInterval, s.BFDMultiplier)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(s.Paths), netip.Addr.Compare) {
		path := s.Paths[addr]
		line += " " + addr.String()
		for _, c := range path.Communities {
			line += fmt.Sprintf(" %d:%d", c>>16, c&0xffff)
		}
		for _, c := range path.Large {
			line += fmt.Sprintf(" %d:%d:%d", c[0], c[1], c[2])
		}
		if path.MED != nil {
			line += fmt.Sprintf(" med %d", *path.MED)
		}
		if path.LocalPref != nil {
			line += fmt.Sprintf(" pref %d", *path.LocalPref)
		}
	}
	return line
}

func TestSessions(t *testing.T) {
	routes := []Route{route("10.99.0.5", 1000), route("10.98.0.5", 1000), route("2001:db8:99::5", 2000)}
	const usual = "tor: 65200 to 65101 at 10.11.0.1, 1 hops, 9s, 15s:"
	for name, test := range map[string]struct {
		peers  []*v1alpha1.BGPPeer
		routes []Route
		want   []string
	}{
		"no peers":                            {nil, routes, nil},
		"nothing leaves that no export names": {[]*v1alpha1.BGPPeer{peerOf("tor", nil)}, routes, []string{usual + " 10.99.0.5 2001:db8:99::5"}},
		"nothing is carried":                  {[]*v1alpha1.BGPPeer{peerOf("tor", nil)}, nil, []string{usual}},
		"all fields": {[]*v1alpha1.BGPPeer{peerOf("tor", func(s *v1alpha1.BGPPeerSpec) {
			s.LocalASN, s.Peer = 4200000000, v1alpha1.BGPRouter{Address: "2001:db8::1", ASN: 4200000001}
			s.Multihop, s.HoldTime, s.GracefulRestart.Time = 3, &metav1.Duration{Duration: time.Minute}, &metav1.Duration{Duration: 2 * time.Minute}
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
			s.Export[0].Communities = []string{"65200:70", "65200:7", "65200:70", "4200000000:1:2"}
		})}, routes, []string{"tor: 4200000000 to 4200000001 at 2001:db8::1, 3 hops, 1m0s, 2m0s: 10.99.0.5 65200:7 65200:70 4200000000:1:2 2001:db8:99::5 65200:7 65200:70 4200000000:1:2"}},
		"source and port": {[]*v1alpha1.BGPPeer{
			peerOf("a", func(s *v1alpha1.BGPPeerSpec) { s.Peer.Port, s.Source = 1179, "10.255.0.0/24" }),
			peerOf("b", func(s *v1alpha1.BGPPeerSpec) { s.Source = "2001:db8::/64" }),
		}, nil, []string{"a: 65200 to 65101 at 10.11.0.1, 1 hops, 9s, 15s: port 1179, from 10.255.0.0/24:", "b: read spec.source: 2001:db8::/64 is of another IP version than spec.peer.address, 10.11.0.1"}},
		"interfaces": {[]*v1alpha1.BGPPeer{
			peerOf("a", func(s *v1alpha1.BGPPeerSpec) { s.Peer = v1alpha1.BGPRouter{Interface: "eth0"} }),
			peerOf("b", func(s *v1alpha1.BGPPeerSpec) { s.Peer = v1alpha1.BGPRouter{Interface: "eth1", ASN: 65101} }),
			peerOf("c", func(s *v1alpha1.BGPPeerSpec) { s.Peer = v1alpha1.BGPRouter{Interface: "eth0", ASN: 65101} }),
		}, nil, []string{
			"a: 65200 to 0 at eth0, 1 hops, 9s, 15s:", "b: 65200 to 65101 at eth1, 1 hops, 9s, 15s:",
			"c: BGPPeer a has this node's session with eth0: delete one of them, or have them select different nodes",
		}},
		"BFD": {[]*v1alpha1.BGPPeer{
			peerOf("a", func(s *v1alpha1.BGPPeerSpec) { s.BFD = &v1alpha1.BGPBFD{} }),
			peerOf("b", func(s *v1alpha1.BGPPeerSpec) {
				s.Peer.Address, s.BFD = "10.11.0.2", &v1alpha1.BGPBFD{Interval: &metav1.Duration{Duration: 50 * time.Millisecond}, Multiplier: 5}
			}),
		}, nil, []string{"a: 65200 to 65101 at 10.11.0.1, 1 hops, 9s, 15s: bfd 300ms 3:", "b: 65200 to 65101 at 10.11.0.2, 1 hops, 9s, 15s: bfd 50ms 5:"}},
		"other nodes": {[]*v1alpha1.BGPPeer{peerOf("tor", func(s *v1alpha1.BGPPeerSpec) {
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "2"}}
		})}, routes, nil},
		"newest, eBGP": {[]*v1alpha1.BGPPeer{peerOf("tor", func(s *v1alpha1.BGPPeerSpec) { s.Export[0].Newest = true })}, routes,
			[]string{usual + " 10.99.0.5 med 1000 2001:db8:99::5 med 2000"}},
		"newest, iBGP": {[]*v1alpha1.BGPPeer{peerOf("tor", func(s *v1alpha1.BGPPeerSpec) { s.Export[0].Newest, s.Peer.ASN = true, 65200 })}, routes,
			[]string{"tor: 65200 to 65200 at 10.11.0.1, 1 hops, 9s, 15s: 10.99.0.5 med 1000 pref 4294966295 2001:db8:99::5 med 2000 pref 4294965295"}},
		"the first export with an address counts": {[]*v1alpha1.BGPPeer{peerOf("tor", func(s *v1alpha1.BGPPeerSpec) {
			s.Export = []v1alpha1.BGPExport{{Prefixes: []string{"10.99.0.5/32"}, Communities: []string{"1:1"}}, {Prefixes: []string{"10.99.0.0/16"}, Communities: []string{"2:2"}, Newest: true}}
		})}, []Route{route("10.99.0.5", 7), route("10.99.0.6", 7)}, []string{usual + " 10.99.0.5 1:1 10.99.0.6 2:2 med 7"}},
		"the newest of two routes counts, and none is older than one without a metric": {[]*v1alpha1.BGPPeer{peerOf("tor", func(s *v1alpha1.BGPPeerSpec) { s.Export[0].Newest = true })},
			[]Route{route("10.99.0.5", 9), route("10.99.0.5", 8), route("10.99.0.5", 0), route("10.99.0.6", 0)}, []string{usual + " 10.99.0.5 med 8 10.99.0.6 med 4294967295"}},
		"a router accepts one session of a node": {[]*v1alpha1.BGPPeer{peerOf("tor-b", nil), peerOf("tor-a", nil), peerOf("tor-c", func(s *v1alpha1.BGPPeerSpec) { s.Peer.Address = "10.11.0.2" })}, nil, []string{
			"tor-a: 65200 to 65101 at 10.11.0.1, 1 hops, 9s, 15s:",
			"tor-b: BGPPeer tor-a has this node's session with 10.11.0.1: delete one of them, or have them select different nodes",
			"tor-c: 65200 to 65101 at 10.11.0.2, 1 hops, 9s, 15s:",
		}},
		// The API server refuses these; an older one of its definitions may not.
		"wrong fields": {[]*v1alpha1.BGPPeer{
			peerOf("a", func(s *v1alpha1.BGPPeerSpec) { s.Peer.Address = "tor" }),
			peerOf("b", func(s *v1alpha1.BGPPeerSpec) { s.Export[0].Prefixes = []string{"10.99.0.5/16"} }),
			peerOf("c", func(s *v1alpha1.BGPPeerSpec) { s.Export[0].Communities = []string{"65536:1"} }),
			peerOf("d", func(s *v1alpha1.BGPPeerSpec) { s.Export[0].Communities = []string{"7"} }),
			peerOf("e", func(s *v1alpha1.BGPPeerSpec) { s.LocalASN = math.MaxUint32 }),
			peerOf("f", func(s *v1alpha1.BGPPeerSpec) { s.Peer.ASN = 0 }),
			peerOf("g", func(s *v1alpha1.BGPPeerSpec) {
				s.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Near"}}}
			}),
		}, nil, []string{
			`a: read spec.peer.address: `, `b: read spec.export[0].prefixes: "10.99.0.5/16" has host bits: write 10.99.0.0/16`,
			`c: read spec.export[0].communities: "65536:1" is neither`, `d: read spec.export[0].communities: "7" is neither`,
			`e: read spec.localASN: 4294967295 is not`, `f: read spec.peer.asn: 0 is not`, `g: read spec.nodeSelector: `,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, session := range Sessions(test.peers, map[string]string{"rack": "1"}, test.routes) {
				got = append(got, text(session))
			}
			same := func(got, want string) bool {
				return got == want || strings.HasPrefix(name, "wrong") && strings.HasPrefix(got, want)
			}
			if !slices.EqualFunc(got, test.want, same) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(test.want, got))
			}
		})
	}
}

// A session goes on where a router takes it for the same one, and paths are sent again where they
// differ.
func TestEqual(t *testing.T) {
	one := Sessions([]*v1alpha1.BGPPeer{peerOf("tor", nil)}, nil, nil)[0].Peering
	for change, other := range map[string]func(*Peering){
		"ASN": func(p *Peering) { p.LocalASN++ }, "router's ASN": func(p *Peering) { p.PeerASN++ }, "router": func(p *Peering) { p.Peer = p.Peer.Next() },
		"source": func(p *Peering) { p.Source = netip.MustParsePrefix("10.255.0.0/24") },
	} {
		changed := one
		if other(&changed); changed.SameSpeaker(one) || !one.SameSpeaker(one) {
			t.Errorf("another %s is taken for the same speaker", change)
		}
	}
	timers := one
	timers.HoldTime, timers.RestartTime, timers.Multihop = time.Hour, time.Hour, 9
	if !timers.SameSpeaker(one) {
		t.Error("other timers are taken for another speaker")
	}
	number := func(n uint32) *uint32 { return &n }
	path := Path{Communities: []uint32{1}, Large: [][3]uint32{{1, 2, 3}}, MED: number(5), LocalPref: number(6)}
	for i, other := range []Path{
		{Large: path.Large, MED: path.MED, LocalPref: path.LocalPref}, {Communities: path.Communities, MED: path.MED, LocalPref: path.LocalPref},
		{Communities: path.Communities, Large: path.Large, LocalPref: path.LocalPref}, {Communities: path.Communities, Large: path.Large, MED: number(4), LocalPref: path.LocalPref},
		{Communities: path.Communities, Large: path.Large, MED: path.MED}, {Communities: path.Communities, Large: path.Large, MED: path.MED, LocalPref: number(5)},
	} {
		if path.Equal(other) || other.Equal(path) {
			t.Errorf("path %d is the same", i)
		}
	}
	if !path.Equal(Path{Communities: []uint32{1}, Large: [][3]uint32{{1, 2, 3}}, MED: number(5), LocalPref: number(6)}) {
		t.Error("the same path differs")
	}
}
