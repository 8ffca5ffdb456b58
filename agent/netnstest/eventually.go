// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"testing"
	"time"
)

// patience is how long a test waits for what must happen soon, also on a machine
// that has other work.
const patience = 2 * time.Minute

// Eventually calls f until it returns nil. It is for what the kernel or another
// process does without saying when it is done.
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
