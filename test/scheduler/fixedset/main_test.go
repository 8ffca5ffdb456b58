// SPDX-License-Identifier: Apache-2.0

// Package fixedset tests that the pods of a Deployment, and of what is like it, stay
// on the addresses of its set.
package fixedset

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
