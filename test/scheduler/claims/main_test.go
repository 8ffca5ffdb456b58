// SPDX-License-Identifier: Apache-2.0

// Package claims tests IPClaims.
package claims

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestClaims",
	)
}
