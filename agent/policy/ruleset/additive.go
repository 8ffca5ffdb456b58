// SPDX-License-Identifier: Apache-2.0

package ruleset

import "maps"

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
