// SPDX-License-Identifier: Apache-2.0

// Package kubectl tests the kubectl plugin on a real API server, as users with the rights of
// the examples.
package kubectl

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) { simulation.Main(m) }
