// SPDX-License-Identifier: Apache-2.0

package hostservices

import (
	"os"
	"testing"

	"github.com/berth-dev/berth/test/short"
)

func TestMain(m *testing.M) {
	short.Tests("TestFirewallPage")
	os.Exit(m.Run())
}
