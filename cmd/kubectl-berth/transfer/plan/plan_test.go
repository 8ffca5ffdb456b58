// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"testing"
)

func TestPlan(t *testing.T) {
	of := func(actions ...Action) (items []Item) {
		for _, action := range actions {
			items = append(items, Item{Action: action, Kind: "FloatingIP"})
		}
		return items
	}
	for _, test := range []struct {
		name      string
		items     []Item
		undecided int
		writes    bool
		count     map[Action]int // of FloatingIPs
	}{
		{"empty", nil, 0, false, map[Action]int{}},
		{"nothing to do", of(Same, Differs, Stale, Same), 0, false, map[Action]int{Same: 2, Differs: 1, Stale: 1}},
		{"a new object", of(Same, Create), 0, true, map[Action]int{Same: 1, Create: 1}},
		{"a changed object", of(Update, Same), 0, true, map[Action]int{Same: 1, Update: 1}},
		{"open questions", of(Skip, Conflict, Same), 2, false, map[Action]int{Same: 1, Skip: 1, Conflict: 1}},
		{"an open question about what is there", []Item{{Action: Same, Kind: "FloatingIP", Decide: true}}, 1, false, map[Action]int{Same: 1}},
		{"another kind", []Item{{Action: Create, Kind: "IPPool"}}, 0, true, map[Action]int{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &Plan{Items: test.items}
			if got := p.Undecided(); got != test.undecided {
				t.Errorf("%d are undecided, want %d", got, test.undecided)
			}
			if got := p.Writes(); got != test.writes {
				t.Errorf("it writes: %v, want %v", got, test.writes)
			}
			if got := p.Count("FloatingIP"); !maps.Equal(got, test.count) {
				t.Errorf("the counts are %v, want %v", got, test.count)
			}
		})
	}
}
