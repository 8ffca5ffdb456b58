// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/iptables/iptablestest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// However a cluster came about, its nodes' rulesets pass the packets that the oracle allows, for
// the oracle's reason, and equal the rulesets of an Index that was told everything at once.
func TestDifferential(t *testing.T) {
	base, clusters := seedtest.Seed(t), seedtest.Draws(t, 50, 150)
	var seen statistics
	for i := range clusters {
		differential(t, base+i, &seen)
		if t.Failed() {
			t.Fatalf("BERTH_TEST_SEED=%d repeats this cluster first", base+i)
		}
	}
	t.Logf("%d clusters, %+v", clusters, seen)
	seen.check(t)
}

// statistics show whether the random clusters are worth comparing.
type statistics struct {
	Comparisons, Rulesets                        int
	Denied, ByCluster, ByNetwork, ByNone, Passed int
	// Steps changed a ruleset of a node; Additive ones were said to accept all that was accepted
	// before.
	Steps, Additive int
}

func (s *statistics) add(v Verdict) {
	s.Comparisons++
	if !v.Allowed {
		s.Denied++
	}
	switch v.Kind {
	case policy.KindClusterNetworkPolicy:
		s.ByCluster++
	case policy.KindNetworkPolicy:
		s.ByNetwork++
		if v.Allowed {
			s.Passed++
		}
	default:
		s.ByNone++
	}
}

// check fails where one of the kinds of decisions is rare.
func (s *statistics) check(t *testing.T) {
	for what, n := range map[string]int{"denied": s.Denied, "decided by a ClusterNetworkPolicy": s.ByCluster, "decided by a NetworkPolicy": s.ByNetwork, "decided by nothing": s.ByNone, "allowed by a NetworkPolicy": s.Passed} {
		if n < s.Comparisons/50 {
			t.Errorf("%d of %d comparisons were %s", n, s.Comparisons, what)
		}
	}
	if s.Additive < s.Steps/20 || s.Additive > s.Steps*19/20 {
		t.Errorf("%d of %d changes of a ruleset were additive", s.Additive, s.Steps)
	}
}

func differential(t *testing.T, seed uint64, seen *statistics) {
	random := Seeded(seed)
	c := NewCluster(random)
	for range 4 {
		for range 1 + random.IntN(40) {
			c.Change()
		}
		compareSteps(t, c, seen)
		for i, n := range c.Nodes {
			n.Catch()
			compareRulesets(t, n, seen)
			compareNode(t, n, seen)
			compareInput(t, n, seen)
			comparePods(t, n, seen)
			compareSelections(t, n)
			if t.Failed() {
				t.Errorf("node %d:\n%s\n%s", i, strings.Join(c.History, "\n"), c)
				return
			}
		}
	}
}

// compareSteps changes something and compares the node's rulesets before and after: the one before
// did not change, and the one after has the same pointers where it has the same content.
func compareSteps(t *testing.T, c *Cluster, seen *statistics) {
	before := map[*Node]*ruleset.Ruleset{}
	texts := map[*Node]string{}
	for _, n := range c.Nodes {
		n.Catch()
		before[n] = n.Index.Node()
		texts[n] = rulesettest.Text(before[n])
	}
	c.ChangeUnseen()
	for _, n := range c.Nodes {
		n.Catch()
		was, is := before[n], n.Index.Node()
		if diff := cmp.Diff(texts[n], rulesettest.Text(was)); diff != "" {
			t.Errorf("a ruleset changed after it was made:\n%s", diff)
		}
		if was != is && texts[n] == rulesettest.Text(is) {
			t.Error("nothing changed, and there is another ruleset")
		}
		samePointers(t, "set", was.Sets, is.Sets)
		samePointers(t, "map", was.Maps, is.Maps)
		samePointers(t, "chain", was.Chains, is.Chains)
		if was != is {
			seen.Steps++
			compareAdditive(t, n, was, is, seen)
		}
	}
}

// compareAdditive tries packets on a change that is said to accept all that was accepted before.
func compareAdditive(t *testing.T, n *Node, was, is *ruleset.Ruleset, seen *statistics) {
	if !ruleset.Additive(was, is) {
		return
	}
	seen.Additive++
	for _, hook := range []ruleset.Hook{ruleset.Forward, ruleset.Output} {
		before, after := ruleset.NewWalker(was, hook), ruleset.NewWalker(is, hook)
		for _, c := range withSelf(n, connections(n, 60)) {
			packet := packetOf(c)
			if d := after.Walk(packet); d.Verdict == ruleset.Drop && before.Walk(packet).Verdict == ruleset.Accept {
				t.Errorf("an additive change has %s dropped\n%s\n%s", c, path(was, before.Walk(packet)), path(is, d))
			}
		}
	}
}

func samePointers[T any](t *testing.T, what string, before, after map[string]*T) {
	for name, is := range after {
		if was := before[name]; was != nil && was != is && reflect.DeepEqual(was, is) {
			t.Errorf("%s %s is another one with the same content", what, name)
		}
	}
}

// compareRulesets compares the Index with one that is built anew.
func compareRulesets(t *testing.T, n *Node, seen *statistics) {
	fresh := n.Fresh()
	compare := func(what string, got, want *ruleset.Ruleset) {
		seen.Rulesets++
		if err := rulesettest.Check(got); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(strings.Split(rulesettest.Text(want), "\n"), strings.Split(rulesettest.Text(got), "\n")); diff != "" {
			t.Errorf("%s: - as built anew, + as it became:\n%s", what, diff)
		}
	}
	compare("node", n.Index.Node(), fresh.Node())
	for _, l := range n.Locals {
		compare("pod "+string(l.UID), n.Index.Pod(l.UID), fresh.Pod(l.UID))
	}
}

// toNamedPort has a connection lead to a named port of a pod, if there is one in the family.
func (n *Node) toNamedPort(c *Connection) {
	r := n.cluster.random
	name, ok := fromMap(r, n.cluster.pods, types.NamespacedName.String)
	if !ok {
		return
	}
	pod := n.cluster.pods[name]
	if len(pod.Addresses) == 0 || len(pod.Ports) == 0 {
		return
	}
	a, port := one(r, pod.Addresses...), one(r, pod.Ports...)
	if a.Is4() == c.Source.Is4() {
		c.Destination, c.Protocol, c.Port = a, numberOf(port.Protocol), port.Port
	}
}

// connections draws connections, mostly to and from pods of the node.
func connections(n *Node, count int) []Connection {
	r := n.cluster.random
	var all []Connection
	for range count {
		c := r.Connection()
		if len(n.Locals) > 0 && r.often(80) {
			subject := n.Subject(one(r, n.Locals...))
			if len(subject.Addresses) > 0 {
				a := one(r, subject.Addresses...)
				if r.often(50) {
					c.Destination = a
				} else {
					c.Source = a
				}
			}
		}
		if r.often(30) {
			n.toNamedPort(&c)
		}
		if c.Source.Is4() != c.Destination.Is4() {
			continue
		}
		all = append(all, c)
	}
	return all
}

// compareNode compares the packets that the node forwards.
func compareNode(t *testing.T, n *Node, seen *statistics) {
	world := n.World()
	walker, sent := ruleset.NewWalker(n.Index.Node(), ruleset.Forward), ruleset.NewWalker(n.Index.Node(), ruleset.Output)
	written := writtenOf(t, n.Index.Node())
	for _, c := range withSelf(n, connections(n, 60)) {
		if slices.Contains(n.Addresses, c.Source) || slices.Contains(n.Addresses, c.Destination) {
			// The node does not forward these.
			continue
		}
		out, in := Verdict{Allowed: true}, Verdict{Allowed: true}
		source, destination := n.Owner(c.Source), n.Owner(c.Destination)
		packet := packetOf(c)
		// A pod calls itself by its own link, and others send from its address by other ones.
		itself, ways := n.CallsItself(source, c), []string{"uplink", "veth-no-pod's"}
		for _, l := range []*Local{source, destination} {
			if l != nil {
				ways = append(ways, l.Ways...)
			}
		}
		packet.InInterface, packet.OutInterface = one(n.cluster.random, ways...), "uplink"
		if destination != nil && len(destination.Ways) > 0 {
			packet.OutInterface = destination.Ways[0]
		}
		world.Outside = !itself || !slices.Contains(source.Ways, packet.InInterface)
		if source != nil {
			out = world.Egress(n.Subject(source), c)
			seen.add(out)
		}
		if destination != nil {
			in = world.Ingress(n.Subject(destination), c)
			seen.add(in)
		}
		d := walker.Walk(packet)
		written.compare(t, ruleset.Forward, packet, d)
		if source != nil && source.Unknown || destination != nil && destination.Unknown {
			// Policies may select it or not. A packet that passes now must pass then.
			if d.Verdict == ruleset.Accept && !(out.Allowed && in.Allowed) {
				t.Errorf("%s: %v; the oracle: from %s %+v, to %s %+v\n%s", c, d.Verdict, name(source), out, name(destination), in, path(n.Index.Node(), d))
			}
		} else if want := out.Allowed && in.Allowed; (d.Verdict == ruleset.Accept) != want {
			t.Errorf("%s: %v; the oracle: from %s %+v, to %s %+v\n%s", c, d.Verdict, name(source), out, name(destination), in, path(n.Index.Node(), d))
		} else if why := reasons(d, out, in); why != "" {
			t.Errorf("%s: %v, as the oracle says, but %s; the oracle: from %s %+v, to %s %+v\n%s", c, d.Verdict, why, name(source), out, name(destination), in, path(n.Index.Node(), d))
		}
		packet.InInterface = ""
		if s := sent.Walk(packet); itself && s.Verdict != ruleset.Accept {
			t.Errorf("%s: %v where the node sends it for the pod to itself\n%s", c, s.Verdict, path(n.Index.Node(), s))
		} else if itself {
			// Of a packet that the node sends nobody knows by which link it came.
		} else if s.Verdict != d.Verdict || s.Rule != nil && d.Rule != nil && s.Rule.Origin != d.Rule.Origin {
			t.Errorf("%s: %v where the node forwards it, and %v where it sends it for another\n%s", c, d.Verdict, s.Verdict, path(n.Index.Node(), s))
		}
		written.compare(t, ruleset.Output, packet, sent.Walk(packet))
		packet.LocalSource = true
		written.compare(t, ruleset.Output, packet, sent.Walk(packet))
		if s := sent.Walk(packet); s.Verdict != ruleset.Accept {
			t.Errorf("%s: %v where the node sends it itself\n%s", c, s.Verdict, path(n.Index.Node(), s))
		}
		packet.LocalSource, packet.Established = false, true
		if d := walker.Walk(packet); d.Verdict != ruleset.Accept || len(d.Path) != len(packetBases(n.Index.Node(), ruleset.Forward)) {
			t.Errorf("%s, established: %v\n%s", c, d.Verdict, path(n.Index.Node(), d))
		}
	}
}

// compareInput compares the packets that come to the node for itself.
func compareInput(t *testing.T, n *Node, seen *statistics) {
	r, world, rs := n.cluster.random, n.World(), n.Index.Node()
	written := writtenOf(t, rs)
	services := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("224.0.0.251")}
	linkLocal := []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("127.0.0.1")}
	for _, c := range connections(n, 40) {
		c.Destination = one(r, slices.Concat(n.Addresses, nodeDNS, services, linkLocal)...)
		if r.often(30) && c.Port != 0 {
			c.Port = 53
		}
		source := n.Owner(c.Source)
		if c.Source.Is4() != c.Destination.Is4() || slices.Contains(n.Addresses, c.Source) {
			continue
		}
		want := Verdict{Allowed: true}
		// kube-proxy in mode ipvs sends packets to Services on, and they are judged then.
		if source != nil && !slices.Contains(services, c.Destination) {
			want = world.Egress(n.Subject(source), c)
			seen.add(want)
		}
		packet := packetOf(c)
		packet.InInterface = "veth1"
		d := ruleset.Walk(rs, ruleset.Input, packet)
		written.compare(t, ruleset.Input, packet, d)
		if source != nil && source.Unknown && d.Verdict == ruleset.Drop {
			continue
		}
		if (d.Verdict == ruleset.Accept) != want.Allowed {
			t.Errorf("%s to the node: %v; the oracle: from %s %+v\n%s", c, d.Verdict, name(source), want, path(rs, d))
		} else if why := reasons(d, want, Verdict{Allowed: true}); why != "" && (source == nil || !source.Unknown) {
			t.Errorf("%s to the node: %v, as the oracle says, but %s; the oracle: %+v\n%s", c, d.Verdict, why, want, path(rs, d))
		}
		packet.Established = true
		if d := ruleset.Walk(rs, ruleset.Input, packet); d.Verdict != ruleset.Accept {
			t.Errorf("%s to the node, established: %v\n%s", c, d.Verdict, path(rs, d))
		}
	}
}

// written is the text of a ruleset for ipset and iptables.
type written struct{ *iptablestest.Kernel }

func writtenOf(t *testing.T, rs *ruleset.Ruleset) written {
	t.Helper()
	k, err := iptablestest.Of(rs)
	if err != nil {
		t.Fatal(err)
	}
	return written{k}
}

// compare fails the test where the text decides otherwise than the ruleset.
func (w written) compare(t *testing.T, hook ruleset.Hook, packet ruleset.Packet, d ruleset.Decision) {
	t.Helper()
	if verdict, err := w.Walk(hook, packet); err != nil || verdict != d.Verdict {
		t.Errorf("%+v, hook %v: the text for iptables: %v, %v; the ruleset: %v", packet, hook, verdict, err, d.Verdict)
	}
}

// packetBases lists the base chains of a hook.
func packetBases(rs *ruleset.Ruleset, hook ruleset.Hook) []string {
	var all []string
	for name, c := range rs.Chains {
		if c.Hook == hook {
			all = append(all, name)
		}
	}
	return all
}

// withSelf has some connections lead from a pod to the pod.
func withSelf(n *Node, all []Connection) []Connection {
	r := n.cluster.random
	for i := range all {
		l := n.Owner(all[i].Source)
		if l == nil || !r.often(10) {
			continue
		}
		if to := one(r, n.Subject(l).Addresses...); to.Is4() == all[i].Source.Is4() {
			all[i].Destination = to
		}
	}
	return all
}

// withNode gives some connections an address of the node at one end.
func withNode(n *Node, all []Connection) []Connection {
	r := n.cluster.random
	for i := range all {
		c := &all[i]
		for _, a := range n.Addresses {
			switch {
			case a.Is4() != c.Source.Is4() || !r.often(20):
			case r.often(50):
				c.Source = a
			default:
				c.Destination = a
			}
		}
	}
	return all
}

// comparePods compares the packets on interfaces of pods that do not lead to the node.
func comparePods(t *testing.T, n *Node, seen *statistics) {
	world := n.World()
	for _, l := range n.Locals {
		rs, subject := n.Index.Pod(l.UID), n.Subject(l)
		written := writtenOf(t, rs)
		for _, c := range withNode(n, connections(n, 20)) {
			for _, link := range []string{"net1", "eth0", "bthv1", ruleset.Loopback} {
				direct := slices.Contains(l.Direct, link)
				for _, hook := range []ruleset.Hook{ruleset.Input, ruleset.Output} {
					if peer := map[ruleset.Hook]netip.Addr{ruleset.Input: c.Source, ruleset.Output: c.Destination}[hook]; slices.Contains(subject.Addresses, peer) {
						// A pod's packets to itself go by lo.
						continue
					}
					want := Verdict{Allowed: true}
					packet := packetOf(c)
					if hook == ruleset.Input {
						packet.InInterface = link
						if direct {
							want = n.IngressByWire(l, c)
						}
					} else {
						packet.OutInterface = link
						if direct {
							want = world.Egress(subject, c)
						}
					}
					if direct {
						seen.add(want)
					}
					d := ruleset.Walk(rs, hook, packet)
					written.compare(t, hook, packet, d)
					out, in := want, Verdict{Allowed: true}
					if hook == ruleset.Input {
						out, in = in, out
					}
					if l.Unknown && d.Verdict == ruleset.Drop && direct {
						continue
					}
					if (d.Verdict == ruleset.Accept) != want.Allowed {
						t.Errorf("%s at %s, hook %s, %s: %v; the oracle: %+v\n%s", c, name(l), hook, link, d.Verdict, want, path(rs, d))
					} else if why := reasons(d, out, in); why != "" && !l.Unknown {
						t.Errorf("%s at %s, hook %s, %s: %v, as the oracle says, but %s; the oracle: %+v\n%s", c, name(l), hook, link, d.Verdict, why, want, path(rs, d))
					}
					packet.Established = true
					if d := ruleset.Walk(rs, hook, packet); d.Verdict != ruleset.Accept {
						t.Errorf("%s at %s, hook %s, %s, established: %v\n%s", c, name(l), hook, link, d.Verdict, path(rs, d))
					}
				}
			}
		}
	}
}

// compareSelections compares which policies have a say about pods.
func compareSelections(t *testing.T, n *Node) {
	world := n.World()
	for _, l := range n.Locals {
		for _, d := range []ruleset.Direction{ruleset.Ingress, ruleset.Egress} {
			var got []string
			for _, o := range n.Index.Selecting(l.UID)[d] {
				got = append(got, fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name))
			}
			slices.Sort(got)
			var want []string
			if !l.Unknown {
				want = world.Selecting(l.Pod, d == ruleset.Egress)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s of %s: selected by %v; the oracle: %v", d, name(l), got, want)
			}
		}
	}
}

func packetOf(c Connection) ruleset.Packet {
	return ruleset.Packet{Source: c.Source, Destination: c.Destination, Protocol: c.Protocol, Port: c.Port}
}

func name(l *Local) string {
	if l == nil {
		return "none"
	}
	return l.NamespacedName.String() + " " + string(l.UID)
}

// path is the rules that a packet met.
func path(rs *ruleset.Ruleset, d ruleset.Decision) string {
	var b strings.Builder
	for _, s := range d.Path {
		fmt.Fprintf(&b, "%s %d: %s -> %s\n", s.Chain, s.Index, ruleset.RuleText(rs.Chains[s.Chain], s.Rule), s.Next)
	}
	for _, s := range d.Path {
		if chain := rs.Chains[s.Next]; chain != nil {
			fmt.Fprintf(&b, "chain %s\n", s.Next)
			for i := range chain.Rules {
				fmt.Fprintf(&b, "\t%s\n", ruleset.RuleText(chain, &chain.Rules[i]))
			}
		}
	}
	return b.String()
}

// reasons returns the differences between the origins of the deciding rules and the oracle's
// reasons.
func reasons(d ruleset.Decision, out, in Verdict) string {
	deciding := map[ruleset.Direction]*ruleset.Origin{}
	for _, s := range d.Path {
		if o := s.Rule.Origin; o != nil && (s.Rule.Verdict == ruleset.Accept || s.Rule.Verdict == ruleset.Drop) {
			deciding[o.Direction] = o
		}
	}
	for direction, v := range map[ruleset.Direction]Verdict{ruleset.Egress: out, ruleset.Ingress: in} {
		o := deciding[direction]
		if direction == ruleset.Ingress && !out.Allowed {
			// It did not come so far.
			continue
		}
		switch {
		case v.Kind == "" && o == nil:
		case v.Kind == "":
			return fmt.Sprintf("%s decided: %s", direction, o)
		case o == nil:
			return fmt.Sprintf("no rule decided %s", direction)
		case !v.Allowed && v.Kind == policy.KindNetworkPolicy:
			if o.Kind != "" {
				return fmt.Sprintf("%s decided: %s", direction, o)
			}
		case o.Kind != v.Kind || !slices.Contains(v.Policies, fmt.Sprintf("%s/%s %d", o.Namespace, o.Name, o.Rule)):
			return fmt.Sprintf("%s decided: %s", direction, o)
		}
	}
	return ""
}
