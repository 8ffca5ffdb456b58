// SPDX-License-Identifier: Apache-2.0

package carriers

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
)

// A node that does not confirm is passed over after a while, and for a while; one that does never
// is.
func TestSilences(t *testing.T) {
	now, s := time.Unix(1_700_000_000, 0), Silences{}
	a, b := assignments.Carrier{Node: "a", Assigned: true}, assignments.Carrier{Node: "b", Assigned: true, Carried: true}
	refuses := assignments.Carrier{Node: "a", Assigned: true, Refused: v1alpha1.RefusedAddress{Reason: v1alpha1.RefusedNotPossible, Message: "kube-proxy has the mode ipvs"}}
	finds := assignments.Carrier{Node: "a", Assigned: true, Refused: v1alpha1.RefusedAddress{Reason: v1alpha1.RefusedInUse, Message: "another host has it"}}
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
		{"refuses", 0, []assignments.Carrier{refuses}, []string{"a"}, passedOver - patience},
		{"refuses still", 5 * time.Minute, []assignments.Carrier{refuses}, []string{"a"}, passedOver - patience - 5*time.Minute},
		{"asked after a refusal", passedOver - patience - 5*time.Minute, []assignments.Carrier{a}, nil, 0},
		{"has no answer", 0, []assignments.Carrier{a}, nil, patience},
		{"refuses at last", time.Second, []assignments.Carrier{refuses}, []string{"a"}, passedOver - patience},
		{"finds another host", time.Second, []assignments.Carrier{finds}, nil, 0},
		{"finds it for long", time.Hour, []assignments.Carrier{finds}, nil, 0},
	} {
		now = now.Add(step.after)
		if over, again := s.Look(step.carriers, now); !slices.Equal(over, step.over) || again != step.again {
			t.Errorf("%s: passes over %v, looks again after %v; want %v, %v", step.what, over, again, step.over, step.again)
		}
	}
}
