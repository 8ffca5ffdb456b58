// SPDX-License-Identifier: Apache-2.0

// Package faults tests programs that are killed, paused, late, or have rivals.
package faults

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestSchedulerKilled", "TestLateWatch",
	)
}
