// SPDX-License-Identifier: Apache-2.0

package chromium

import (
	"os/exec"
	"strings"
	"testing"
)

// Debian's Chromium runs, and says that it is one.
func TestProgram(t *testing.T) {
	program, err := Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Chromium") {
		t.Errorf("%v: %s", err, out)
	}
}
