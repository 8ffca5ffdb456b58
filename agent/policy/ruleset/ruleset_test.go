// SPDX-License-Identifier: Apache-2.0

package ruleset_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func rules(name string, hook ruleset.Hook, all ...ruleset.Rule) *ruleset.Chain {
	return &ruleset.Chain{Name: name, Hook: hook, Rules: all}
}

func of(chains ...*ruleset.Chain) *ruleset.Ruleset {
	rs := &ruleset.Ruleset{Sets: map[string]*ruleset.Set{}, Maps: map[string]*ruleset.Map{}, Chains: map[string]*ruleset.Chain{}}
	for _, c := range chains {
		rs.Chains[c.Name] = c
	}
	return rs
}

// sample has each kind of set and each condition.
func sample() *ruleset.Ruleset {
	origin := &ruleset.Origin{Kind: "NetworkPolicy", NamespacedName: types.NamespacedName{Namespace: "shop", Name: "db"}, Direction: ruleset.Ingress, Rule: 1}
	rs := of(
		rules("forward", ruleset.Forward,
			ruleset.Rule{Established: true, Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv4, Pair: "self4", Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv6, SourceIn: "own6", SourceOut: "own6", Verdict: ruleset.Accept},
			ruleset.Rule{Family: ruleset.IPv4, SourceMap: "egress4"},
			ruleset.Rule{Family: ruleset.IPv6, SourceMap: "egress6"},
			ruleset.Rule{Verdict: ruleset.Goto, Target: "ingress"}),
		rules("ingress", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv4, DestinationMap: "ingress4"},
			ruleset.Rule{Verdict: ruleset.Accept}),
		rules("output", ruleset.Output,
			ruleset.Rule{Loopback: true, Verdict: ruleset.Accept},
			ruleset.Rule{NeighborDiscovery: true, Verdict: ruleset.Accept},
			ruleset.Rule{LocalSource: true, Verdict: ruleset.Accept},
			ruleset.Rule{OutInterface: "direct", Verdict: ruleset.Goto, Target: "e-1"}),
		rules("e-1", ruleset.NoHook,
			ruleset.Rule{Verdict: ruleset.Jump, Target: "p-1"},
			ruleset.Rule{Counter: "isolated", Verdict: ruleset.Drop, Origin: &ruleset.Origin{}}),
		rules("e-6", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv6, Verdict: ruleset.Drop},
			ruleset.Rule{Protocol: ruleset.UDP, Verdict: ruleset.Drop}),
		rules("i-1", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv4, Source: "peers", Protocol: ruleset.TCP, Ports: []ruleset.PortRange{{80, 80}, {8000, 8999}}, Counter: "db", Verdict: ruleset.Accept, Origin: origin},
			ruleset.Rule{Family: ruleset.IPv4, Source: "blocks", Protocol: ruleset.SCTP, Ports: []ruleset.PortRange{{7, 7}}, Verdict: ruleset.Accept, Origin: origin},
			ruleset.Rule{Verdict: ruleset.Drop}),
		rules("p-1", ruleset.NoHook,
			ruleset.Rule{Family: ruleset.IPv4, Endpoint: "named", Verdict: ruleset.Goto, Target: "ingress"},
			ruleset.Rule{Protocol: ruleset.UDP, Verdict: ruleset.Return},
			ruleset.Rule{Counter: "seen"}),
	)
	for _, s := range []*ruleset.Set{
		{Name: "self4", Family: ruleset.IPv4, Kind: ruleset.Pairs, Pairs: []ruleset.Pair{{addr("10.0.0.1"), addr("10.0.0.1")}}},
		{Name: "own6", Family: ruleset.IPv6, Kind: ruleset.Links, Links: []ruleset.Link{{addr("fd00::1"), "pod1"}, {addr("fd00::1"), "pod2"}, {addr("fd00::2"), "pod3"}}},
		{Name: "direct", Kind: ruleset.Interfaces, Interfaces: []string{"eth0", "net1"}},
		{Name: "peers", Family: ruleset.IPv4, Kind: ruleset.Addresses, Addresses: []netip.Addr{addr("10.0.0.1"), addr("10.0.0.3")}},
		{Name: "blocks", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: []ruleset.AddressRange{
			{addr("0.0.0.0"), addr("9.255.255.255")}, {addr("11.0.0.0"), addr("11.255.255.255")}, {addr("12.0.0.7"), addr("12.0.0.7")}, {addr("13.0.0.0"), addr("255.255.255.255")}}},
		{Name: "everything6", Family: ruleset.IPv6, Kind: ruleset.Ranges, Ranges: []ruleset.AddressRange{{addr("::"), addr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}}},
		{Name: "everything4", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: []ruleset.AddressRange{{addr("0.0.0.0"), addr("255.255.255.255")}}},
		{Name: "named", Family: ruleset.IPv4, Kind: ruleset.Endpoints, Endpoints: []ruleset.Endpoint{{addr("10.0.0.2"), ruleset.TCP, 80}, {addr("10.0.0.3"), ruleset.SCTP, 81}}},
		{Name: "nobody", Family: ruleset.IPv4, Kind: ruleset.Addresses},
	} {
		rs.Sets[s.Name] = s
	}
	for _, m := range []*ruleset.Map{
		{Name: "egress4", Family: ruleset.IPv4, Chains: map[netip.Addr]string{addr("10.0.0.1"): "e-1"}},
		{Name: "egress6", Family: ruleset.IPv6, Chains: map[netip.Addr]string{addr("fd00::1"): "e-6", addr("fd00::2"): "e-1"}},
		{Name: "ingress4", Family: ruleset.IPv4, Chains: map[netip.Addr]string{addr("10.0.0.2"): "i-1"}},
	} {
		rs.Maps[m.Name] = m
	}
	return rs
}

func TestWalk(t *testing.T) {
	rs := sample()
	if err := rulesettest.Check(rs); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		hook   ruleset.Hook
		packet ruleset.Packet
		want   ruleset.Verdict
		path   string
	}{
		{"established", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), Established: true}, ruleset.Accept, "forward/0"},
		{"to itself", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.1")}, ruleset.Accept, "forward/1"},
		{"by its links", ruleset.Forward, ruleset.Packet{Source: addr("fd00::1"), Destination: addr("fd00::3"), InInterface: "pod1", OutInterface: "pod2"}, ruleset.Accept, "forward/2"},
		{"out by another link", ruleset.Forward, ruleset.Packet{Source: addr("fd00::1"), Destination: addr("fd00::1"), InInterface: "pod1", OutInterface: "pod3"}, ruleset.Drop, "forward/4 e-6/0"},
		{"in by another link", ruleset.Forward, ruleset.Packet{Source: addr("fd00::1"), Destination: addr("fd00::1"), InInterface: "pod3", OutInterface: "pod1"}, ruleset.Drop, "forward/4 e-6/0"},
		{"no local pod", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.8"), Destination: addr("10.0.0.9")}, ruleset.Accept, "forward/5 ingress/1"},
		{"isolated egress", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), Protocol: ruleset.TCP, Port: 80}, ruleset.Drop, "forward/3 e-1/0 p-1/2 e-1/1"},
		{"return", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), Protocol: ruleset.UDP, Port: 80}, ruleset.Drop, "forward/3 e-1/0 p-1/1 e-1/1"},
		{"egress allows, ingress allows", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: ruleset.TCP, Port: 80}, ruleset.Accept, "forward/3 e-1/0 p-1/0 ingress/0 i-1/0"},
		{"egress does not allow the port", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: ruleset.TCP, Port: 81}, ruleset.Drop, "forward/3 e-1/0 p-1/2 e-1/1"},
		{"ingress, port range", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.3"), Destination: addr("10.0.0.2"), Protocol: ruleset.TCP, Port: 8999}, ruleset.Accept, "forward/5 ingress/0 i-1/0"},
		{"ingress, behind the range", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.3"), Destination: addr("10.0.0.2"), Protocol: ruleset.TCP, Port: 9000}, ruleset.Drop, "forward/5 ingress/0 i-1/2"},
		{"ingress, other protocol", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.3"), Destination: addr("10.0.0.2"), Protocol: ruleset.UDP, Port: 80}, ruleset.Drop, "forward/5 ingress/0 i-1/2"},
		{"block, first", ruleset.Forward, ruleset.Packet{Source: addr("0.0.0.0"), Destination: addr("10.0.0.2"), Protocol: ruleset.SCTP, Port: 7}, ruleset.Accept, "forward/5 ingress/0 i-1/1"},
		{"block, last", ruleset.Forward, ruleset.Packet{Source: addr("255.255.255.255"), Destination: addr("10.0.0.2"), Protocol: ruleset.SCTP, Port: 7}, ruleset.Accept, "forward/5 ingress/0 i-1/1"},
		{"block, between", ruleset.Forward, ruleset.Packet{Source: addr("10.0.0.7"), Destination: addr("10.0.0.2"), Protocol: ruleset.SCTP, Port: 7}, ruleset.Drop, "forward/5 ingress/0 i-1/2"},
		{"block, one address", ruleset.Forward, ruleset.Packet{Source: addr("12.0.0.7"), Destination: addr("10.0.0.2"), Protocol: ruleset.SCTP, Port: 7}, ruleset.Accept, "forward/5 ingress/0 i-1/1"},
		{"IPv6", ruleset.Forward, ruleset.Packet{Source: addr("fd00::1"), Destination: addr("fd00::9"), Protocol: ruleset.TCP, Port: 7}, ruleset.Drop, "forward/4 e-6/0"},
		{"return at the end of goto", ruleset.Output, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "net1", Protocol: ruleset.UDP}, ruleset.Drop, "output/3 e-1/0 p-1/1 e-1/1"},
		{"loopback", ruleset.Output, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "lo"}, ruleset.Accept, "output/0"},
		{"neighbour discovery", ruleset.Output, ruleset.Packet{Source: addr("fd00::1"), Destination: addr("ff02::1"), OutInterface: "net1", NeighborDiscovery: true}, ruleset.Accept, "output/1"},
		{"of the namespace itself", ruleset.Output, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "net1", Protocol: ruleset.UDP, LocalSource: true}, ruleset.Accept, "output/2"},
		{"other interface", ruleset.Output, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), OutInterface: "net2"}, ruleset.Accept, ""},
		{"no base chain", ruleset.Input, ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.9"), InInterface: "net2"}, ruleset.Accept, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ruleset.Walk(rs, tc.hook, tc.packet)
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

func pathText(d ruleset.Decision) string {
	var all []string
	for _, s := range d.Path {
		all = append(all, s.Chain+"/"+string(rune('0'+s.Index)))
	}
	return strings.Join(all, " ")
}

// Return and ends of chains go where nftables says.
func TestWalkReturns(t *testing.T) {
	packet := ruleset.Packet{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2")}
	for name, tc := range map[string]struct {
		chains []*ruleset.Chain
		want   ruleset.Verdict
	}{
		"return in a base chain accepts": {[]*ruleset.Chain{rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Return}, ruleset.Rule{Verdict: ruleset.Drop})}, ruleset.Accept},
		"end of a jump":                  {[]*ruleset.Chain{rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Jump, Target: "x"}, ruleset.Rule{Verdict: ruleset.Drop}), rules("x", ruleset.NoHook)}, ruleset.Drop},
		"end of a goto":                  {[]*ruleset.Chain{rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Goto, Target: "x"}, ruleset.Rule{Verdict: ruleset.Drop}), rules("x", ruleset.NoHook)}, ruleset.Accept},
		"goto in a jump": {[]*ruleset.Chain{rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Jump, Target: "x"}, ruleset.Rule{Verdict: ruleset.Drop}),
			rules("x", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Goto, Target: "y"}, ruleset.Rule{Verdict: ruleset.Accept}), rules("y", ruleset.NoHook)}, ruleset.Drop},
		"jump in a goto": {[]*ruleset.Chain{rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Goto, Target: "x"}, ruleset.Rule{Verdict: ruleset.Drop}),
			rules("x", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "y"}, ruleset.Rule{Verdict: ruleset.Drop}), rules("y", ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Return}, ruleset.Rule{Verdict: ruleset.Accept})}, ruleset.Drop},
		"accept goes on to the next base chain": {[]*ruleset.Chain{rules("a", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Accept}), rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Drop})}, ruleset.Drop},
		"drop ends all":                         {[]*ruleset.Chain{rules("a", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Drop}), rules("b", ruleset.Forward, ruleset.Rule{Verdict: ruleset.Accept})}, ruleset.Drop},
	} {
		t.Run(name, func(t *testing.T) {
			rs := of(tc.chains...)
			if err := rulesettest.Check(rs); err != nil {
				t.Fatal(err)
			}
			if got := ruleset.Walk(rs, ruleset.Forward, packet); got.Verdict != tc.want {
				t.Errorf("verdict %v, want %v", got.Verdict, tc.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(rs *ruleset.Ruleset)
		want   string
	}{
		"dangling jump":         {func(rs *ruleset.Ruleset) { delete(rs.Chains, "p-1") }, `"p-1", which does not exist`},
		"dangling element":      {func(rs *ruleset.Ruleset) { delete(rs.Chains, "i-1") }, `"i-1", which does not exist`},
		"jump to a base chain":  {func(rs *ruleset.Ruleset) { rs.Chains["e-1"].Rules[0].Target = "output" }, `base chain "output"`},
		"missing set":           {func(rs *ruleset.Ruleset) { delete(rs.Sets, "peers") }, "set peers does not exist"},
		"missing map":           {func(rs *ruleset.Ruleset) { delete(rs.Maps, "egress4") }, "map egress4 does not exist"},
		"set of another kind":   {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Source = "self4" }, "set self4 is of kind"},
		"set of another family": {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Family = ruleset.IPv6 }, "set peers is of another family"},
		"rule without family":   {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Family = ruleset.AnyFamily }, "set peers is of another family"},
		"map of another family": {func(rs *ruleset.Ruleset) { rs.Chains["forward"].Rules[3].Family = ruleset.IPv6 }, "map egress4 is of another family"},
		"map with a verdict":    {func(rs *ruleset.Ruleset) { rs.Chains["forward"].Rules[3].Verdict = ruleset.Drop }, "other conditions or a verdict"},
		"map with ports":        {func(rs *ruleset.Ruleset) { rs.Chains["forward"].Rules[3].Ports = []ruleset.PortRange{{1, 1}} }, "other conditions or a verdict"},
		"long name": {func(rs *ruleset.Ruleset) {
			rs.Chains[strings.Repeat("x", 32)] = rules(strings.Repeat("x", 32), ruleset.NoHook)
		}, "has 32 bytes"},
		"bad name":            {func(rs *ruleset.Ruleset) { rs.Chains["1"] = rules("1", ruleset.NoHook) }, `"1" is not of`},
		"name unlike its key": {func(rs *ruleset.Ruleset) { rs.Chains["x"] = rules("y", ruleset.NoHook) }, `its name is "y"`},
		"set and map": {func(rs *ruleset.Ruleset) {
			rs.Sets["egress4"] = &ruleset.Set{Name: "egress4", Family: ruleset.IPv4, Kind: ruleset.Addresses}
		}, "a map has the same name"},
		"address of the other": {func(rs *ruleset.Ruleset) { rs.Sets["peers"].Family = ruleset.IPv6 }, "10.0.0.1 is of the other family"},
		"mapped address":       {func(rs *ruleset.Ruleset) { rs.Sets["everything6"].Ranges[0].First = addr("::ffff:1.2.3.4") }, "is no plain address"},
		"unsorted":             {func(rs *ruleset.Ruleset) { rs.Sets["peers"].Addresses[1] = addr("10.0.0.0") }, "10.0.0.1 stands before 10.0.0.0"},
		"repeated":             {func(rs *ruleset.Ruleset) { rs.Sets["peers"].Addresses[1] = addr("10.0.0.1") }, "10.0.0.1 stands before 10.0.0.1"},
		"ranges touch":         {func(rs *ruleset.Ruleset) { rs.Sets["blocks"].Ranges[1].First = addr("10.0.0.0") }, "apart from it"},
		"range after the last": {func(rs *ruleset.Ruleset) { rs.Sets["blocks"].Ranges[2].Last = addr("255.255.255.255") }, "apart from it"},
		"range ends too early": {func(rs *ruleset.Ruleset) {
			rs.Sets["blocks"].Ranges[0].Last, rs.Sets["blocks"].Ranges[0].First = addr("0.0.0.0"), addr("0.0.0.1")
		}, "ends before"},
		"kinds mixed":           {func(rs *ruleset.Ruleset) { rs.Sets["peers"].Interfaces = []string{"eth0"} }, "elements of kind"},
		"long interface":        {func(rs *ruleset.Ruleset) { rs.Sets["direct"].Interfaces[1] = strings.Repeat("x", 16) }, "interface's name"},
		"ports of no protocol":  {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Protocol = ruleset.AnyProtocol }, "ports of protocol 0"},
		"ports touch":           {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Ports[0].Last = 7999 }, "apart from them"},
		"ports the wrong way":   {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Ports[0].First = 81 }, "end before they begin"},
		"target without a jump": {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Target = "p-1" }, "with target p-1"},
		"loopback in forward":   {func(rs *ruleset.Ruleset) { rs.Chains["forward"].Rules[0].Loopback = true }, "loopback means nothing"},
		"no such link":          {func(rs *ruleset.Ruleset) { rs.Chains["output"].Rules[0].SourceIn = "own6" }, "no such interface"},
		"unsorted links":        {func(rs *ruleset.Ruleset) { rs.Sets["own6"].Links[0].Interface = "pod9" }, "stands before"},
		"no such interface":     {func(rs *ruleset.Ruleset) { rs.Chains["output"].Rules[0].InInterface = "direct" }, "no such interface"},
		"counter's name":        {func(rs *ruleset.Ruleset) { rs.Chains["i-1"].Rules[0].Counter = "a b" }, "counter's name"},
		"loop":                  {func(rs *ruleset.Ruleset) { rs.Maps["ingress4"].Chains[addr("10.0.0.2")] = "e-1" }, "leads back to itself"},
		"depth": {func(rs *ruleset.Ruleset) {
			for i := range 16 {
				name := "d" + string(rune('a'+i))
				rs.Chains[name] = rules(name, ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Jump, Target: "d" + string(rune('a'+i+1))})
			}
			rs.Chains["dq"] = rules("dq", ruleset.NoHook)
		}, "17 chains follow one another"},
	} {
		t.Run(name, func(t *testing.T) {
			rs := sample()
			tc.change(rs)
			if err := rulesettest.Check(rs); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// A pod calls itself by pairs, and between addresses that have a link in common.
func TestIsSelf(t *testing.T) {
	rs := sample()
	rs.Sets["own6"].Links = append(rs.Sets["own6"].Links, ruleset.Link{Address: addr("fd00::3"), Interface: "pod2"})
	for _, tc := range []struct {
		from, to string
		want     bool
	}{
		{"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false}, {"fd00::1", "fd00::1", true}, {"fd00::1", "fd00::3", true},
		{"fd00::1", "fd00::2", false}, {"fd00::4", "fd00::4", false},
	} {
		if is := rs.IsSelf(addr(tc.from), addr(tc.to)); is != tc.want {
			t.Errorf("IsSelf(%s, %s) = %t", tc.from, tc.to, is)
		}
	}
}

func TestText(t *testing.T) {
	got := rulesettest.Text(sample())
	for _, want := range []string{
		"\t\ttype filter hook forward priority filter; policy accept;\n",
		"\t\tct state established,related accept\n",
		"\t\tip saddr . ip daddr @self4 accept\n",
		"\t\tip6 saddr . oifname @own6 ip6 saddr . iifname @own6 accept\n",
		"\t\telements = { fd00::1 . \"pod1\",\n",
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
	if diff := cmp.Diff(got, rulesettest.Text(sample())); diff != "" {
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
	command.Stdin = strings.NewReader(rulesettest.Text(sample()))
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, out, rulesettest.Text(sample()))
	}
}
