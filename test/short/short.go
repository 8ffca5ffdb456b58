// SPDX-License-Identifier: Apache-2.0

// Package short selects the tests that go test -short, and so make test, runs in a package whose
// tests take minutes: each package has the list beside its tests, in its TestMain.
package short

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

// Tests has go test -short run the named tests alone, unless -run names others. TestMain calls it
// before m.Run. Without -short all tests of the package run.
func Tests(names ...string) {
	if !flag.Parsed() {
		flag.Parse()
	}
	run := flag.Lookup("test.run")
	if !testing.Short() || run.Value.String() != "" {
		return
	}
	if err := run.Value.Set("^(" + strings.Join(names, "|") + ")$"); err != nil {
		panic(fmt.Sprintf("set -run to the tests of -short: %v", err))
	}
}
