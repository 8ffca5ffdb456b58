// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// surveyDriver counts surveys and checks of single interfaces; it lacks a piece of one container.
type surveyDriver struct {
	fakeDriver

	surveys, checks *atomic.Int32
	broken          string
}

func (s surveyDriver) Survey() func(*nettype.Interface) error {
	s.surveys.Add(1)
	return s.lacks
}

func (s surveyDriver) CheckNode(i *nettype.Interface) error {
	s.checks.Add(1)
	return s.lacks(i)
}

func (s surveyDriver) lacks(i *nettype.Interface) error {
	if i.ContainerID == s.broken {
		return errors.New("the route is missing")
	}
	return nil
}

// At a start the comparison of all pods reads the kernel twice, and once more for each pod that
// lacks something.
func TestSurvey(t *testing.T) {
	for name, c := range map[string]struct {
		broken string
		phase  state.Phase
		checks int32
		log    []string
	}{
		"all agree":         {"", state.Added, 0, nil},
		"one lacks a route": {"c7", state.Added, 5, []string{"repair c7", "announce c7"}},
		"one is withdrawn":  {"", state.Withdrawn, 0, []string{"withdraw c7"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				d := surveyDriver{fakeDriver{w}, &atomic.Int32{}, &atomic.Int32{}, c.broken}
				a.Drivers = Drivers{nettype.Veth: d}
				for i := range 50 {
					phase := state.Added
					if i == 7 {
						phase = c.phase
					}
					put(t, a, fmt.Sprint("c", i), phase, "/proc/self/ns/net", w.addrs)
				}
				run(t, a)
				// One tells the answerer what the node answers for.
				if d.surveys.Load() != 2 || d.checks.Load() != c.checks {
					t.Errorf("%d surveys and %d checks of 50 containers, want 2 and %d", d.surveys.Load(), d.checks.Load(), c.checks)
				}
				if diff := cmp.Diff(c.log, w.log); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				outcomes := a.reconciler.Outcomes()
				for i := range 50 {
					if key := (state.Key{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}); outcomes[key].Checked.IsZero() {
						t.Errorf("container %s was not compared", key.ContainerID)
					}
				}
			})
		})
	}
}
