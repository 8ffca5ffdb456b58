// SPDX-License-Identifier: Apache-2.0

package berth

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// TestVersions holds the modules whose programs and tests share packages to one version of each
// module that they require: Go compiles a package once more for each set of versions of all that it
// imports. The module test/flannel and those of test/kubernetes exist for other versions.
func TestVersions(t *testing.T) {
	type version struct{ number, folder string }
	seen := map[string]version{}
	for _, folder := range []string{".", "test", "test/dns", "test/helm"} {
		for path, number := range requires(t, folder) {
			if other, ok := seen[path]; ok && other.number != number {
				t.Errorf("%s is %s in %s/go.mod and %s in %s/go.mod, want one version", path, other.number, other.folder, number, folder)
			}
			seen[path] = version{number, folder}
		}
	}
}

// requires returns the version of each module that the go.mod in a folder requires, by its path.
func requires(t *testing.T, folder string) map[string]string {
	t.Helper()
	command := exec.Command("go", "mod", "edit", "-json")
	command.Dir = folder
	text, err := command.Output()
	if err != nil {
		t.Fatalf("read %s/go.mod: %v", folder, err)
	}
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatalf("read %s/go.mod: %v", folder, err)
	}
	versions := map[string]string{}
	for _, r := range file.Require {
		versions[r.Path] = r.Version
	}
	return versions
}
