// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
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
