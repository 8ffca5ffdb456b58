// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Each node learns what changes for it: which addresses it carries, and of which carrier it is
// standby.
func TestDecisions(t *testing.T) {
	d := decisions{of: map[string]decision{}, on: map[string]map[string]bool{}}
	address := v1alpha1.AssignedAddress{Address: "10.0.70.200", Use: v1alpha1.UseEgress}
	more := address
	more.Blocks = []v1alpha1.LedBlock{{FirstPort: 1024}}
	for _, step := range []struct {
		what    string
		address v1alpha1.AssignedAddress
		nodes   string
		standby string
		changed string
	}{
		{"the first", address, "a", "", "a"},
		{"a standby", address, "a", "b", "b"},
		{"the same", address, "a", "b", ""},
		{"other blocks", more, "a", "b", "a b"},
		{"another standby", more, "a", "c", "b c"},
		{"the standby carries, and the last one still", more, "a c", "", "c"},
		{"alone", more, "c", "b", "a b"},
		{"another carrier of the same standby", more, "a", "b", "a b c"},
		{"nobody", address, "", "", "a b"},
	} {
		changed := d.set(step.address, strings.Fields(step.nodes), step.standby)
		slices.Sort(changed)
		if got := strings.Join(changed, " "); got != step.changed {
			t.Errorf("%s: changes for %s, want %s", step.what, got, step.changed)
		}
		for _, node := range []string{"a", "b", "c"} {
			addresses, standby, known := d.decided(node)
			carries, stands := "", ""
			if slices.Contains(strings.Fields(step.nodes), node) {
				carries = address.Address
			}
			if node == step.standby {
				stands = fmt.Sprintf("%s of %s", address.Address, step.nodes)
			}
			got, beside := "", ""
			for _, a := range addresses {
				got += a.Address
			}
			for _, s := range standby {
				beside += s.Address + " of " + s.Carrier
			}
			if got != carries || beside != stands || !known(address.Address) {
				t.Errorf("%s: %s carries %q and is standby of %q, want %q, %q", step.what, node, got, beside, carries, stands)
			}
		}
	}
}

// The word of a node counts where it is standby, and of the carrier that it is to watch.
func TestHearsSilence(t *testing.T) {
	const address = "10.0.70.200"
	a := &v1alpha1.NodeAssignment{}
	a.Name = "b"
	a.Status.Silent = []v1alpha1.SilentAddress{{Address: address, Carrier: "a"}, {Address: "10.0.70.201", Carrier: "a"}}
	before := a.DeepCopy()
	if a.HearsSilence(address, "a") || len(changedCarriers(nil, a)) > 0 {
		t.Error("a node is believed that is not standby")
	}
	a.Spec.Standby = []v1alpha1.StandbyAddress{{Address: address, Carrier: "a"}}
	if !a.HearsSilence(address, "a") || a.HearsSilence("10.0.70.201", "a") || a.HearsSilence(address, "c") {
		t.Error("it is not believed, or of more than it watches")
	}
	if changed := changedCarriers(before, a); !slices.Equal(changed, []string{address}) {
		t.Errorf("its word is about %v", changed)
	}
	a.Spec.Standby[0].Carrier = "c"
	if a.HearsSilence(address, "c") || a.HearsSilence(address, "a") {
		t.Error("its word about an earlier carrier counts")
	}
}
