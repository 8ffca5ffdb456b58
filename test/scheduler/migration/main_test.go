// SPDX-License-Identifier: Apache-2.0

// Package migration tests the import from Galaxy, and backups and restores.
package migration

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestImportGalaxyAllOrNothing",
	)
}
