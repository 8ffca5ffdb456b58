// SPDX-License-Identifier: Apache-2.0

// Package fixedset tests that the pods of a Deployment, and of what is like it, stay
// on the addresses of its set.
package fixedset

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestFixedSet", "TestFixedSetScales", "TestFixedSetWaits", "TestFixedSetNodeLost", "TestFixedSetUnlimited",
		"TestFixedSetIsRead", "TestFixedSetCannotBeRead",
	)
}
