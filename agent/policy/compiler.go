// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

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

// Counters of packets of isolated pods that no policy allows.
const (
	CounterIsolationIngress = "isolation-ingress"
	CounterIsolationEgress  = "isolation-egress"
)

// hash returns a text of 24 letters and digits, of 120 bits: nobody can find two policies with the
// same hash.
func hash(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:15]))
}

func (n portName) text() string { return fmt.Sprintf("%d/%s", n.protocol, n.name) }

// compiler makes chains and reuses unchanged chains.
type compiler struct {
	*Index
	// pass counts the passes through the chains. Each pass drops the chains and sets that it does not
	// use.
	pass   uint64
	chains map[string]*chain
	ranges map[string]*rangeSet
	// sides has the chains of NetworkPolicies, if they were made; see policy.
	sides map[sideKey]*chain
	// combinations has the chains that the last pass made for pods.
	combinations map[combinationKey][]combination

	// maps and onNode make up the ruleset of the node. own has the sets for pods that call themselves;
	// base has the base chains that use these sets.
	maps   map[string]*ruleset.Map
	onNode *contents
	own    map[string]*ruleset.Set
	base   map[string]*ruleset.Chain
}

// chain is a chain of a ruleset, with the sets and chains that it names.
type chain struct {
	*ruleset.Chain
	// content identifies the rules of the chain: equal content makes an equal chain.
	content     string
	collections []*collection
	ranges      []*rangeSet
	jumps       []*chain
	used        uint64
	// ended says that no packet reaches the end of the chain.
	ended bool
}

type rangeSet struct {
	*ruleset.Set
	used uint64
}

// setBase makes the base chains of the node, unless they exist. A packet passes both base chains of
// a hook in this order, also after the first one accepts it.
func (c *compiler) setBase() {
	if c.base != nil {
		return
	}
	base := func(name string, hook ruleset.Hook, source, destination [2]string, before ...ruleset.Rule) *ruleset.Chain {
		rules := slices.Concat([]ruleset.Rule{{Established: true, Verdict: ruleset.Accept}}, before, []ruleset.Rule{
			// Pods on a bridge send neighbour discovery to each other; the node sees it like forwarded
			// packets.
			{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept},
			multicastListeners(),
		}, c.toItself(hook))
		for n, family := range ruleset.Families {
			rules = append(rules, ruleset.Rule{Family: family, SourceMap: source[n], DestinationMap: destination[n]})
		}
		return &ruleset.Chain{Name: name, Hook: hook, Rules: rules}
	}
	egress, ingress, none := [2]string{"egress4", "egress6"}, [2]string{"ingress4", "ingress6"}, [2]string{}
	// With kube-proxy in mode ipvs, a packet to a Service comes to the node as to an address of the
	// node. It leaves through the hook output to the chosen pod, with the source of its sender.
	own := ruleset.Rule{LocalSource: true, Verdict: ruleset.Accept}
	c.base = map[string]*ruleset.Chain{
		chainEgressInput:   toNode,
		chainEgressNode:    atNode,
		chainEgress:        base(chainEgress, ruleset.Forward, egress, none),
		chainIngress:       base(chainIngress, ruleset.Forward, none, ingress),
		chainEgressOutput:  base(chainEgressOutput, ruleset.Output, egress, none, own),
		chainIngressOutput: base(chainIngressOutput, ruleset.Output, none, ingress, own),
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
func (c *compiler) toItself(hook ruleset.Hook) []ruleset.Rule {
	var all []ruleset.Rule
	for _, family := range ruleset.Families {
		if own := family.Name(ruleset.Own); c.own[own] != nil {
			rule := ruleset.Rule{Family: family, SourceIn: own, SourceOut: own, Verdict: ruleset.Accept}
			if hook == ruleset.Output {
				rule.SourceIn = ""
			}
			all = append(all, rule)
		}
		if pairs := family.Name(ruleset.SelfPairs); c.own[pairs] != nil {
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

// empty is the ruleset if no pod is governed.
var empty = &ruleset.Ruleset{}

// Node returns the ruleset of the node. It has no chains if no policy selects a pod of the node.
func (x *Index) Node() *ruleset.Ruleset {
	x.settle()
	c := &x.compiler
	if len(c.maps) == 0 {
		x.node = empty
		return x.node
	}
	if x.node != nil && x.contents == c.onNode {
		x.node = withSets(x.node, c.onNode.collections)
		return x.node
	}
	x.contents = c.onNode
	next := &ruleset.Ruleset{Sets: make(map[string]*ruleset.Set, len(c.onNode.sets)+len(c.onNode.collections)), Maps: c.maps, Chains: c.onNode.chains}
	maps.Copy(next.Sets, c.onNode.sets)
	for name, collection := range c.onNode.collections {
		next.Sets[name] = collection.current()
	}
	if x.node == nil || !maps.Equal(x.node.Sets, next.Sets) || !maps.Equal(x.node.Maps, next.Maps) || !maps.Equal(x.node.Chains, next.Chains) {
		x.node = next
	}
	return x.node
}

// withSets returns a ruleset with the sets as they are now, the same if none changed.
func withSets(last *ruleset.Ruleset, collections map[string]*collection) *ruleset.Ruleset {
	next := last
	for name, collection := range collections {
		set := collection.current()
		if last.Sets[name] == set {
			continue
		}
		if next == last {
			next = &ruleset.Ruleset{Sets: maps.Clone(last.Sets), Maps: last.Maps, Chains: last.Chains}
		}
		next.Sets[name] = set
	}
	return next
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
	next := x.compiler.pod(l)
	if last := l.ruleset; last == nil || !maps.Equal(last.Sets, next.Sets) || !maps.Equal(last.Chains, next.Chains) {
		l.ruleset = next
	}
	return l.ruleset
}

func (c *compiler) pod(l *local) *ruleset.Ruleset {
	if len(l.Direct) == 0 {
		return empty
	}
	r := newContents()
	output := []ruleset.Rule{
		{Established: true, Verdict: ruleset.Accept},
		{Loopback: true, Verdict: ruleset.Accept},
		{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept},
		multicastListeners(),
	}
	for _, set := range slices.Concat(linkSets, c.nodeDNS[:]) {
		r.sets[set.Name] = set
	}
	input := slices.Clone(output)
	for _, node := range c.nodeAddress {
		r.sets[node.Name] = node
		if l.isProbedByWire(node.Family) {
			input = append(input, ruleset.Rule{Family: node.Family, Source: node.Name, Verdict: ruleset.Accept})
		}
	}
	governed := false
	for _, family := range ruleset.Families {
		if e := c.combination(l, ruleset.Egress, family); e != nil {
			output = append(output, ruleset.Rule{Family: family, OutInterface: setDirect, Verdict: ruleset.Goto, Target: e.Name})
			r.add(e)
			governed = true
		}
		if i := c.combination(l, ruleset.Ingress, family); i != nil {
			input = append(input, ruleset.Rule{Family: family, InInterface: setDirect, Verdict: ruleset.Goto, Target: i.Name})
			r.add(i)
			governed = true
		}
	}
	if !governed {
		return empty
	}
	next := &ruleset.Ruleset{Sets: r.sets, Chains: r.chains}
	for name, collection := range r.collections {
		next.Sets[name] = collection.current()
	}
	next.Sets[setDirect] = &ruleset.Set{Name: setDirect, Kind: ruleset.Interfaces, Interfaces: l.Direct}
	next.Chains[chainOutput] = &ruleset.Chain{Name: chainOutput, Hook: ruleset.Output, Rules: output}
	next.Chains[chainInput] = &ruleset.Chain{Name: chainInput, Hook: ruleset.Input, Rules: input}
	if last := l.ruleset; last != nil {
		if same := last.Sets[setDirect]; reflect.DeepEqual(same, next.Sets[setDirect]) {
			next.Sets[setDirect] = same
		}
		for _, name := range []string{chainOutput, chainInput} {
			if same := last.Chains[name]; reflect.DeepEqual(same, next.Chains[name]) {
				next.Chains[name] = same
			}
		}
	}
	return next
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

// contents has the chains of a ruleset, and the sets and collections that they name.
type contents struct {
	chains      map[string]*ruleset.Chain
	sets        map[string]*ruleset.Set
	collections map[string]*collection
}

func newContents() *contents {
	return &contents{chains: map[string]*ruleset.Chain{}, sets: map[string]*ruleset.Set{}, collections: map[string]*collection{}}
}

// add adds a chain, and the sets and chains that it names.
func (r *contents) add(e *chain) {
	if r.chains[e.Name] != nil {
		return
	}
	r.chains[e.Name] = e.Chain
	for _, c := range e.collections {
		r.collections[c.name] = c
	}
	for _, set := range e.ranges {
		r.sets[set.Name] = set.Set
	}
	for _, jump := range e.jumps {
		r.add(jump)
	}
}

// settle brings chains, maps and sets up to date.
func (x *Index) settle() {
	if x.reshape {
		x.compiler.reshape()
		x.reshape = false
	}
	x.fill()
}

// reshape makes the chains of all pods anew, and from them the maps and sets of the node.
func (c *compiler) reshape() {
	c.pass++
	c.combinations = map[combinationKey][]combination{}
	for _, l := range c.locals {
		if l.stale {
			c.choose(l)
			l.stale = false
		}
		for _, family := range ruleset.Families {
			if len(l.Direct) > 0 {
				c.combination(l, ruleset.Ingress, family)
				c.combination(l, ruleset.Egress, family)
			}
		}
	}
	r := newContents()
	next, own := c.dispatch(r)
	c.sweep()
	c.onNode = r
	if len(r.chains) == 0 {
		c.maps, c.own, c.base = nil, nil, nil
		return
	}
	c.setOwn(own)
	c.setBase()
	maps.Copy(r.chains, c.base)
	maps.Copy(r.sets, c.own)
	for _, set := range slices.Concat(linkSets, c.nodeAddress[:], c.nodeDNS[:]) {
		r.sets[set.Name] = set
	}
	for name, m := range next {
		if last := c.maps[name]; last != nil && maps.Equal(last.Chains, m.Chains) {
			next[name] = last
		}
	}
	c.maps = next
}

// dispatch returns the maps from the addresses of pods to their chains, and the sets for pods that
// call themselves. It adds the chains to the contents of the node.
func (c *compiler) dispatch(r *contents) (next map[string]*ruleset.Map, own map[string]*ruleset.Set) {
	next = map[string]*ruleset.Map{}
	for _, family := range ruleset.Families {
		for _, name := range []string{"egress", "ingress"} {
			name = family.Name(name)
			next[name] = &ruleset.Map{Name: name, Family: family, Chains: map[netip.Addr]string{}}
		}
	}
	holders := c.holders()
	governed := map[netip.Addr]*local{}
	for a, l := range holders {
		family := ruleset.FamilyOf(a)
		egress, ingress := c.combination(l, ruleset.Egress, family), c.combination(l, ruleset.Ingress, family)
		if egress != nil {
			next[family.Name("egress")].Chains[a] = egress.Name
			r.add(egress)
		}
		if ingress != nil {
			next[family.Name("ingress")].Chains[a] = ingress.Name
			r.add(ingress)
		}
		if egress != nil || ingress != nil {
			governed[a] = l
		}
	}
	return next, ownSets(holders, governed)
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

// setOwn replaces the sets for pods that call themselves. Equal sets stay the same objects, and so
// do the base chains if the names of the sets are the same.
func (c *compiler) setOwn(own map[string]*ruleset.Set) {
	for name, s := range own {
		last := c.own[name]
		if last == nil {
			c.base = nil
		} else if slices.Equal(last.Links, s.Links) && slices.Equal(last.Pairs, s.Pairs) && slices.Equal(last.Interfaces, s.Interfaces) {
			own[name] = last
		}
	}
	if len(own) != len(c.own) {
		c.base = nil
	}
	c.own = own
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
func (c *compiler) holders() map[netip.Addr]*local {
	all := map[netip.Addr]*local{}
	for _, addresses := range []func(*local) []netip.Addr{
		func(l *local) []netip.Addr { return l.Addresses },
		func(l *local) []netip.Addr { return l.addresses() },
		func(l *local) []netip.Addr { return l.Seen },
	} {
		newest := map[netip.Addr]*local{}
		for _, l := range c.locals {
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

// sideKey finds the chain of a side for packets of a family.
type sideKey struct {
	*side
	family ruleset.Family
}

// sweep drops the chains and sets that the last pass did not use.
func (c *compiler) sweep() {
	for name, e := range c.chains {
		if e.used != c.pass {
			delete(c.chains, name)
		}
	}
	maps.DeleteFunc(c.sides, func(_ sideKey, e *chain) bool { return c.chains[e.Name] != e })
	for name, r := range c.ranges {
		if r.used != c.pass {
			delete(c.ranges, name)
		}
	}
	for _, p := range c.peers {
		for _, collection := range p.collections {
			if collection.used != c.pass {
				c.drop(collection)
			}
		}
	}
}

// addresses returns the addresses from the record and from the cluster, each once.
func (l *local) addresses() []netip.Addr {
	all := l.Addresses
	if l.pod != nil {
		for _, a := range l.pod.Addresses {
			if !slices.Contains(all, a) {
				all = append(slices.Clip(all), a)
			}
		}
	}
	return all
}

// choose finds the policies of a local pod.
func (c *compiler) choose(l *local) {
	l.ingress, l.egress = selected{}, selected{}
	if l.pod == nil || l.Ungoverned {
		return
	}
	for _, policies := range [][]*intent{c.admin, c.of[l.Namespace], c.baseline} {
		for _, i := range policies {
			if !c.selects(i, l) {
				continue
			}
			if i.ingress != nil {
				l.ingress.policies = append(l.ingress.policies, i)
			}
			if i.egress != nil {
				l.egress.policies = append(l.egress.policies, i)
			}
		}
	}
}

// tiers returns the policies by tier.
func (s *selected) tiers() (admin, network, baseline []*intent) {
	for _, i := range s.policies {
		switch {
		case i.kind == KindNetworkPolicy:
			network = append(network, i)
		case i.tier == string(policyv1alpha2.AdminTier):
			admin = append(admin, i)
		default:
			baseline = append(baseline, i)
		}
	}
	return admin, network, baseline
}

func (i *intent) side(d ruleset.Direction) *side {
	if d == ruleset.Ingress {
		return i.ingress
	}
	return i.egress
}

// combination returns the chain of a local pod in one direction, for packets of a family; nil if no
// policy applies.
func (c *compiler) combination(l *local, d ruleset.Direction, family ruleset.Family) *chain {
	if l.Ungoverned {
		return nil
	}
	if l.pod == nil {
		return c.unknown(l, d)
	}
	s := &l.egress
	if d == ruleset.Ingress {
		s = &l.ingress
	}
	made := &s.made[family-ruleset.IPv4]
	// A pass may have dropped the unused chain and its sets.
	if !made.done || made.chain != nil && c.chains[made.chain.Name] != made.chain {
		made.chain, made.done = c.combine(s, l.pod, d, family), true
	}
	if made.chain != nil {
		c.mark(made.chain)
	}
	return made.chain
}

// combine returns the chain of policies, nil if no policy applies. Most pods have the same policies
// as another pod, so their chain exists already.
func (c *compiler) combine(s *selected, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	if len(s.policies) == 0 {
		return nil
	}
	for _, i := range s.policies {
		if d == ruleset.Ingress && len(i.ingress.names) > 0 {
			return c.combineAnew(s, pod, d, family)
		}
	}
	key := combinationKey{d, family, hashPolicies(s.policies)}
	for _, known := range c.combinations[key] {
		if slices.Equal(known.policies, s.policies) && (known.chain == nil || c.chains[known.chain.Name] == known.chain) {
			return known.chain
		}
	}
	e := c.combineAnew(s, pod, d, family)
	c.combinations[key] = append(c.combinations[key], combination{s.policies, e})
	return e
}

// combinationKey finds combinations.
type combinationKey struct {
	d      ruleset.Direction
	family ruleset.Family
	hash   uint64
}

// combination is policies in their order and their chain.
type combination struct {
	policies []*intent
	chain    *chain
}

func hashPolicies(policies []*intent) uint64 {
	var h maphash.Hash
	h.SetSeed(ownerSeed)
	for _, i := range policies {
		maphash.WriteComparable(&h, i)
	}
	return h.Sum64()
}

func (c *compiler) combineAnew(s *selected, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	admin, network, baseline := s.tiers()
	var jumps []*chain
	if len(admin) > 0 {
		jumps = append(jumps, c.policies("a", admin, pod, d, family))
	}
	for _, i := range network {
		jumps = append(jumps, c.policy(i, pod, d, family))
	}
	if len(network) == 0 && len(baseline) > 0 {
		jumps = append(jumps, c.policies("b", baseline, pod, d, family))
	}
	jumps = slices.DeleteFunc(jumps, func(e *chain) bool { return len(e.Rules) == 0 })
	isolated := len(network) > 0
	if !isolated && len(jumps) == 0 {
		return nil
	}
	var identity strings.Builder
	for _, jump := range jumps {
		identity.WriteString(jump.Name + " ")
	}
	if isolated {
		identity.WriteString("isolated")
	}
	name := family.Name(letter(d)) + "-" + hash(identity.String())
	return c.ensure(name, identity.String(), jumps, func(e *chain) {
		for _, jump := range jumps {
			e.Rules = append(e.Rules, ruleset.Rule{Verdict: ruleset.Jump, Target: jump.Name})
		}
		if isolated {
			e.Rules = append(append(e.Rules, dns(d, family)...), isolation(d))
		} else {
			e.Rules = append(e.Rules, ruleset.Rule{Verdict: ruleset.Accept})
		}
	})
}

// unknown returns the chain of a pod that the cluster has not shown yet, if policies may select it.
func (c *compiler) unknown(l *local, d ruleset.Direction) *chain {
	for _, policies := range [][]*intent{c.of[l.Namespace], c.admin, c.baseline} {
		for _, i := range policies {
			if i.side(d) != nil {
				return c.ensure("unknown-"+letter(d), "", nil, func(e *chain) { e.Rules = []ruleset.Rule{isolation(d)} })
			}
		}
	}
	return nil
}

func letter(d ruleset.Direction) string {
	if d == ruleset.Ingress {
		return "i"
	}
	return "e"
}

// dns returns the rules by which an isolated pod reaches the DNS cache of its node: nobody writes
// the address of the cache into policies.
func dns(d ruleset.Direction, family ruleset.Family) (all []ruleset.Rule) {
	if d == ruleset.Ingress {
		return nil
	}
	for _, protocol := range []ruleset.Protocol{ruleset.TCP, ruleset.UDP} {
		all = append(all, ruleset.Rule{Family: family, Destination: family.Name(setNodeDNS), Protocol: protocol, Ports: []ruleset.PortRange{{First: 53, Last: 53}}, Verdict: ruleset.Accept})
	}
	return all
}

// isolation returns the rule that drops packets that no NetworkPolicy allows.
func isolation(d ruleset.Direction) ruleset.Rule {
	counter := CounterIsolationIngress
	if d == ruleset.Egress {
		counter = CounterIsolationEgress
	}
	return ruleset.Rule{Verdict: ruleset.Drop, Counter: counter, Origin: &ruleset.Origin{Direction: d}}
}

// policy returns the chain of a NetworkPolicy. Pods share the chain unless the same port name has
// different numbers on them.
func (c *compiler) policy(i *intent, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	s := i.side(d)
	if d == ruleset.Ingress && len(s.names) > 0 {
		return c.policies("p", []*intent{i}, pod, d, family)
	}
	key := sideKey{s, family}
	e := c.sides[key]
	if e == nil || c.chains[e.Name] != e {
		e = c.policies("p", []*intent{i}, pod, d, family)
		c.sides[key] = e
	}
	return e
}

// policies returns the chain of policies in their order. A packet returns from the chain if no rule
// decides, or if a rule passes it to the next tier.
func (c *compiler) policies(prefix string, policies []*intent, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	var identity, content strings.Builder
	resolved := make([]map[portName][]uint32, len(policies))
	for n, i := range policies {
		fmt.Fprintf(&identity, "%s %s ", i.kind, i.NamespacedName)
		fmt.Fprintf(&content, "%d ", i.side(d).revision)
		if d == ruleset.Ingress {
			resolved[n] = resolve(i.ingress.names, pod, &identity)
		}
	}
	name := prefix + family.Name(letter(d)) + "-" + hash(identity.String())
	return c.ensure(name, content.String(), nil, func(e *chain) {
		for n, i := range policies {
			for _, clause := range i.side(d).clauses {
				c.render(e, i, clause, d, family, resolved[n])
			}
		}
	})
}

// resolve returns the pod's ports with these names, as numbers by protocol, and writes them to
// text.
func resolve(names []portName, pod *Pod, text *strings.Builder) map[portName][]uint32 {
	if len(names) == 0 {
		return nil
	}
	resolved := map[portName][]uint32{}
	for _, name := range names {
		var ports []uint32
		for _, port := range pod.Ports {
			if protocol, ok := name.resolves(port); ok {
				ports = append(ports, uint32(protocol)<<16|uint32(port.Port))
			}
		}
		slices.Sort(ports)
		ports = slices.Compact(ports)
		resolved[name] = ports
		fmt.Fprintf(text, "%s=%x ", name.text(), ports)
	}
	return resolved
}

// ensure returns the chain of a name, and makes it anew if its content has changed. The chains to
// which it jumps may have changed although their names in the content are the same.
func (c *compiler) ensure(name, content string, jumps []*chain, fill func(*chain)) *chain {
	last := c.chains[name]
	if last != nil && last.content == content {
		last.jumps = jumps
		c.mark(last)
		return last
	}
	next := &chain{Chain: &ruleset.Chain{Name: name}, content: content, jumps: jumps}
	fill(next)
	if last != nil && reflect.DeepEqual(last.Chain, next.Chain) {
		next.Chain = last.Chain
	}
	c.chains[name] = next
	c.mark(next)
	return next
}

// mark notes that a chain, and the sets and chains that it names, are in use.
func (c *compiler) mark(e *chain) {
	if e.used == c.pass {
		return
	}
	e.used = c.pass
	for _, collection := range e.collections {
		collection.used = c.pass
	}
	for _, r := range e.ranges {
		r.used = c.pass
	}
	for _, jump := range e.jumps {
		c.mark(jump)
	}
}

// rendering adds the rules of a clause to a chain.
type rendering struct {
	*compiler
	chain     *chain
	clause    clause
	direction ruleset.Direction
	family    ruleset.Family
	blocks    []netipx.IPRange
	// anyPeer says that the clause matches every address of the family.
	anyPeer bool
}

// render adds the rules of a clause to a chain.
func (c *compiler) render(e *chain, i *intent, cl clause, d ruleset.Direction, family ruleset.Family, resolved map[portName][]uint32) {
	of := rendering{compiler: c, chain: e, clause: cl, direction: d, family: family}
	for _, r := range cl.blocks {
		if ruleset.FamilyOf(r.From()) == family {
			of.blocks = append(of.blocks, r)
		}
	}
	of.anyPeer = cl.anyPeer || coversFamily(of.blocks)
	rule := ruleOf(i, cl, d)
	if cl.anyPort {
		of.peers(rule)
		return
	}
	ports := cl.ports
	if d == ruleset.Ingress && len(cl.names) > 0 {
		ports = withResolved(ports, cl.names, resolved)
	}
	for _, p := range ports {
		rule := rule
		rule.Protocol, rule.Ports = p.protocol, p.ranges
		of.peers(rule)
	}
	if d == ruleset.Egress {
		of.endpoints(rule)
	}
}

// ruleOf returns a rule with the verdict and the origin of a clause, without conditions.
func ruleOf(i *intent, cl clause, d ruleset.Direction) ruleset.Rule {
	rule := ruleset.Rule{Verdict: ruleset.Accept}
	switch cl.action {
	case accept:
		rule.Counter = counterName("accept", i, d)
	case deny:
		rule = ruleset.Rule{Verdict: ruleset.Drop, Counter: counterName("deny", i, d)}
	case pass:
		rule = ruleset.Rule{Verdict: ruleset.Return}
	}
	rule.Origin = &ruleset.Origin{Kind: i.kind, NamespacedName: i.NamespacedName, Direction: d, Rule: cl.number, RuleName: cl.name, Tier: i.tier}
	return rule
}

// peers adds a rule for each set of peers.
func (of rendering) peers(rule ruleset.Rule) {
	if of.anyPeer {
		of.chain.add(rule)
		return
	}
	to := func(set string) {
		rule.Family = of.family
		if of.direction == ruleset.Ingress {
			rule.Source = set
		} else {
			rule.Destination = set
		}
		of.chain.add(rule)
	}
	for _, selection := range of.clause.peers {
		to(of.use(of.chain, selection, elementKind{family: of.family}))
	}
	if len(of.blocks) > 0 {
		to(of.useRanges(of.chain, of.blocks, of.family))
	}
}

// endpoints adds the rules for ports of destinations by their names.
func (of rendering) endpoints(rule ruleset.Rule) {
	rule.Family = of.family
	for _, name := range of.clause.names {
		rule := rule
		if of.anyPeer {
			rule.Endpoint = of.use(of.chain, everyPod, elementKind{of.family, name})
			of.chain.add(rule)
			continue
		}
		for _, selection := range of.clause.peers {
			rule.Endpoint = of.use(of.chain, selection, elementKind{of.family, name})
			of.chain.add(rule)
		}
		if len(of.blocks) > 0 {
			rule.Endpoint = of.use(of.chain, everyPod, elementKind{of.family, name})
			rule.Destination = of.useRanges(of.chain, of.blocks, of.family)
			of.chain.add(rule)
		}
	}
}

// withResolved adds the port numbers of names to ports.
func withResolved(ports []protocolPorts, names []portName, resolved map[portName][]uint32) []protocolPorts {
	all := portsOf{}
	for _, p := range ports {
		if p.ranges == nil {
			all.add(p.protocol, nil)
		}
		for _, r := range p.ranges {
			all.add(p.protocol, &r)
		}
	}
	for _, name := range names {
		for _, port := range resolved[name] {
			number := uint16(port)
			all.add(ruleset.Protocol(port>>16), &ruleset.PortRange{First: number, Last: number})
		}
	}
	return all.list()
}

// add adds a rule, unless no packet can reach it.
func (e *chain) add(rule ruleset.Rule) {
	if e.ended {
		return
	}
	e.Rules = append(e.Rules, rule)
	e.ended = rule.Family == ruleset.AnyFamily && rule.Protocol == ruleset.AnyProtocol
}

// use makes a chain use a set of a peer, and returns the set's name.
func (c *compiler) use(e *chain, selection podSelection, w elementKind) string {
	collection := c.collection(selection, w)
	collection.used = c.pass
	e.collections = append(e.collections, collection)
	return collection.name
}

// useRanges makes a chain use a set of ranges, and returns the set's name.
func (c *compiler) useRanges(e *chain, ranges []netipx.IPRange, family ruleset.Family) string {
	next := &ruleset.Set{Family: family, Kind: ruleset.Ranges}
	var text strings.Builder
	for _, r := range ranges {
		next.Ranges = append(next.Ranges, ruleset.AddressRange{First: r.From(), Last: r.To()})
		text.WriteString(r.String() + " ")
	}
	next.Name = family.Name("r") + "-" + hash(text.String())
	entry := c.ranges[next.Name]
	if entry == nil {
		entry = &rangeSet{Set: next}
		c.ranges[next.Name] = entry
	}
	entry.used = c.pass
	e.ranges = append(e.ranges, entry)
	return next.Name
}

// coversFamily reports whether ranges have all addresses of their family, so that no set is needed.
func coversFamily(ranges []netipx.IPRange) bool {
	return len(ranges) == 1 && ranges[0].From().IsUnspecified() && !ranges[0].To().Next().IsValid()
}

// counterName returns the name of a policy's counter in a direction.
func counterName(of string, i *intent, d ruleset.Direction) string {
	return of[:1] + letter(d) + "-" + hash(i.kind+" "+i.NamespacedName.String())
}
