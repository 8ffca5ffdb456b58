// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/xtables"
)

// Try returns an error if programs of a variant are missing, or if the kernel refuses rules that
// policies need: some kernels lack parts of ipset and iptables. It makes such rules in a temporary
// network namespace, and blocks for programs.
func Try(ctx context.Context, variant xtables.Variant) error {
	if err := Check(variant); err != nil {
		return err
	}
	tried := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the namespace with the thread.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			tried <- fmt.Errorf("make a network namespace to try iptables in: %w", err)
			return
		}
		tried <- New("", variant).Apply(ctx, sample())
	}()
	if err := <-tried; err != nil {
		return fmt.Errorf("try ipset and iptables: %w", err)
	}
	return nil
}

// sample is a ruleset with every condition except ports of SCTP, which few policies name.
func sample() *ruleset.Ruleset {
	rs := &ruleset.Ruleset{Sets: map[string]*ruleset.Set{}, Maps: map[string]*ruleset.Map{}, Chains: map[string]*ruleset.Chain{}}
	conditions := &ruleset.Chain{Name: "conditions", Rules: []ruleset.Rule{
		{Protocol: ruleset.TCP, Ports: []ruleset.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8999}}, Verdict: ruleset.Accept},
		{Protocol: ruleset.UDP, Ports: []ruleset.PortRange{{First: 53, Last: 53}}, Counter: "counter", Verdict: ruleset.Accept},
		{Verdict: ruleset.Drop},
	}}
	base := []ruleset.Rule{{Established: true, Verdict: ruleset.Accept},
		{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept}, {Family: ruleset.IPv6, MulticastListener: true, Verdict: ruleset.Accept}}
	for i, a := range []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.MustParseAddr("2001:db8::1")} {
		f, suffix := ruleset.Families[i], string('4'+rune(2*i))
		for _, s := range []*ruleset.Set{
			{Name: "ranges" + suffix, Kind: ruleset.Ranges, Ranges: []ruleset.AddressRange{{First: a, Last: a.Next()}}},
			{Name: "endpoints" + suffix, Kind: ruleset.Endpoints, Endpoints: []ruleset.Endpoint{{Address: a, Protocol: ruleset.TCP, Port: 80}}},
			{Name: "own" + suffix, Kind: ruleset.Links, Links: []ruleset.Link{{Address: a, Interface: "eth0"}}},
			{Name: "pairs" + suffix, Kind: ruleset.Pairs, Pairs: []ruleset.Pair{{Source: a, Destination: a}}},
		} {
			s.Family = f
			rs.Sets[s.Name] = s
		}
		rs.Maps["pods"+suffix] = &ruleset.Map{Name: "pods" + suffix, Family: f, Chains: map[netip.Addr]string{a: conditions.Name}}
		base = append(base, ruleset.Rule{Family: f, Source: "ranges" + suffix, Endpoint: "endpoints" + suffix, Verdict: ruleset.Drop},
			ruleset.Rule{Family: f, SourceIn: "own" + suffix, SourceOut: "own" + suffix, Verdict: ruleset.Accept},
			ruleset.Rule{Family: f, InInterface: "links", Pair: "pairs" + suffix, Verdict: ruleset.Accept}, ruleset.Rule{Family: f, DestinationMap: "pods" + suffix})
	}
	rs.Sets["links"] = &ruleset.Set{Name: "links", Kind: ruleset.Interfaces, Interfaces: []string{"eth0"}}
	rs.Chains[conditions.Name] = conditions
	rs.Chains["output"] = &ruleset.Chain{Name: "output", Hook: ruleset.Output, Rules: []ruleset.Rule{{LocalSource: true, Verdict: ruleset.Accept}}}
	rs.Chains["base"] = &ruleset.Chain{Name: "base", Hook: ruleset.Forward, Rules: base}
	return rs
}
