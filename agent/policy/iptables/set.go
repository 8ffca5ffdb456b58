// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// maxElements is how many elements a set can have; the kernel takes memory only for existing
// elements.
const maxElements = 1 << 20

type set struct {
	kind   string
	family ruleset.Family
	// of is the set of the ruleset; nil if the elements are in members.
	of      *ruleset.Set
	members []string
	rank    rank
}

// elements lists the elements as ipset save prints them, in no order.
func (s *set) elements() []string {
	if s.of == nil {
		return s.members
	}
	return elementsOf(s.of)
}

// since returns the elements that were added and removed since an older set of the name.
func (s *set) since(old *set) (came, went []string) {
	// One change of ranges may change several prefixes.
	if s.of == nil || old.of == nil || s.of.Kind == ruleset.Ranges || old.of.Kind == ruleset.Ranges {
		return difference(old.elements(), s.elements())
	}
	gone, more := ruleset.Difference(old.of, s.of)
	return elementsOf(more), elementsOf(gone)
}

// rank is the order in which sets grow and shrink.
type rank int

const (
	// opens is the rank of a set by which rules let packets pass.
	opens rank = iota
	// closes is the rank of a set by which rules drop, and of a set with the pods of a chain.
	closes
	// leads is the rank of a set with the pods of a group of chains: each pod stays longer in the set
	// of its chain.
	leads
)

func (s *set) create(name string) string {
	family := "inet"
	if s.family == ruleset.IPv6 {
		family = "inet6"
	}
	return fmt.Sprintf("create %s %s family %s maxelem %d\n", name, s.kind, family, maxElements)
}

var kinds = map[ruleset.Kind]string{ruleset.Addresses: "hash:ip", ruleset.Ranges: "hash:net", ruleset.Endpoints: "hash:ip,port", ruleset.Links: "hash:net,iface"}

// elementsOf lists the elements of a set as ipset save prints them, in no order.
func elementsOf(s *ruleset.Set) []string {
	var all []string
	for _, a := range s.Addresses {
		all = append(all, a.String())
	}
	for _, r := range s.Ranges {
		for _, p := range netipx.IPRangeFrom(r.First, r.Last).Prefixes() {
			all = append(all, prefixes(p)...)
		}
	}
	for _, e := range s.Endpoints {
		all = append(all, fmt.Sprintf("%s,%s:%d", e.Address, e.Protocol, e.Port))
	}
	for _, l := range s.Links {
		all = append(all, fmt.Sprintf("%s,%s", l.Address, l.Interface))
	}
	return all
}

// ends returns the two sets of a set of pairs: its sources and its destinations.
func ends(s *ruleset.Set) (sources, destinations *ruleset.Set) {
	sources = &ruleset.Set{Name: s.Name + "/src", Family: s.Family, Kind: ruleset.Addresses}
	destinations = &ruleset.Set{Name: s.Name + "/dst", Family: s.Family, Kind: ruleset.Addresses}
	for _, p := range s.Pairs {
		sources.Addresses, destinations.Addresses = append(sources.Addresses, p.Source), append(destinations.Addresses, p.Destination)
	}
	for _, end := range []*ruleset.Set{sources, destinations} {
		slices.SortFunc(end.Addresses, netip.Addr.Compare)
		end.Addresses = slices.Compact(end.Addresses)
	}
	return sources, destinations
}

// prefixes writes a prefix as ipset does; hash:net has no prefix of length 0, so this becomes two
// prefixes.
func prefixes(p netip.Prefix) []string {
	switch p.Bits() {
	case p.Addr().BitLen():
		return []string{p.Addr().String()}
	case 0:
		upper := p.Addr().AsSlice()
		upper[0] = 0x80
		half, _ := netip.AddrFromSlice(upper)
		return []string{netip.PrefixFrom(p.Addr(), 1).String(), netip.PrefixFrom(half, 1).String()}
	}
	return []string{p.String()}
}

// setsOf returns the sets of a ruleset by their names in the kernel. A set whose objects did not
// change since the last ruleset is the same.
func (n names) setsOf(rs *ruleset.Ruleset, last *ruleset.Ruleset, sets map[string]*set) map[string]*set {
	closing := closingSets(rs)
	all := map[string]*set{}
	for name, s := range rs.Sets {
		if s.Kind == ruleset.Pairs {
			sources, destinations := ends(s)
			for _, end := range []*ruleset.Set{sources, destinations} {
				all[n.set(end.Name)] = &set{kind: kinds[end.Kind], family: end.Family, of: end}
			}
			continue
		}
		kind, kernel := kinds[s.Kind], n.set(name)
		switch same := sets[kernel]; {
		case kind == "":
		case same != nil && last.Sets[name] == s && same.rank == closing[name]:
			all[kernel] = same
		default:
			all[kernel] = &set{kind: kind, family: s.Family, of: s, rank: closing[name]}
		}
	}
	for name, m := range rs.Maps {
		same := last != nil && last.Maps[name] == m
		many := len(targets(m)) > manyChains
		for a, chain := range m.Chains {
			n.enter(all, sets, same, n.members(m, chain), closes, m.Family, a)
			if many {
				n.enter(all, sets, same, n.members(m, groupOf(chain)), leads, m.Family, a)
			}
		}
	}
	return all
}

// enter puts an address into a set of pods; same says that the set has not changed.
func (n names) enter(all, before map[string]*set, same bool, name string, r rank, f ruleset.Family, a netip.Addr) {
	switch {
	case same && before[name] != nil:
		all[name] = before[name]
		return
	case all[name] == nil:
		all[name] = &set{kind: kinds[ruleset.Addresses], family: f, rank: r}
	}
	all[name].members = append(all[name].members, a.String())
}

func targets(m *ruleset.Map) []string { return slices.Compact(slices.Sorted(maps.Values(m.Chains))) }

// closingSets returns the sets by which rules drop.
func closingSets(rs *ruleset.Ruleset) map[string]rank {
	all := map[string]rank{}
	for _, c := range rs.Chains {
		for i := range c.Rules {
			if r := &c.Rules[i]; r.Verdict == ruleset.Drop {
				for _, name := range r.Sets() {
					all[name] = closes
				}
			}
		}
	}
	return all
}

// setChange has the ipset commands before and after the rules change to the new sets.
type setChange struct {
	before, after bytes.Buffer
	// gone are the sets that no rule names after the change.
	gone []string
}

func changeOf(old, want map[string]*set) *setChange {
	c := &setChange{}
	came := map[string][]string{}
	went := map[string][]string{}
	for name, s := range want {
		have := old[name]
		if have == nil {
			c.before.WriteString(s.create(name))
			came[name] = s.elements()
		} else if have != s {
			came[name], went[name] = s.since(have)
		}
	}
	order := func(all map[string][]string, ranks ...rank) []string {
		return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
			return cmp.Or(cmp.Compare(slices.Index(ranks, want[a].rank), slices.Index(ranks, want[b].rank)), cmp.Compare(a, b))
		})
	}
	for _, name := range order(came, closes, leads, opens) {
		commands(&c.before, "add", name, came[name])
	}
	for _, name := range order(went, opens, leads, closes) {
		commands(&c.after, "del", name, went[name])
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if want[name] == nil {
			c.gone = append(c.gone, name)
		}
	}
	return c
}

func commands(b *bytes.Buffer, command, name string, elements []string) {
	for _, e := range elements {
		fmt.Fprintf(b, "%s %s %s\n", command, name, e)
	}
}

// difference returns the elements that are in only one of two lists.
func difference(old, want []string) (came, went []string) {
	had, has := sets.New(old...), sets.New(want...)
	return sets.List(has.Difference(had)), sets.List(had.Difference(has))
}

// parseSets reads the sets with our prefix from the output of ipset save.
func parseSets(saved string) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for text := range strings.Lines(saved) {
		words := strings.Fields(text)
		if len(words) < 3 || !strings.HasPrefix(words[1], SetPrefix) {
			continue
		}
		switch words[0] {
		case "create":
			all[words[1]] = map[string]bool{}
		case "add":
			if all[words[1]] != nil {
				all[words[1]][words[2]] = true
			}
		}
	}
	return all
}
