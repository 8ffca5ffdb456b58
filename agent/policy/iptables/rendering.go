// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// chain is a chain in the kernel.
type chain struct {
	lines []line
	// chains, sets and maps are the objects of the ruleset from which the lines follow.
	chains map[string]*ruleset.Chain
	sets   map[string]*ruleset.Set
	maps   map[string]*ruleset.Map
	// rest has the chains for rules after jumps, which follow from the same objects.
	rest map[string]*chain
}

// isOf reports whether a chain rendered from another ruleset is valid for this ruleset.
func (c *chain) isOf(rs *ruleset.Ruleset) bool {
	same := true
	for name, x := range c.chains {
		same = same && rs.Chains[name] == x
	}
	for name, x := range c.sets {
		same = same && rs.Sets[name] == x
	}
	for name, x := range c.maps {
		same = same && rs.Maps[name] == x
	}
	return same
}

// rendering renders the chains of a ruleset for one family.
type rendering struct {
	names
	rs     *ruleset.Ruleset
	family ruleset.Family
	// last are the chains of an earlier ruleset, by their names in it.
	last map[string]*chain
	made map[string]*chain
}

// renderChains returns the reachable chains, by their names in the ruleset. It reuses chains of
// last whose objects did not change.
func (n names) renderChains(rs *ruleset.Ruleset, f ruleset.Family, last map[string]*chain) (map[string]*chain, error) {
	r := &rendering{names: n, rs: rs, family: f, last: last, made: map[string]*chain{}}
	for _, c := range rs.Bases() {
		if err := r.chain(c.Name); err != nil {
			return nil, err
		}
	}
	return r.made, nil
}

// chain makes a chain and the chains to which it leads.
func (r *rendering) chain(name string) error {
	if r.made[name] != nil {
		return nil
	}
	of := r.rs.Chains[name]
	if of == nil {
		return fmt.Errorf("render the ruleset: there is no chain %s", name)
	}
	if last := r.last[name]; last != nil && last.isOf(r.rs) {
		r.made[name] = last
	} else {
		c := &chain{chains: map[string]*ruleset.Chain{name: of}, sets: map[string]*ruleset.Set{}, maps: map[string]*ruleset.Map{}, rest: map[string]*chain{}}
		w := &writer{rendering: r, hook: of.Hook, origin: c, out: c}
		if err := w.rules(name, of.Rules, nil); err != nil {
			return fmt.Errorf("render chain %s: %w", name, err)
		}
		r.made[name] = c
	}
	for _, next := range r.targets(of) {
		if err := r.chain(next); err != nil {
			return err
		}
	}
	return nil
}

// targets lists the chains to which rules and maps of a chain lead, for packets of the family.
func (r *rendering) targets(c *ruleset.Chain) []string {
	seen := map[string]bool{}
	for i := range c.Rules {
		rule := &c.Rules[i]
		if !r.sees(rule) {
			continue
		}
		if m, _ := r.mapOf(rule); m != nil {
			for _, name := range m.Chains {
				seen[name] = true
			}
		} else if rule.Verdict == ruleset.Goto {
			seen[rule.Target] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// sees reports whether packets of the family may match the rule.
func (r *rendering) sees(rule *ruleset.Rule) bool {
	return rule.Family == ruleset.AnyFamily || rule.Family == r.family
}

// mapOf returns the map of a rule, if it has one, and the address field of the lookup.
func (r *rendering) mapOf(rule *ruleset.Rule) (m *ruleset.Map, field string) {
	if rule.SourceMap != "" {
		return r.rs.Maps[rule.SourceMap], "src"
	}
	return r.rs.Maps[rule.DestinationMap], "dst"
}

// writer writes the lines of a chain.
type writer struct {
	*rendering
	hook ruleset.Hook
	// origin notes the objects from which the lines follow, and has the chains for rules after jumps;
	// out gets the lines.
	origin, out *chain
}

// errNested says that iptables cannot have a rule at this place.
var errNested = errors.New("a rule behind a jump leads to another chain, which iptables cannot return from")

// rest is the rules after a jump, or nil.
type rest struct {
	name  string
	rules []ruleset.Rule
}

// rules writes rules; behind are the rules that follow them, nil if a packet continues after the
// base chain.
func (w *writer) rules(name string, rules []ruleset.Rule, behind *rest) error {
	for i := range rules {
		rule := &rules[i]
		if !w.sees(rule) {
			continue
		}
		if rule.Pair != "" && behind == nil && rule.Verdict == ruleset.Accept {
			return w.pairs(rule, &rest{name + " " + rule.Pair, rules[i+1:]})
		}
		if rule.Verdict == ruleset.Jump {
			if behind != nil {
				return errNested
			}
			ends, err := w.jump(rule, &rest{name, rules[i+1:]})
			if err != nil || ends {
				return err
			}
			continue
		}
		m, field := w.mapOf(rule)
		if (m != nil || rule.Verdict == ruleset.Goto) && behind != nil {
			return errNested
		}
		if m != nil {
			w.origin.maps[m.Name] = m
			return w.dispatch(m, field, &rest{name, rules[i+1:]})
		}
		if err := w.rule(rule, behind); err != nil {
			return err
		}
	}
	return nil
}

// jump writes the rules of the chain to which a rule jumps. It reports whether it wrote the rules
// after the jump, too.
func (w *writer) jump(rule *ruleset.Rule, behind *rest) (ends bool, err error) {
	target := w.rs.Chains[rule.Target]
	if target == nil || !slices.Equal(w.conditions(w.hook, w.family, rule, w.written), []string{""}) {
		return false, fmt.Errorf("cannot jump to %q under conditions, or it is missing", rule.Target)
	}
	w.origin.chains[rule.Target] = target
	if !slices.ContainsFunc(target.Rules, func(r ruleset.Rule) bool { return r.Verdict == ruleset.Return && w.sees(&r) }) {
		return false, w.rules(rule.Target, target.Rules, &rest{})
	}
	to := restName(behind.name + " " + rule.Target)
	if err := w.rules(rule.Target, target.Rules, &rest{name: to}); err != nil {
		return false, err
	}
	w.out.lines = append(w.out.lines, line{text: "-g " + to})
	out := &chain{}
	w.origin.rest[to] = out
	next := &writer{w.rendering, w.hook, w.origin, out}
	return true, next.rules(to, behind.rules, nil)
}

// pairs writes a rule that accepts pairs, and the rules after it. A first chain gets only packets
// with a source and a destination of some pair. It leads packets that meet the rule's other
// conditions to a second chain, which has a rule for each pair. A rule for each interface with each
// pair would be too many.
func (w *writer) pairs(rule *ruleset.Rule, behind *rest) error {
	sources, destinations := ends(w.written(rule.Pair))
	family, to := kindOf(rule.Pair)[1:], restName(behind.name)
	first, second := ChainPrefix+"p"+family+"-"+hash("pairs "+behind.name), ChainPrefix+"q"+family+"-"+hash("pairs "+behind.name)
	onward := line{text: "-g " + to}
	w.out.lines = append(w.out.lines,
		line{text: fmt.Sprintf("-m set --match-set %s src -m set --match-set %s dst -g %s", w.set(sources.Name), w.set(destinations.Name), first)}, onward)
	others, pairs := *rule, ruleset.Rule{Family: rule.Family, Pair: rule.Pair, Verdict: rule.Verdict, Counter: rule.Counter, Origin: rule.Origin}
	others.Pair = ""
	chains := [3]*chain{{}, {}, {}}
	w.origin.rest[first], w.origin.rest[second], w.origin.rest[to] = chains[0], chains[1], chains[2]
	for _, conditions := range w.conditions(w.hook, w.family, &others, w.written) {
		chains[0].lines = append(chains[0].lines, line{text: join(conditions, "-g "+second)})
	}
	chains[0].lines = append(chains[0].lines, onward)
	next := &writer{w.rendering, w.hook, w.origin, chains[1]}
	if err := next.rule(&pairs, nil); err != nil {
		return err
	}
	chains[1].lines = append(chains[1].lines, onward)
	next.out = chains[2]
	return next.rules(to, behind.rules, nil)
}

// rule writes a rule without a jump or map.
func (w *writer) rule(rule *ruleset.Rule, behind *rest) error {
	say := comment(rule.Comment())
	target, err := w.target(rule, behind)
	if err != nil {
		return err
	}
	for _, conditions := range w.conditions(w.hook, w.family, rule, w.written) {
		w.out.lines = append(w.out.lines, line{join(conditions, say, target), rule.Counter})
	}
	if rule.Established {
		w.out.lines = append(w.out.lines, line{text: join(ended, comment("connections that were ended"), dropped)})
	}
	return nil
}

// dispatch writes the rules that lead packets to the chains of a map, one for each chain, and then
// the rules after them. With many chains it writes a rule for each group, which leads to a rule for
// each chain of the group. While a pod moves to another chain, a packet may match a group but none
// of its chains; it continues with a rule for each chain.
func (w *writer) dispatch(m *ruleset.Map, field string, behind *rest) error {
	lead := func(out *chain, of, to string) {
		out.lines = append(out.lines, line{text: fmt.Sprintf("-m set --match-set %s %s -g %s", w.members(m, of), field, to)})
	}
	all := targets(m)
	if len(all) <= manyChains {
		for _, target := range all {
			lead(w.out, target, chainName(target))
		}
		return w.rules(behind.name, behind.rules, nil)
	}
	each, onward := restName("each "+behind.name+" "+m.Name), restName(behind.name+" "+m.Name)
	eachChain, onwardChain, groups := &chain{}, &chain{}, map[string]*chain{}
	for _, target := range all {
		group := groupOf(target)
		if groups[group] == nil {
			groups[group] = &chain{}
		}
		lead(groups[group], target, chainName(target))
		lead(eachChain, target, chainName(target))
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		name := groupChain(behind.name, m, group)
		lead(w.out, group, name)
		groups[group].lines = append(groups[group].lines, line{text: "-g " + each})
		w.origin.rest[name] = groups[group]
	}
	w.out.lines = append(w.out.lines, line{text: "-g " + onward})
	eachChain.lines = append(eachChain.lines, line{text: "-g " + onward})
	w.origin.rest[each], w.origin.rest[onward] = eachChain, onwardChain
	next := &writer{w.rendering, w.hook, w.origin, onwardChain}
	return next.rules(onward, behind.rules, nil)
}

// written returns a set whose elements are in the lines themselves.
func (w *writer) written(set string) *ruleset.Set {
	w.origin.sets[set] = w.rs.Sets[set]
	return w.rs.Sets[set]
}

// target returns the iptables target for a matching packet.
func (w *writer) target(rule *ruleset.Rule, behind *rest) (string, error) {
	switch rule.Verdict {
	case ruleset.Continue:
		return "", nil
	case ruleset.Accept:
		return accepted, nil
	case ruleset.Drop:
		return dropped, nil
	case ruleset.Return:
		if behind != nil && behind.name != "" {
			return "-g " + behind.name, nil
		}
		return accepted, nil
	case ruleset.Goto:
		return "-g " + chainName(rule.Target), nil
	}
	return "", fmt.Errorf("unknown verdict %v", rule.Verdict)
}
