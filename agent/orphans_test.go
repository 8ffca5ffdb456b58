// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/nettype"
)

// Links without a record stay at GC where the runtime has their container, whichever of its
// interfaces they are.
func TestOrphansOfGC(t *testing.T) {
	a, w := newAgent(t)
	// The fake's link of container c is bthc.
	w.links = []nettype.Link{{Name: "bthfirst"}, {Name: "bthfurther"}, {Name: "bthother"}, {Name: "bthended"}}
	w.podEnds = map[string]string{"bthfurther": "net1", "bthother": "net1"}
	got, err := a.orphans.list([]types.GCAttachment{{ContainerID: "first", IfName: "eth0"}, {ContainerID: "further", IfName: "unlike"}})
	must(t, err)
	var names []string
	for _, o := range got {
		names = append(names, o.Name)
	}
	if want := []string{"bthother", "bthended"}; !slices.Equal(names, want) {
		t.Errorf("orphans: %s, want %s", strings.Join(names, " "), want)
	}
}
