// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// hash returns a text of 24 letters and digits, of 120 bits: nobody can find two policies with the
// same hash.
func hash(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:15]))
}

func (n portName) text() string { return fmt.Sprintf("%d/%s", n.protocol, n.name) }

// chain is a chain of a ruleset, with the sets and chains that it names.
type chain struct {
	*ruleset.Chain
	// content identifies the rules of the chain: equal content makes an equal chain.
	content     string
	collections []*collection
	ranges      []*ruleset.Set
	jumps       []*chain
	// ended says that no packet reaches the end of the chain.
	ended bool
}

type sideKey struct {
	*side
	family ruleset.Family
}

// sweep drops the chains and sets that nothing needs.
func (x *Index) sweep(inPods, onNode *contents) {
	maps.DeleteFunc(x.chains, func(name string, _ *chain) bool { return onNode.Chains[name] == nil && inPods.Chains[name] == nil })
	maps.DeleteFunc(x.sides, func(_ sideKey, e *chain) bool { return x.chains[e.Name] != e })
	maps.DeleteFunc(x.ranges, func(name string, _ *ruleset.Set) bool { return onNode.Sets[name] == nil && inPods.Sets[name] == nil })
	for _, p := range x.peers {
		for _, c := range p.collections {
			if onNode.collections[c.name] == nil && inPods.collections[c.name] == nil {
				x.drop(c)
			}
		}
	}
}

func (x *Index) choose(l *local) {
	l.ingress, l.egress = selected{}, selected{}
	if l.pod == nil || l.Ungoverned {
		return
	}
	for _, policies := range [][]*intent{x.policies[""], x.policies[l.Namespace]} {
		for _, i := range policies {
			if !x.selects(i, l) {
				continue
			}
			tier := i.position()
			if i.ingress != nil {
				l.ingress.tiers[tier] = append(l.ingress.tiers[tier], i)
			}
			if i.egress != nil {
				l.egress.tiers[tier] = append(l.egress.tiers[tier], i)
			}
		}
	}
}

func (i *intent) side(d ruleset.Direction) *side {
	if d == ruleset.Ingress {
		return i.ingress
	}
	return i.egress
}

// combination returns the chain of a local pod in one direction, for packets of a family; nil if no
// policy applies.
func (x *Index) combination(l *local, d ruleset.Direction, family ruleset.Family) *chain {
	if l.Ungoverned {
		return nil
	}
	if l.pod == nil {
		return x.unknown(l, d)
	}
	s := l.selected(d)
	made := &s.made[family-ruleset.IPv4]
	// A reshape may have dropped the unused chain and its sets.
	if !made.done || made.chain != nil && x.chains[made.chain.Name] != made.chain {
		made.chain, made.done = x.combine(s, l.pod, d, family), true
	}
	return made.chain
}

// combine returns the chain of policies, nil if no policy applies. Most pods have the same policies
// as another pod, so their chain exists already.
func (x *Index) combine(s *selected, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	if s.isEmpty() {
		return nil
	}
	for i := range s.policies() {
		if d == ruleset.Ingress && len(i.ingress.names) > 0 {
			return x.combineAnew(s, pod, d, family)
		}
	}
	key := combinationKey{d, family, s.hash()}
	for _, known := range x.combinations[key] {
		if slices.EqualFunc(known.tiers[:], s.tiers[:], slices.Equal[[]*intent]) && (known.chain == nil || x.chains[known.chain.Name] == known.chain) {
			return known.chain
		}
	}
	e := x.combineAnew(s, pod, d, family)
	x.combinations[key] = append(x.combinations[key], combination{s.tiers, e})
	return e
}

type combinationKey struct {
	d      ruleset.Direction
	family ruleset.Family
	hash   uint64
}

type combination struct {
	tiers [3][]*intent
	chain *chain
}

func (s *selected) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(ownerSeed)
	for i := range s.policies() {
		maphash.WriteComparable(&h, i)
	}
	return h.Sum64()
}

func (x *Index) combineAnew(s *selected, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	admin, network, baseline := s.tiers[0], s.tiers[1], s.tiers[2]
	var jumps []*chain
	if len(admin) > 0 {
		jumps = append(jumps, x.tierChain("a", admin, pod, d, family))
	}
	for _, i := range network {
		jumps = append(jumps, x.policyChain(i, pod, d, family))
	}
	if len(network) == 0 && len(baseline) > 0 {
		jumps = append(jumps, x.tierChain("b", baseline, pod, d, family))
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
	return x.ensure(name, identity.String(), jumps, func(e *chain) {
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
func (x *Index) unknown(l *local, d ruleset.Direction) *chain {
	if !slices.ContainsFunc(slices.Concat(x.policies[l.Namespace], x.policies[""]), func(i *intent) bool { return i.side(d) != nil }) {
		return nil
	}
	return x.ensure("unknown-"+letter(d), "", nil, func(e *chain) { e.Rules = []ruleset.Rule{isolation(d)} })
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
	return ruleset.Rule{Verdict: ruleset.Drop, Counter: "isolation-" + strings.ToLower(string(d)), Origin: &ruleset.Origin{Direction: d}}
}

// policyChain returns the chain of a NetworkPolicy. Pods share the chain unless the same port name
// has different numbers on them.
func (x *Index) policyChain(i *intent, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
	s := i.side(d)
	if d == ruleset.Ingress && len(s.names) > 0 {
		return x.tierChain("p", []*intent{i}, pod, d, family)
	}
	key := sideKey{s, family}
	e := x.sides[key]
	if e == nil || x.chains[e.Name] != e {
		e = x.tierChain("p", []*intent{i}, pod, d, family)
		x.sides[key] = e
	}
	return e
}

// tierChain returns the chain of policies in their order. A packet returns from the chain if no
// rule decides, or if a rule passes it to the next tier.
func (x *Index) tierChain(prefix string, policies []*intent, pod *Pod, d ruleset.Direction, family ruleset.Family) *chain {
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
	return x.ensure(name, content.String(), nil, func(e *chain) {
		for n, i := range policies {
			for _, clause := range i.side(d).clauses {
				x.render(e, i, clause, d, family, resolved[n])
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
func (x *Index) ensure(name, content string, jumps []*chain, fill func(*chain)) *chain {
	last := x.chains[name]
	if last != nil && last.content == content {
		last.jumps = jumps
		return last
	}
	next := &chain{Chain: &ruleset.Chain{Name: name}, content: content, jumps: jumps}
	fill(next)
	if last != nil && reflect.DeepEqual(last.Chain, next.Chain) {
		next.Chain = last.Chain
	}
	x.chains[name] = next
	return next
}

// rendering adds the rules of a clause to a chain.
type rendering struct {
	*Index
	chain     *chain
	clause    clause
	direction ruleset.Direction
	family    ruleset.Family
	blocks    []netipx.IPRange
	// anyPeer says that the clause matches every address of the family.
	anyPeer bool
}

func (x *Index) render(e *chain, i *intent, cl clause, d ruleset.Direction, family ruleset.Family, resolved map[portName][]uint32) {
	of := rendering{Index: x, chain: e, clause: cl, direction: d, family: family}
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

func (x *Index) use(e *chain, selection podSelection, w elementKind) string {
	collection := x.collection(selection, w)
	e.collections = append(e.collections, collection)
	return collection.name
}

func (x *Index) useRanges(e *chain, ranges []netipx.IPRange, family ruleset.Family) string {
	next := &ruleset.Set{Family: family, Kind: ruleset.Ranges}
	var text strings.Builder
	for _, r := range ranges {
		next.Ranges = append(next.Ranges, ruleset.AddressRange{First: r.From(), Last: r.To()})
		text.WriteString(r.String() + " ")
	}
	next.Name = family.Name("r") + "-" + hash(text.String())
	if last := x.ranges[next.Name]; last != nil {
		next = last
	}
	x.ranges[next.Name] = next
	e.ranges = append(e.ranges, next)
	return next.Name
}

// coversFamily reports whether ranges have all addresses of their family, so that no set is needed.
func coversFamily(ranges []netipx.IPRange) bool {
	return len(ranges) == 1 && ranges[0].From().IsUnspecified() && !ranges[0].To().Next().IsValid()
}

func counterName(of string, i *intent, d ruleset.Direction) string {
	return of[:1] + letter(d) + "-" + hash(i.kind+" "+i.NamespacedName.String())
}
