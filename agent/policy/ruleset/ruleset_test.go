// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func rules(name string, hook Hook, all ...Rule) *Chain {
	return &Chain{Name: name, Hook: hook, Rules: all}
}

func of(chains ...*Chain) *Ruleset {
	rs := &Ruleset{Sets: map[string]*Set{}, Maps: map[string]*Map{}, Chains: map[string]*Chain{}}
	for _, c := range chains {
		rs.Chains[c.Name] = c
	}
	return rs
}

// sample has each kind of set and each condition.
func sample() *Ruleset {
	origin := &Origin{Kind: "NetworkPolicy", NamespacedName: types.NamespacedName{Namespace: "shop", Name: "db"}, Direction: Ingress, Rule: 1}
	rs := of(
		rules("forward", Forward,
			Rule{Established: true, Verdict: Accept},
			Rule{Family: IPv4, Pair: "self4", Verdict: Accept},
			Rule{Family: IPv4, SourceMap: "egress4"},
			Rule{Family: IPv6, SourceMap: "egress6"},
			Rule{Verdict: Goto, Target: "ingress"}),
		rules("ingress", NoHook,
			Rule{Family: IPv4, DestinationMap: "ingress4"},
			Rule{Verdict: Accept}),
		rules("output", Output,
			Rule{Loopback: true, Verdict: Accept},
			Rule{NeighborDiscovery: true, Verdict: Accept},
			Rule{LocalSource: true, Verdict: Accept},
			Rule{OutInterface: "direct", Verdict: Goto, Target: "e-1"}),
		rules("e-1", NoHook,
			Rule{Verdict: Jump, Target: "p-1"},
			Rule{Counter: "isolated", Verdict: Drop, Origin: &Origin{}}),
		rules("e-6", NoHook,
			Rule{Family: IPv6, Verdict: Drop},
			Rule{Protocol: UDP, Verdict: Drop}),
		rules("i-1", NoHook,
			Rule{Family: IPv4, Source: "peers", Protocol: TCP, Ports: []PortRange{{80, 80}, {8000, 8999}}, Counter: "db", Verdict: Accept, Origin: origin},
			Rule{Family: IPv4, Source: "blocks", Protocol: SCTP, Ports: []PortRange{{7, 7}}, Verdict: Accept, Origin: origin},
			Rule{Verdict: Drop}),
		rules("p-1", NoHook,
			Rule{Family: IPv4, Endpoint: "named", Verdict: Goto, Target: "ingress"},
			Rule{Protocol: UDP, Verdict: Return},
			Rule{Counter: "seen"}),
	)
	for _, s := range []*Set{
		{Name: "self4", Family: IPv4, Kind: Pairs, Pairs: []Pair{{addr("10.0.0.1"), addr("10.0.0.1")}}},
		{Name: "direct", Kind: Interfaces, Interfaces: []string{"eth0", "net1"}},
		{Name: "peers", Family: IPv4, Kind: Addresses, Addresses: []netip.Addr{addr("10.0.0.1"), addr("10.0.0.3")}},
		{Name: "blocks", Family: IPv4, Kind: Ranges, Ranges: []AddressRange{
			{addr("0.0.0.0"), addr("9.255.255.255")}, {addr("11.0.0.0"), addr("11.255.255.255")}, {addr("12.0.0.7"), addr("12.0.0.7")}, {addr("13.0.0.0"), addr("255.255.255.255")}}},
		{Name: "everything6", Family: IPv6, Kind: Ranges, Ranges: []AddressRange{{addr("::"), addr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}}},
		{Name: "everything4", Family: IPv4, Kind: Ranges, Ranges: []AddressRange{{addr("0.0.0.0"), addr("255.255.255.255")}}},
		{Name: "named", Family: IPv4, Kind: Endpoints, Endpoints: []Endpoint{{addr("10.0.0.2"), TCP, 80}, {addr("10.0.0.3"), SCTP, 81}}},
		{Name: "nobody", Family: IPv4, Kind: Addresses},
	} {
		rs.Sets[s.Name] = s
	}
	for _, m := range []*Map{
		{Name: "egress4", Family: IPv4, Chains: map[netip.Addr]string{addr("10.0.0.1"): "e-1"}},
		{Name: "egress6", Family: IPv6, Chains: map[netip.Addr]string{addr("fd00::1"): "e-6", addr("fd00::2"): "e-1"}},
		{Name: "ingress4", Family: IPv4, Chains: map[netip.Addr]string{addr("10.0.0.2"): "i-1"}},
	} {
		rs.Maps[m.Name] = m
	}
	return rs
}

func TestWalk(t *testing.T) {
	rs := sample()
	if err := Check(rs); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		hook   Hook
		packet Packet
		want   Verdict
		path   string
	}{
		{"established", Forward, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), Established: true}, Accept, "forward/0"},
		{"to itself", Forward, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.1")}, Accept, "forward/1"},
		{"no local pod", Forward, Packet{Source: addr("10.0.0.8"), Destination: addr("10.0.0.9")}, Accept, "forward/4 ingress/1"},
		{"isolated egress", Forward, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), Protocol: TCP, Port: 80}, Drop, "forward/2 e-1/0 p-1/2 e-1/1"},
		{"return", Forward, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), Protocol: UDP, Port: 80}, Drop, "forward/2 e-1/0 p-1/1 e-1/1"},
		{"egress allows, ingress allows", Forward, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: TCP, Port: 80}, Accept, "forward/2 e-1/0 p-1/0 ingress/0 i-1/0"},
		{"egress does not allow the port", Forward, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: TCP, Port: 81}, Drop, "forward/2 e-1/0 p-1/2 e-1/1"},
		{"ingress, port range", Forward, Packet{Source: addr("10.0.0.3"), Destination: addr("10.0.0.2"), Protocol: TCP, Port: 8999}, Accept, "forward/4 ingress/0 i-1/0"},
		{"ingress, behind the range", Forward, Packet{Source: addr("10.0.0.3"), Destination: addr("10.0.0.2"), Protocol: TCP, Port: 9000}, Drop, "forward/4 ingress/0 i-1/2"},
		{"ingress, other protocol", Forward, Packet{Source: addr("10.0.0.3"), Destination: addr("10.0.0.2"), Protocol: UDP, Port: 80}, Drop, "forward/4 ingress/0 i-1/2"},
		{"block, first", Forward, Packet{Source: addr("0.0.0.0"), Destination: addr("10.0.0.2"), Protocol: SCTP, Port: 7}, Accept, "forward/4 ingress/0 i-1/1"},
		{"block, last", Forward, Packet{Source: addr("255.255.255.255"), Destination: addr("10.0.0.2"), Protocol: SCTP, Port: 7}, Accept, "forward/4 ingress/0 i-1/1"},
		{"block, between", Forward, Packet{Source: addr("10.0.0.7"), Destination: addr("10.0.0.2"), Protocol: SCTP, Port: 7}, Drop, "forward/4 ingress/0 i-1/2"},
		{"block, one address", Forward, Packet{Source: addr("12.0.0.7"), Destination: addr("10.0.0.2"), Protocol: SCTP, Port: 7}, Accept, "forward/4 ingress/0 i-1/1"},
		{"IPv6", Forward, Packet{Source: addr("fd00::1"), Destination: addr("fd00::9"), Protocol: TCP, Port: 7}, Drop, "forward/3 e-6/0"},
		{"return at the end of goto", Output, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "net1", Protocol: UDP}, Drop, "output/3 e-1/0 p-1/1 e-1/1"},
		{"loopback", Output, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "lo"}, Accept, "output/0"},
		{"neighbour discovery", Output, Packet{Source: addr("fd00::1"), Destination: addr("ff02::1"), OutInterface: "net1", NeighborDiscovery: true}, Accept, "output/1"},
		{"of the namespace itself", Output, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "net1", Protocol: UDP, LocalSource: true}, Accept, "output/2"},
		{"other interface", Output, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "net2"}, Accept, ""},
		{"no base chain", Input, Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), InInterface: "net2"}, Accept, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Walk(rs, tc.hook, tc.packet)
			if got.Verdict != tc.want {
				t.Errorf("verdict %v, want %v", got.Verdict, tc.want)
			}
			if path := pathText(got); path != tc.path {
				t.Errorf("path %q, want %q", path, tc.path)
			}
			if got.Rule != nil && got.Rule != got.Path[len(got.Path)-1].Rule {
				t.Error("the deciding rule is not the last one of the path")
			}
		})
	}
}

func pathText(d Decision) string {
	var all []string
	for _, s := range d.Path {
		all = append(all, s.Chain+"/"+string(rune('0'+s.Index)))
	}
	return strings.Join(all, " ")
}

// Return and ends of chains go where nftables says.
func TestWalkReturns(t *testing.T) {
	packet := Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2")}
	for name, tc := range map[string]struct {
		chains []*Chain
		want   Verdict
	}{
		"return in a base chain accepts": {[]*Chain{rules("b", Forward, Rule{Verdict: Return}, Rule{Verdict: Drop})}, Accept},
		"end of a jump":                  {[]*Chain{rules("b", Forward, Rule{Verdict: Jump, Target: "x"}, Rule{Verdict: Drop}), rules("x", NoHook)}, Drop},
		"end of a goto":                  {[]*Chain{rules("b", Forward, Rule{Verdict: Goto, Target: "x"}, Rule{Verdict: Drop}), rules("x", NoHook)}, Accept},
		"goto in a jump": {[]*Chain{rules("b", Forward, Rule{Verdict: Jump, Target: "x"}, Rule{Verdict: Drop}),
			rules("x", NoHook, Rule{Verdict: Goto, Target: "y"}, Rule{Verdict: Accept}), rules("y", NoHook)}, Drop},
		"jump in a goto": {[]*Chain{rules("b", Forward, Rule{Verdict: Goto, Target: "x"}, Rule{Verdict: Drop}),
			rules("x", NoHook, Rule{Verdict: Jump, Target: "y"}, Rule{Verdict: Drop}), rules("y", NoHook, Rule{Verdict: Return}, Rule{Verdict: Accept})}, Drop},
		"accept goes on to the next base chain": {[]*Chain{rules("a", Forward, Rule{Verdict: Accept}), rules("b", Forward, Rule{Verdict: Drop})}, Drop},
		"drop ends all":                         {[]*Chain{rules("a", Forward, Rule{Verdict: Drop}), rules("b", Forward, Rule{Verdict: Accept})}, Drop},
	} {
		t.Run(name, func(t *testing.T) {
			rs := of(tc.chains...)
			if err := Check(rs); err != nil {
				t.Fatal(err)
			}
			if got := Walk(rs, Forward, packet); got.Verdict != tc.want {
				t.Errorf("verdict %v, want %v", got.Verdict, tc.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(rs *Ruleset)
		want   string
	}{
		"dangling jump":         {func(rs *Ruleset) { delete(rs.Chains, "p-1") }, `"p-1", which does not exist`},
		"dangling element":      {func(rs *Ruleset) { delete(rs.Chains, "i-1") }, `"i-1", which does not exist`},
		"jump to a base chain":  {func(rs *Ruleset) { rs.Chains["e-1"].Rules[0].Target = "output" }, `base chain "output"`},
		"missing set":           {func(rs *Ruleset) { delete(rs.Sets, "peers") }, "set peers does not exist"},
		"missing map":           {func(rs *Ruleset) { delete(rs.Maps, "egress4") }, "map egress4 does not exist"},
		"set of another kind":   {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Source = "self4" }, "set self4 is of kind"},
		"set of another family": {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Family = IPv6 }, "set peers is of another family"},
		"rule without family":   {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Family = AnyFamily }, "set peers is of another family"},
		"map of another family": {func(rs *Ruleset) { rs.Chains["forward"].Rules[2].Family = IPv6 }, "map egress4 is of another family"},
		"map with a verdict":    {func(rs *Ruleset) { rs.Chains["forward"].Rules[2].Verdict = Drop }, "other conditions or a verdict"},
		"map with ports":        {func(rs *Ruleset) { rs.Chains["forward"].Rules[2].Ports = []PortRange{{1, 1}} }, "other conditions or a verdict"},
		"long name": {func(rs *Ruleset) {
			rs.Chains[strings.Repeat("x", 32)] = rules(strings.Repeat("x", 32), NoHook)
		}, "has 32 bytes"},
		"bad name":             {func(rs *Ruleset) { rs.Chains["1"] = rules("1", NoHook) }, `"1" is not of`},
		"name unlike its key":  {func(rs *Ruleset) { rs.Chains["x"] = rules("y", NoHook) }, `its name is "y"`},
		"set and map":          {func(rs *Ruleset) { rs.Sets["egress4"] = &Set{Name: "egress4", Family: IPv4, Kind: Addresses} }, "a map has the same name"},
		"address of the other": {func(rs *Ruleset) { rs.Sets["peers"].Family = IPv6 }, "10.0.0.1 is of the other family"},
		"mapped address":       {func(rs *Ruleset) { rs.Sets["everything6"].Ranges[0].First = addr("::ffff:1.2.3.4") }, "is no plain address"},
		"unsorted":             {func(rs *Ruleset) { rs.Sets["peers"].Addresses[1] = addr("10.0.0.0") }, "10.0.0.1 stands before 10.0.0.0"},
		"repeated":             {func(rs *Ruleset) { rs.Sets["peers"].Addresses[1] = addr("10.0.0.1") }, "10.0.0.1 stands before 10.0.0.1"},
		"ranges touch":         {func(rs *Ruleset) { rs.Sets["blocks"].Ranges[1].First = addr("10.0.0.0") }, "apart from it"},
		"range after the last": {func(rs *Ruleset) { rs.Sets["blocks"].Ranges[2].Last = addr("255.255.255.255") }, "apart from it"},
		"range ends too early": {func(rs *Ruleset) {
			rs.Sets["blocks"].Ranges[0].Last, rs.Sets["blocks"].Ranges[0].First = addr("0.0.0.0"), addr("0.0.0.1")
		}, "ends before"},
		"kinds mixed":           {func(rs *Ruleset) { rs.Sets["peers"].Interfaces = []string{"eth0"} }, "elements of kind"},
		"long interface":        {func(rs *Ruleset) { rs.Sets["direct"].Interfaces[1] = strings.Repeat("x", 16) }, "interface's name"},
		"ports of no protocol":  {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Protocol = AnyProtocol }, "ports of protocol 0"},
		"ports touch":           {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Ports[0].Last = 7999 }, "apart from them"},
		"ports the wrong way":   {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Ports[0].First = 81 }, "end before they begin"},
		"target without a jump": {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Target = "p-1" }, "with target p-1"},
		"loopback in forward":   {func(rs *Ruleset) { rs.Chains["forward"].Rules[0].Loopback = true }, "loopback means nothing"},
		"no such interface":     {func(rs *Ruleset) { rs.Chains["output"].Rules[0].InInterface = "direct" }, "no such interface"},
		"counter's name":        {func(rs *Ruleset) { rs.Chains["i-1"].Rules[0].Counter = "a b" }, "counter's name"},
		"loop":                  {func(rs *Ruleset) { rs.Maps["ingress4"].Chains[addr("10.0.0.2")] = "e-1" }, "leads back to itself"},
		"depth": {func(rs *Ruleset) {
			for i := range 16 {
				name := "d" + string(rune('a'+i))
				rs.Chains[name] = rules(name, NoHook, Rule{Verdict: Jump, Target: "d" + string(rune('a'+i+1))})
			}
			rs.Chains["dq"] = rules("dq", NoHook)
		}, "17 chains follow one another"},
	} {
		t.Run(name, func(t *testing.T) {
			rs := sample()
			tc.change(rs)
			if err := Check(rs); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestText(t *testing.T) {
	got := Text(sample())
	for _, want := range []string{
		"\t\ttype filter hook forward priority filter; policy accept;\n",
		"\t\tct state established,related accept\n",
		"\t\tip saddr . ip daddr @self4 accept\n",
		"\t\tip saddr vmap @egress4\n",
		"\t\tip saddr @peers tcp dport { 80, 8000-8999 } counter name \"db\" accept # NetworkPolicy shop/db, Ingress rule 1\n",
		"\t\tip saddr @blocks sctp dport 7 accept # ",
		"\t\tip daddr . meta l4proto . th dport @named goto ingress\n",
		"\t\tmeta nfproto ipv6 drop\n",
		"\t\tmeta l4proto udp drop\n",
		"\t\telements = { 0.0.0.0-9.255.255.255,\n\t\t\t     11.0.0.0/8,\n\t\t\t     12.0.0.7,\n\t\t\t     13.0.0.0-255.255.255.255 }\n",
		"\t\telements = { ::/0 }\n",
		"\t\telements = { 10.0.0.2 . tcp . 80,\n\t\t\t     10.0.0.3 . sctp . 81 }\n",
		"\t\telements = { fd00::1 : goto e-6,\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	if diff := cmp.Diff(got, Text(sample())); diff != "" {
		t.Errorf("another text of an equal ruleset: %s", diff)
	}
	if t.Failed() {
		t.Log(got)
	}
}

// nft reads the text. The rules reach the kernel without nft, which may be missing.
func TestTextForNFT(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skipf("only nft itself can say whether it reads the text: %v", err)
	}
	command := exec.Command(nft, "-c", "-f", "-")
	command.Stdin = strings.NewReader(Text(sample()))
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, out, Text(sample()))
	}
}
