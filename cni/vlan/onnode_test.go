// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"testing"

	"github.com/berth-dev/berth/cni/veth/wire"
)

// A node that has the address of a pod itself carries it to no pod of any type, and says so of pods
// that run.
func TestAddressOnNode(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		p, d := w.pod("a", "10.0.70.5"), w.drivers[w.nodeA]
		for _, runs := range []bool{false, true} {
			if runs {
				w.setup(w.nodeA, p)
			}
			w.nodeA.IP("addr", "add", "10.0.70.5/32", "dev", "lo")
			w.nodeA.Run(func() error {
				do := func() error { _, err := d.Setup(p.spec); return err }
				if runs {
					do = func() error { return d.CheckNode(p.spec) }
				}
				if err := do(); !errors.Is(err, wire.ErrOnNode) {
					t.Errorf("the pod runs: %t: %v, want %v", runs, err, wire.ErrOnNode)
				}
				return d.Teardown(p.spec)
			})
			w.nodeA.IP("addr", "del", "10.0.70.5/32", "dev", "lo")
		}
	})
}
