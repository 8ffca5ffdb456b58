// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"slices"
	"testing"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

func tcp(number, containerPort uint16, random bool) state.HostPort {
	return state.HostPort{HostPort: api.HostPort{HostPort: number, ContainerPort: containerPort, Protocol: "TCP"}, Random: random}
}

func containerOf(pod, id string, phase state.Phase, ports ...state.HostPort) *state.Container {
	return &state.Container{ContainerID: id, Pod: api.Pod{Namespace: "ns", Name: pod, UID: pod}, Phase: phase, HostPorts: ports}
}

// A port has one pod: containers of other pods hold it while they are added or on the way, and
// older containers of the same pod give it up.
func TestHolders(t *testing.T) {
	record := containerOf("web", "new", state.Adding, tcp(80, 8080, false))
	for name, c := range map[string]struct {
		other  *state.Container
		holder bool
		older  []state.Key
	}{
		"another port":                {other: containerOf("db", "c", state.Added, tcp(81, 8080, false))},
		"another pod":                 {other: containerOf("db", "c", state.Added, tcp(80, 1, false)), holder: true},
		"another pod's ADD":           {other: containerOf("db", "c", state.Adding, tcp(80, 1, false)), holder: true},
		"another pod that is deleted": {other: containerOf("db", "c", state.Deleting, tcp(80, 1, false))},
		"another pod that lost it":    {other: containerOf("db", "c", state.Withdrawn, tcp(80, 1, false))},
		"the pod's ADD":               {other: containerOf("web", "old", state.Adding, tcp(80, 8080, false)), older: []state.Key{{ContainerID: "old"}}},
		"the pod":                     {other: containerOf("web", "old", state.Added, tcp(80, 8080, false))},
		"a lost record":               {other: containerOf("db", "", state.Added, tcp(80, 1, true)), holder: true},
	} {
		t.Run(name, func(t *testing.T) {
			holder, older := holders(record, []*state.Container{c.other})
			if (holder != nil) != c.holder || !slices.Equal(older, c.older) {
				t.Errorf("holders() = %+v, %v", holder, older)
			}
			if holder != nil && (holder.Pod != c.other.Pod || (holder.Record == nil) != (c.other.ContainerID == "")) {
				t.Errorf("the holder is %+v", holder)
			}
		})
	}
}
