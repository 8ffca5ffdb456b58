// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

type rendering struct {
	names
	rs     *ruleset.Ruleset
	family ruleset.Family
	// lines are the rules by the names of chains in the kernel.
	lines map[string][]line
}

func (n names) render(rs *ruleset.Ruleset, f ruleset.Family) (*chains, error) {
	r := &rendering{names: n, rs: rs, family: f, lines: map[string][]line{}}
	all := &chains{lines: r.lines, entries: map[string][]string{}}
	for _, c := range rs.Bases() {
		if err := r.chain(c.Name); err != nil {
			return nil, err
		}
		hook := hooks[c.Hook]
		all.entries[hook] = append(all.entries[hook], join(comment("Berth: network policies"), "-j "+chainName(c.Name)))
	}
	return all, nil
}

// chain writes a chain and the chains to which it leads, unless it is written.
func (r *rendering) chain(name string) error {
	if _, known := r.lines[chainName(name)]; known {
		return nil
	}
	of := r.rs.Chains[name]
	if of == nil {
		return fmt.Errorf("render the ruleset: there is no chain %s", name)
	}
	if err := r.writer(of.Hook, chainName(name)).rules(name, of.Rules, nil); err != nil {
		return fmt.Errorf("render chain %s: %w", name, err)
	}
	return nil
}

func (r *rendering) writer(hook ruleset.Hook, chain string) *writer {
	if r.lines[chain] == nil {
		r.lines[chain] = []line{}
	}
	return &writer{r, hook, chain}
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

type writer struct {
	*rendering
	hook ruleset.Hook
	to   string
}

func (w *writer) add(text, counter string) {
	w.lines[w.to] = append(w.lines[w.to], line{text, counter})
}

func (w *writer) goTo(chain string) { w.add("-g "+chain, "") }

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
	if target == nil || !slices.Equal(w.conditions(rule), []string{""}) {
		return false, fmt.Errorf("cannot jump to %q under conditions, or it is missing", rule.Target)
	}
	if !slices.ContainsFunc(target.Rules, func(r ruleset.Rule) bool { return r.Verdict == ruleset.Return && w.sees(&r) }) {
		return false, w.rules(rule.Target, target.Rules, &rest{})
	}
	to := restName(behind.name + " " + rule.Target)
	if err := w.rules(rule.Target, target.Rules, &rest{name: to}); err != nil {
		return false, err
	}
	w.goTo(to)
	return true, w.writer(w.hook, to).rules(to, behind.rules, nil)
}

// pairs writes a rule that accepts pairs, and the rules after it. A first chain gets only packets
// with a source and a destination of some pair. It leads packets that meet the rule's other
// conditions to a second chain, which has a rule for each pair. A rule for each interface with each
// pair would be too many.
func (w *writer) pairs(rule *ruleset.Rule, behind *rest) error {
	sources, destinations := ends(w.rs.Sets[rule.Pair])
	family, onward := kindOf(rule.Pair)[1:], restName(behind.name)
	first, second := ChainPrefix+"p"+family+"-"+hash("pairs "+behind.name), ChainPrefix+"q"+family+"-"+hash("pairs "+behind.name)
	w.add(fmt.Sprintf("-m set --match-set %s src -m set --match-set %s dst -g %s", w.set(sources.Name), w.set(destinations.Name), first), "")
	w.goTo(onward)
	others, pairs := *rule, ruleset.Rule{Family: rule.Family, Pair: rule.Pair, Verdict: rule.Verdict, Counter: rule.Counter, Origin: rule.Origin}
	others.Pair = ""
	next := w.writer(w.hook, first)
	for _, conditions := range w.conditions(&others) {
		next.add(join(conditions, "-g "+second), "")
	}
	next.goTo(onward)
	next = w.writer(w.hook, second)
	if err := next.rule(&pairs, nil); err != nil {
		return err
	}
	next.goTo(onward)
	return w.writer(w.hook, onward).rules(onward, behind.rules, nil)
}

// rule writes a rule without a jump or map.
func (w *writer) rule(rule *ruleset.Rule, behind *rest) error {
	say := comment(rule.Comment())
	target, err := w.target(rule, behind)
	if err != nil {
		return err
	}
	for _, conditions := range w.conditions(rule) {
		w.add(join(conditions, say, target), rule.Counter)
	}
	if rule.Established {
		w.add(join(ended, comment("connections that were ended"), dropped), "")
	}
	if rule.Verdict == ruleset.Goto {
		return w.chain(rule.Target)
	}
	return nil
}

// dispatch writes the rules that lead packets to the chains of a map, one for each chain, and then
// the rules after them. With many chains it writes a rule for each group, which leads to a rule for
// each chain of the group. While a pod moves to another chain, a packet may match a group but none
// of its chains; it continues with a rule for each chain.
func (w *writer) dispatch(m *ruleset.Map, field string, behind *rest) error {
	lead := func(out *writer, of, to string) {
		out.add(fmt.Sprintf("-m set --match-set %s %s -g %s", w.members(m, of), field, to), "")
	}
	all := targets(m)
	for _, target := range all {
		if err := w.chain(target); err != nil {
			return err
		}
	}
	if len(all) <= manyChains {
		for _, target := range all {
			lead(w, target, chainName(target))
		}
		return w.rules(behind.name, behind.rules, nil)
	}
	each, onward := w.writer(w.hook, restName("each "+behind.name+" "+m.Name)), restName(behind.name+" "+m.Name)
	groups := map[string]*writer{}
	for _, target := range all {
		group := groupOf(target)
		if groups[group] == nil {
			groups[group] = w.writer(w.hook, groupChain(behind.name, m, group))
		}
		lead(groups[group], target, chainName(target))
		lead(each, target, chainName(target))
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		lead(w, group, groups[group].to)
		groups[group].goTo(each.to)
	}
	w.goTo(onward)
	each.goTo(onward)
	return w.writer(w.hook, onward).rules(onward, behind.rules, nil)
}

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
