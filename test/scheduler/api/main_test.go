// SPDX-License-Identifier: Apache-2.0

// Package api tests what users write and read of Berth, and who may: the validation
// and the columns of its objects, its permissions and admission policies, its
// metrics, and the answers to bad input.
package api

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestContract", "TestPermissions", "TestPoolValidation", "TestFloatingIPValidation",
	)
}
