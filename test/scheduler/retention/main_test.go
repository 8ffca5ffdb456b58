// SPDX-License-Identifier: Apache-2.0

// Package retention tests what becomes of an address when its pod or workload ends:
// the matrix of all kinds of workloads, events and policies, and what is special.
package retention

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestMatrix", "TestMatrixIsComplete", "TestControllerKilled", "TestControllerBehind",
		"TestLastNode", "TestLastNodeOfTheSameNamespace", "TestDeletedAddressRests", "TestDeletedAddressRestsWithoutController",
	)
}
