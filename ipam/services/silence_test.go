// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/assignments"
)

// A node that does not confirm is passed over after a while, and for a while; one that does never is.
func TestSilences(t *testing.T) {
	now, s := time.Unix(1_700_000_000, 0), silences{}
	a, b := assignments.Carrier{Node: "a", Assigned: true}, assignments.Carrier{Node: "b", Assigned: true, Carried: true}
	for _, step := range []struct {
		what     string
		after    time.Duration
		carriers []assignments.Carrier
		over     []string
		again    time.Duration
	}{
		{"asked", 0, []assignments.Carrier{a, b}, nil, patience},
		{"not yet", 20 * time.Second, []assignments.Carrier{a, b}, nil, 10 * time.Second},
		{"too long", 10 * time.Second, []assignments.Carrier{a, b}, []string{"a"}, passedOver - patience},
		{"another carries it", time.Minute, []assignments.Carrier{b}, []string{"a"}, passedOver - patience - time.Minute},
		{"tried again", 10 * time.Minute, []assignments.Carrier{b}, nil, 0},
		{"asked again", 0, []assignments.Carrier{a}, nil, patience},
		{"confirms", 29 * time.Second, []assignments.Carrier{{Node: "a", Assigned: true, Carried: true}}, nil, 0},
		{"asked a third time", 0, []assignments.Carrier{a}, nil, patience},
		{"another was found before", 5 * time.Second, nil, nil, 0},
	} {
		now = now.Add(step.after)
		if over, again := s.look(step.carriers, now); !slices.Equal(over, step.over) || again != step.again {
			t.Errorf("%s: passes over %v, looks again after %v; want %v, %v", step.what, over, again, step.over, step.again)
		}
	}
}
