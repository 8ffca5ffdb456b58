// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Names of chains and sets that always exist.
const (
	chainEgress  = "egress"
	chainIngress = "ingress"
	// The chains of the hook output decide about packets that the node sends for others.
	chainEgressOutput  = "egress-output"
	chainIngressOutput = "ingress-output"
	// The chain of the hook input decides about packets of pods to their own node. egressNode has the
	// rules for addresses of the node.
	chainEgressInput = "egress-input"
	chainEgressNode  = "egress-node"
	chainInput       = "input"
	chainOutput      = "output"
	setDirect        = "direct"
	setWays          = "ways"
	setNodeDNS       = "dns"  // with 4 or 6 behind it
	setLink          = "link" // with 4 or 6 behind it
	setGroups        = "groups6"
)

var empty = &ruleset.Ruleset{}

// Node returns the ruleset of the node. It has no chains if no policy selects a pod of the node.
func (x *Index) Node() *ruleset.Ruleset {
	x.settle()
	if x.onNode == nil {
		x.node = empty
	} else {
		x.node = x.onNode.current(x.node)
	}
	return x.node
}

// Pod returns the ruleset of the network namespace of a pod of this node, for its direct
// interfaces. It has no chains if the pod has no direct interfaces, or if no policy selects the
// pod. It is nil if the pod is not on this node.
func (x *Index) Pod(uid types.UID) *ruleset.Ruleset {
	x.settle()
	l := x.locals[uid]
	if l == nil {
		return nil
	}
	if len(l.Direct) == 0 {
		l.ruleset = empty
		return empty
	}
	l.ruleset = x.pod(l).current(l.ruleset)
	return l.ruleset
}

func (x *Index) pod(l *local) *contents {
	r := newContents()
	output := []ruleset.Rule{
		{Established: true, Verdict: ruleset.Accept},
		{Loopback: true, Verdict: ruleset.Accept},
		{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept},
		multicastListeners(),
	}
	input := slices.Clone(output)
	for _, node := range x.nodeAddress {
		if l.isProbedByWire(node.Family) {
			input = append(input, ruleset.Rule{Family: node.Family, Source: node.Name, Verdict: ruleset.Accept})
		}
	}
	for _, family := range ruleset.Families {
		if e := x.combination(l, ruleset.Egress, family); e != nil {
			output = append(output, ruleset.Rule{Family: family, OutInterface: setDirect, Verdict: ruleset.Goto, Target: e.Name})
			r.add(e)
		}
		if i := x.combination(l, ruleset.Ingress, family); i != nil {
			input = append(input, ruleset.Rule{Family: family, InInterface: setDirect, Verdict: ruleset.Goto, Target: i.Name})
			r.add(i)
		}
	}
	if len(r.Chains) == 0 {
		return r
	}
	r.addSets(linkSets, x.nodeDNS[:], x.nodeAddress[:])
	r.Sets[setDirect] = &ruleset.Set{Name: setDirect, Kind: ruleset.Interfaces, Interfaces: l.Direct}
	r.Chains[chainOutput] = &ruleset.Chain{Name: chainOutput, Hook: ruleset.Output, Rules: output}
	r.Chains[chainInput] = &ruleset.Chain{Name: chainInput, Hook: ruleset.Input, Rules: input}
	if last := l.ruleset; last != nil {
		keep(r.Sets, last.Sets, equal)
		keep(r.Chains, last.Chains, equal)
	}
	return r
}

// isProbedByWire reports whether the node's own packets to an address of the pod come by a direct
// interface, such as the kubelet's probes of the addresses in the pod's status. There only the
// source identifies them, and any host may forge it. So the exception is only for pods that need
// it, and not for further interfaces of a pod that the node reaches in another way.
func (l *local) isProbedByWire(family ruleset.Family) bool {
	probed := l.Addresses
	if l.pod != nil && len(l.pod.Addresses) > 0 {
		probed = l.pod.Addresses
	}
	return slices.ContainsFunc(l.ByWire, func(a netip.Addr) bool { return ruleset.FamilyOf(a) == family && slices.Contains(probed, a) })
}

func (x *Index) settle() {
	if x.stale {
		x.reshape()
		x.stale = false
	}
	x.fill()
}

// reshape makes the chains of all pods anew, and from them the maps and sets of the node. It drops
// the chains and sets that no pod needs any more.
func (x *Index) reshape() {
	x.combinations = map[combinationKey][]combination{}
	inPods, onNode := newContents(), newContents()
	for _, l := range x.locals {
		if l.stale {
			x.choose(l)
			l.stale = false
		}
		if len(l.Direct) == 0 {
			continue
		}
		for _, family := range ruleset.Families {
			for _, d := range ruleset.Directions {
				inPods.add(x.combination(l, d, family))
			}
		}
	}
	own := x.dispatch(onNode)
	x.sweep(inPods, onNode)
	if len(onNode.Chains) == 0 {
		x.onNode = nil
		return
	}
	base := baseChains(own)
	if last := x.onNode; last != nil {
		keep(onNode.Maps, last.Maps, equalMaps)
		keep(own, last.Sets, equalOwn)
		keep(base, last.Chains, equal)
	}
	maps.Copy(onNode.Sets, own)
	maps.Copy(onNode.Chains, base)
	onNode.addSets(linkSets, x.nodeAddress[:], x.nodeDNS[:])
	x.onNode = onNode
}

// dispatch adds the maps from the addresses of pods to their chains, and these chains. It returns
// the sets for pods that call themselves.
func (x *Index) dispatch(r *contents) (own map[string]*ruleset.Set) {
	for _, family := range ruleset.Families {
		for _, d := range ruleset.Directions {
			name := mapName(d, family)
			r.Maps[name] = &ruleset.Map{Name: name, Family: family, Chains: map[netip.Addr]string{}}
		}
	}
	holders := x.holders()
	governed := map[netip.Addr]*local{}
	for a, l := range holders {
		family := ruleset.FamilyOf(a)
		for _, d := range ruleset.Directions {
			if e := x.combination(l, d, family); e != nil {
				r.Maps[mapName(d, family)].Chains[a] = e.Name
				r.add(e)
				governed[a] = l
			}
		}
	}
	return ownSets(holders, governed)
}

// mapName is the name of the map of a direction: egress4.
func mapName(d ruleset.Direction, family ruleset.Family) string {
	return family.Name(strings.ToLower(string(d)))
}

// ownSets returns the non-empty sets for governed pods that call themselves. A packet that comes
// and leaves by a link of a single pod is from the pod to itself; a new such link changes only the
// set, and no rule. On a link that pods share, both addresses must be checked.
func ownSets(holders, governed map[netip.Addr]*local) map[string]*ruleset.Set {
	all := map[string]*ruleset.Set{}
	set := func(name string, family ruleset.Family, kind ruleset.Kind) *ruleset.Set {
		if all[name] == nil {
			all[name] = &ruleset.Set{Name: name, Family: family, Kind: kind}
		}
		return all[name]
	}
	for a, l := range governed {
		family := ruleset.FamilyOf(a)
		if !l.Shared {
			for _, way := range l.Ways {
				own := set(family.Name(ruleset.Own), family, ruleset.Links)
				own.Links = append(own.Links, ruleset.Link{Address: a, Interface: way})
			}
			continue
		}
		for _, other := range l.served(a) {
			if ruleset.FamilyOf(other) == family && holders[other] == l {
				pairs := set(family.Name(ruleset.SelfPairs), family, ruleset.Pairs)
				pairs.Pairs = append(pairs.Pairs, ruleset.Pair{Source: a, Destination: other})
				ways := set(setWays, ruleset.AnyFamily, ruleset.Interfaces)
				ways.Interfaces = append(ways.Interfaces, l.Ways...)
			}
		}
	}
	for _, s := range all {
		slices.SortFunc(s.Links, ruleset.Link.Compare)
		slices.SortFunc(s.Pairs, ruleset.Pair.Compare)
		slices.Sort(s.Interfaces)
		// A seen address of a pod may also be in its record.
		s.Links, s.Pairs, s.Interfaces = slices.Compact(s.Links), slices.Compact(s.Pairs), slices.Compact(s.Interfaces)
	}
	return all
}

// served returns the addresses at which a pod reaches itself when it calls a Service from an
// address of its own: endpoints have the addresses of the pod's status, one of each family. Pairs
// of all its addresses would be too many.
func (l *local) served(from netip.Addr) []netip.Addr {
	if l.pod == nil {
		return []netip.Addr{from}
	}
	return append(slices.Clone(l.pod.Addresses), from)
}

// holders returns the pod to which the packets of each address belong: a pod with the address in
// its record, else in the cluster, else on an interface. Of several such pods the newest counts.
func (x *Index) holders() map[netip.Addr]*local {
	all := map[netip.Addr]*local{}
	for _, addresses := range []func(*local) []netip.Addr{
		func(l *local) []netip.Addr { return l.Addresses },
		func(l *local) []netip.Addr {
			if l.pod == nil {
				return nil
			}
			return l.pod.Addresses
		},
		func(l *local) []netip.Addr { return l.Seen },
	} {
		newest := map[netip.Addr]*local{}
		for _, l := range x.locals {
			for _, a := range addresses(l) {
				if other := newest[a]; all[a] == nil && (other == nil || other.arrival < l.arrival) {
					newest[a] = l
				}
			}
		}
		maps.Copy(all, newest)
	}
	return all
}

// baseChains returns the base chains of the node. own are the sets for pods that call themselves. A
// packet passes both base chains of a hook in this order, also after the first one accepts it.
func baseChains(own map[string]*ruleset.Set) map[string]*ruleset.Chain {
	base := func(name string, hook ruleset.Hook, source, destination [2]string, before ...ruleset.Rule) *ruleset.Chain {
		rules := slices.Concat([]ruleset.Rule{{Established: true, Verdict: ruleset.Accept}}, before, []ruleset.Rule{
			// Pods on a bridge send neighbour discovery to each other; the node sees it like forwarded
			// packets.
			{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept},
			multicastListeners(),
		}, toItself(own, hook))
		for n, family := range ruleset.Families {
			rules = append(rules, ruleset.Rule{Family: family, SourceMap: source[n], DestinationMap: destination[n]})
		}
		return &ruleset.Chain{Name: name, Hook: hook, Rules: rules}
	}
	egress, ingress, none := [2]string{"egress4", "egress6"}, [2]string{"ingress4", "ingress6"}, [2]string{}
	// With kube-proxy in mode ipvs, a packet to a Service comes to the node as to an address of the
	// node. It leaves through the hook output to the chosen pod, with the source of its sender.
	ofNode := ruleset.Rule{LocalSource: true, Verdict: ruleset.Accept}
	return map[string]*ruleset.Chain{
		chainEgressInput:   toNode,
		chainEgressNode:    atNode,
		chainEgress:        base(chainEgress, ruleset.Forward, egress, none),
		chainIngress:       base(chainIngress, ruleset.Forward, none, ingress),
		chainEgressOutput:  base(chainEgressOutput, ruleset.Output, egress, none, ofNode),
		chainIngressOutput: base(chainIngressOutput, ruleset.Output, none, ingress, ofNode),
	}
}

// toNode and atNode are the chains for packets of pods to their own node, except packets to
// Services that kube-proxy in mode ipvs sends on.
var toNode, atNode = func() (to, at *ruleset.Chain) {
	to = &ruleset.Chain{Name: chainEgressInput, Hook: ruleset.Input, Rules: []ruleset.Rule{
		{Established: true, Verdict: ruleset.Accept},
		{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept},
	}}
	at = &ruleset.Chain{Name: chainEgressNode}
	for _, family := range ruleset.Families {
		for _, set := range []string{ruleset.NodeAddresses, setLink} {
			to.Rules = append(to.Rules, ruleset.Rule{Family: family, Destination: family.Name(set), Verdict: ruleset.Goto, Target: chainEgressNode})
		}
		at.Rules = append(at.Rules, ruleset.Rule{Family: family, SourceMap: family.Name("egress")})
	}
	return to, at
}()

// toItself returns the rules for a pod that calls itself through a Service. Others may send from
// its address, but not by its link. At the hook output the incoming link is not known.
func toItself(sets map[string]*ruleset.Set, hook ruleset.Hook) []ruleset.Rule {
	var all []ruleset.Rule
	for _, family := range ruleset.Families {
		if own := family.Name(ruleset.Own); sets[own] != nil {
			rule := ruleset.Rule{Family: family, SourceIn: own, SourceOut: own, Verdict: ruleset.Accept}
			if hook == ruleset.Output {
				rule.SourceIn = ""
			}
			all = append(all, rule)
		}
		if pairs := family.Name(ruleset.SelfPairs); sets[pairs] != nil {
			rule := ruleset.Rule{Family: family, InInterface: setWays, Pair: pairs, Verdict: ruleset.Accept}
			if hook == ruleset.Output {
				rule.InInterface = ""
			}
			all = append(all, rule)
		}
	}
	return all
}

// linkSets are the addresses that no router forwards: loopback and link-local addresses, the
// unspecified address of IPv6, and multicast groups.
var linkSets = []*ruleset.Set{
	{Name: setLink + "4", Family: ruleset.IPv4, Kind: ruleset.Ranges, Ranges: ranges("127.0.0.0/8", "169.254.0.0/16")},
	{Name: setLink + "6", Family: ruleset.IPv6, Kind: ruleset.Ranges, Ranges: ranges("::/128", "fe80::/10")},
	{Name: setGroups, Family: ruleset.IPv6, Kind: ruleset.Ranges, Ranges: ranges("ff00::/8")},
}

func ranges(prefixes ...string) (all []ruleset.AddressRange) {
	for _, text := range prefixes {
		r := netipx.RangeOfPrefix(netip.MustParsePrefix(text))
		all = append(all, ruleset.AddressRange{First: r.From(), Last: r.To()})
	}
	return all
}

// multicastListeners accepts messages of multicast listeners of a link.
func multicastListeners() ruleset.Rule {
	return ruleset.Rule{Family: ruleset.IPv6, MulticastListener: true, Source: setLink + "6", Destination: setGroups, Verdict: ruleset.Accept}
}

// contents is a ruleset with its collections, which are not among its sets until current.
type contents struct {
	*ruleset.Ruleset
	collections map[string]*collection
	// isNew says that current was not called yet.
	isNew bool
}

func newContents() *contents {
	return &contents{&ruleset.Ruleset{Sets: map[string]*ruleset.Set{}, Maps: map[string]*ruleset.Map{}, Chains: map[string]*ruleset.Chain{}}, map[string]*collection{}, true}
}

// add adds a chain, which may be nil, and the sets and chains that it names.
func (r *contents) add(e *chain) {
	if e == nil || r.Chains[e.Name] != nil {
		return
	}
	r.Chains[e.Name] = e.Chain
	for _, c := range e.collections {
		r.collections[c.name] = c
	}
	for _, set := range e.ranges {
		r.Sets[set.Name] = set
	}
	for _, jump := range e.jumps {
		r.add(jump)
	}
}

// addSets adds sets that exist in each ruleset.
func (r *contents) addSets(lists ...[]*ruleset.Set) {
	for _, set := range slices.Concat(lists...) {
		r.Sets[set.Name] = set
	}
}

// current returns the ruleset with all sets as they are now, the last ruleset if it has the same
// objects.
func (r *contents) current(last *ruleset.Ruleset) *ruleset.Ruleset {
	next := r.Ruleset
	if r.isNew {
		next = &ruleset.Ruleset{Sets: make(map[string]*ruleset.Set, len(r.Sets)+len(r.collections)), Maps: r.Maps, Chains: r.Chains}
		maps.Copy(next.Sets, r.Sets)
	}
	for name, c := range r.collections {
		if set := c.current(); next.Sets[name] != set {
			if next == r.Ruleset {
				next = &ruleset.Ruleset{Sets: maps.Clone(next.Sets), Maps: next.Maps, Chains: next.Chains}
			}
			next.Sets[name] = set
		}
	}
	if r.isNew && last != nil && maps.Equal(last.Sets, next.Sets) && maps.Equal(last.Maps, next.Maps) && maps.Equal(last.Chains, next.Chains) {
		next = last
	}
	r.Ruleset, r.isNew = next, false
	return next
}

// keep replaces objects by the last objects of their names if these are equal.
func keep[V any](all, last map[string]*V, equal func(a, b *V) bool) {
	for name, v := range all {
		if before := last[name]; before != nil && before != v && equal(before, v) {
			all[name] = before
		}
	}
}

func equal[V any](a, b *V) bool { return reflect.DeepEqual(a, b) }

func equalMaps(a, b *ruleset.Map) bool { return maps.Equal(a.Chains, b.Chains) }

// equalOwn compares sets for pods that call themselves.
func equalOwn(a, b *ruleset.Set) bool {
	return slices.Equal(a.Links, b.Links) && slices.Equal(a.Pairs, b.Pairs) && slices.Equal(a.Interfaces, b.Interfaces)
}
