// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The API server in memory, on which unit tests rely, does what a real one does.
func TestContract(t *testing.T) {
	t.Parallel()
	ipamtest.Contract(t, simulation.New(t, lab.ControlPlaneOptions{}).Berth)
}
