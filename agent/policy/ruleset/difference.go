// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"maps"
	"net/netip"
	"strings"
)

// Difference returns the elements that are in only one of two sets. It does not work for Ranges: a
// range may be a part of another range.
func Difference(old, s *Set) (gone, came *Set) {
	gone, came = &Set{Kind: old.Kind, Family: old.Family}, &Set{Kind: s.Kind, Family: s.Family}
	gone.Addresses, came.Addresses = difference(old.Addresses, s.Addresses, netip.Addr.Compare)
	gone.Endpoints, came.Endpoints = difference(old.Endpoints, s.Endpoints, Endpoint.Compare)
	gone.Pairs, came.Pairs = difference(old.Pairs, s.Pairs, Pair.Compare)
	gone.Links, came.Links = difference(old.Links, s.Links, Link.Compare)
	gone.Interfaces, came.Interfaces = difference(old.Interfaces, s.Interfaces, strings.Compare)
	return gone, came
}

func (s *Set) isEmpty() bool {
	return len(s.Addresses)+len(s.Endpoints)+len(s.Pairs)+len(s.Links)+len(s.Interfaces) == 0
}

// difference returns the elements that are in only one of two sorted lists. Most lists differ in
// one place, and == takes less time than compare.
func difference[E comparable](old, list []E, compare func(a, b E) int) (gone, came []E) {
	for len(old) > 0 && len(list) > 0 && old[0] == list[0] {
		old, list = old[1:], list[1:]
	}
	for len(old) > 0 && len(list) > 0 && old[len(old)-1] == list[len(list)-1] {
		old, list = old[:len(old)-1], list[:len(list)-1]
	}
	for len(old) > 0 && len(list) > 0 {
		switch c := compare(old[0], list[0]); {
		case c < 0:
			gone, old = append(gone, old[0]), old[1:]
		case c > 0:
			came, list = append(came, list[0]), list[1:]
		default:
			old, list = old[1:], list[1:]
		}
	}
	return append(gone, old...), append(came, list...)
}

// Additive reports whether a ruleset accepts all packets that an older ruleset accepts. It can tell
// only if nothing but sets changed, as when a peer comes; otherwise it returns false.
func Additive(old, rs *Ruleset) bool {
	if !maps.Equal(old.Maps, rs.Maps) || !maps.Equal(old.Chains, rs.Chains) {
		return false
	}
	grew, shrank := map[string]bool{}, map[string]bool{}
	for name, s := range rs.Sets {
		if before := old.Sets[name]; before != nil && before != s {
			gone, came := Difference(before, s)
			isOther := s.Kind == Ranges || before.Kind != s.Kind
			grew[name], shrank[name] = isOther || !came.isEmpty(), isOther || !gone.isEmpty()
		}
	}
	for _, c := range rs.Chains {
		for i := range c.Rules {
			for _, name := range c.Rules[i].Sets() {
				v := c.Rules[i].Verdict
				if grew[name] && v != Accept || shrank[name] && v != Drop {
					return false
				}
			}
		}
	}
	return true
}
