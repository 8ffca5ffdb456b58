// SPDX-License-Identifier: Apache-2.0

package carriers

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A node that does not confirm is passed over after a while, and for a while; one that does never
// is.
func TestSilences(t *testing.T) {
	now, s := time.Unix(1_700_000_000, 0), Silences{}
	a, b := v1alpha1.Carrier{Node: "a", Assigned: true}, v1alpha1.Carrier{Node: "b", Assigned: true, Carried: true}
	carried := v1alpha1.Carrier{Node: "a", Assigned: true, Carried: true}
	silent := carried
	silent.SilentBy = "b"
	refuses := v1alpha1.Carrier{Node: "a", Assigned: true, Refused: v1alpha1.RefusedAddress{Reason: v1alpha1.RefusedNotPossible, Message: "kube-proxy has the mode ipvs"}}
	finds := v1alpha1.Carrier{Node: "a", Assigned: true, Refused: v1alpha1.RefusedAddress{Reason: v1alpha1.RefusedInUse, Message: "another host has it"}}
	for _, step := range []struct {
		what     string
		after    time.Duration
		carriers []v1alpha1.Carrier
		over     []string
		again    time.Duration
	}{
		{"the standby hears no answer", 0, []v1alpha1.Carrier{silent}, []string{"a"}, passedOver - patience},
		{"it says that it carries the address", time.Minute, []v1alpha1.Carrier{carried, b}, []string{"a"}, passedOver - patience - time.Minute},
		{"it may again", passedOver - patience - time.Minute, []v1alpha1.Carrier{b}, nil, 0},
		{"asked", 0, []v1alpha1.Carrier{a, b}, nil, patience},
		{"not yet", 20 * time.Second, []v1alpha1.Carrier{a, b}, nil, 10 * time.Second},
		{"too long", 10 * time.Second, []v1alpha1.Carrier{a, b}, []string{"a"}, passedOver - patience},
		{"another carries it", time.Minute, []v1alpha1.Carrier{b}, []string{"a"}, passedOver - patience - time.Minute},
		{"tried again", 10 * time.Minute, []v1alpha1.Carrier{b}, nil, 0},
		{"asked again", 0, []v1alpha1.Carrier{a}, nil, patience},
		{"confirms", 29 * time.Second, []v1alpha1.Carrier{{Node: "a", Assigned: true, Carried: true}}, nil, 0},
		{"asked a third time", 0, []v1alpha1.Carrier{a}, nil, patience},
		{"another was found before", 5 * time.Second, nil, nil, 0},
		{"refuses", 0, []v1alpha1.Carrier{refuses}, []string{"a"}, passedOver - patience},
		{"refuses still", 5 * time.Minute, []v1alpha1.Carrier{refuses}, []string{"a"}, passedOver - patience - 5*time.Minute},
		{"asked after a refusal", passedOver - patience - 5*time.Minute, []v1alpha1.Carrier{a}, nil, 0},
		{"has no answer", 0, []v1alpha1.Carrier{a}, nil, patience},
		{"refuses at last", time.Second, []v1alpha1.Carrier{refuses}, []string{"a"}, passedOver - patience},
		{"finds another host", time.Second, []v1alpha1.Carrier{finds}, nil, 0},
		{"finds it for long", time.Hour, []v1alpha1.Carrier{finds}, nil, 0},
	} {
		now = now.Add(step.after)
		if over, again := s.Look(step.carriers, now); !slices.Equal(over, step.over) || again != step.again {
			t.Errorf("%s: passes over %v, looks again after %v; want %v, %v", step.what, over, again, step.over, step.again)
		}
	}
}
