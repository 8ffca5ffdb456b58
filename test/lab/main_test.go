// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/short"
)

// ownMounts is in the environment of a test process that has a mount namespace of its own.
const ownMounts = "BERTH_TEST_OWN_MOUNTS"

// TestMain gives the tests a mount namespace of their own, in which nothing but the labs of the
// tests changes mounts: other labs of the machine come and go meanwhile. make test runs those that
// need no lab: that a lab comes and goes, test/e2e sees.
func TestMain(m *testing.M) {
	short.Tests("TestParseStat", "TestProcessAlive", "TestWeight", "TestCgroupMount", "TestHostBatch",
		"TestHostLinksAreDistinct", "TestOptions", "TestInitScriptMountsBeforeSharing", "TestOthersMounts")
	if os.Geteuid() == 0 && os.Getenv(ownMounts) == "" {
		fmt.Fprintln(os.Stderr, "enter a mount namespace:", enterOwnMounts())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// enterOwnMounts starts the test process again in a new mount namespace, from which nothing
// propagates. It returns only if it fails.
func enterOwnMounts() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make the namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make its mounts private: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the test program: %w", err)
	}
	return unix.Exec(self, os.Args, append(os.Environ(), ownMounts+"=1"))
}
