// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"testing"
	"time"
)

// patience is how long Eventually waits, also on a busy machine.
const patience = 2 * time.Minute

// Eventually calls f until it returns nil. It is for changes by the kernel or another
// process, which do not report when they are done.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatal(err)
		case <-again.C:
		}
	}
}
