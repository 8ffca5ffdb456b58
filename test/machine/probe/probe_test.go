// SPDX-License-Identifier: Apache-2.0

// Package probe has tests that end in every way, by which the tests of package machine
// see that it tells them apart. They are skipped outside a machine.
package probe

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func inMachine(t *testing.T) {
	if os.Getenv("BERTH_MACHINE_PROBE") == "" {
		t.Skip("runs in an emulated machine only")
	}
}

func TestPass(t *testing.T) {
	inMachine(t)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("kernel %s\n", unix.ByteSliceToString(name.Release[:]))
}

func TestFail(t *testing.T) {
	inMachine(t)
	t.Run("part", func(t *testing.T) { t.Error("fails on purpose") })
}

func TestSkip(t *testing.T) {
	inMachine(t)
	t.Skip("skipped on purpose")
}

func TestPanic(t *testing.T) {
	inMachine(t)
	panic("on purpose")
}

func TestHang(t *testing.T) {
	inMachine(t)
	fmt.Fprintln(os.Stderr, "hangs on purpose")
	<-time.After(24 * time.Hour)
}
