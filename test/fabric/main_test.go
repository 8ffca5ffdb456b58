// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"os"
	"testing"

	"github.com/berth-dev/berth/test/short"
)

func TestMain(m *testing.M) {
	short.Tests() // none: these are routers and routing daemons of Debian
	os.Exit(m.Run())
}
