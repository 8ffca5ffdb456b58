// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"testing"

	"github.com/berth-dev/berth/agent/state"
)

// The pod's next container gets the port that the node chose for the one before, unless another pod
// or another port of the pod has it.
func TestHadBefore(t *testing.T) {
	wanted := tcp(0, 81, true)
	old := containerOf("web", "old", state.Added, tcp(20001, 81, true))
	for name, c := range map[string]struct {
		record *state.Container
		others []*state.Container
		want   uint16
	}{
		"free":                      {containerOf("web", "new", state.Adding, wanted), []*state.Container{old}, 20001},
		"no older container":        {containerOf("web", "new", state.Adding, wanted), nil, 0},
		"another pod's":             {containerOf("db", "new", state.Adding, wanted), []*state.Container{old}, 0},
		"another pod has it":        {containerOf("web", "new", state.Adding, wanted), []*state.Container{old, containerOf("db", "c", state.Added, tcp(20001, 1, false))}, 0},
		"another port of it has it": {containerOf("web", "new", state.Adding, wanted, tcp(20001, 8, false)), []*state.Container{old}, 0},
		"the number was given":      {containerOf("web", "new", state.Adding, wanted), []*state.Container{containerOf("web", "old", state.Added, tcp(20001, 81, false))}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := hadBefore(c.record, c.others, wanted, func(number uint16) bool { return isTaken(c.record, c.others, wanted, number) })
			if got != c.want {
				t.Errorf("hadBefore() = %d, want %d", got, c.want)
			}
		})
	}
}
