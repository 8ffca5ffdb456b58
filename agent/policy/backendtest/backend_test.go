// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/enforce"
)

// backend brings rulesets into the kernel.
type backend struct {
	enforce.Backend
	// changes is how many a test makes under traffic: programs take longer than a transaction.
	changes int
	// keepsCounts says that a process goes on with the counters of the one before.
	keepsCounts bool
}

var backends = []backend{{enforce.BackendNFTables, 1200, true}, {enforce.BackendIPTablesNFT, 150, false}, {enforce.BackendIPTablesLegacy, 150, false}}

// forEach runs a test with each backend.
func forEach(t *testing.T, test func(t *testing.T, b backend)) {
	netnstest.Need(t)
	for _, b := range backends {
		if testing.Short() {
			b.changes /= 5
		}
		t.Run(string(b.Backend), func(t *testing.T) { test(t, b) })
	}
}
