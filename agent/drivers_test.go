// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/nettype"
)

// A driver whose method differs from the method of an interface of this package would lose the
// ability without an error.
func TestDriversCan(t *testing.T) {
	got := map[string][]string{}
	for name, d := range nettype.Drivers(nettype.Kernel{}) {
		_, checksPod := d.(podChecker)
		_, checksUplink := d.(uplinkChecker)
		_, ownsLinks := d.(linkOwner)
		_, isOnSegment := d.(onSegment)
		_, isDefended := d.(defended)
		_, advertises := d.(advertiser)
		got[name] = nil
		for ability, can := range map[string]bool{
			"podChecker": checksPod, "uplinkChecker": checksUplink, "linkOwner": ownsLinks, "onSegment": isOnSegment, "defended": isDefended, "advertiser": advertises,
		} {
			if can {
				got[name] = append(got[name], ability)
			}
		}
		slices.Sort(got[name])
	}
	all := []string{"defended", "linkOwner", "onSegment", "podChecker", "uplinkChecker"}
	want := map[string][]string{nettype.Veth: append([]string{"advertiser"}, all...), nettype.Vlan: all, nettype.IPAM: {"onSegment"}, nettype.IPAMCaller: {"onSegment"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
