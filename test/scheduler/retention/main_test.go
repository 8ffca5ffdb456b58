// SPDX-License-Identifier: Apache-2.0

// Package retention tests what becomes of an address when its pod or workload ends:
// the matrix of all kinds of workloads, events and policies, and what is special.
package retention

import (
	"testing"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) { simulation.Main(m) }

// world is the simulation, with what these tests do in it.
type world struct{ *simulation.World }

func newWorld(t *testing.T, options lab.ControlPlaneOptions) *world {
	t.Helper()
	return &world{simulation.New(t, simulation.Options{ControlPlaneOptions: options})}
}

// On is the same world for a subtest.
func (w *world) On(t *testing.T) *world { return &world{w.World.On(t)} }
