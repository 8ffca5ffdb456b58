// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// status looks for the admission policies of the manifests.
func TestAdmissionPolicies(t *testing.T) {
	files, err := filepath.Glob("../../../manifests/admission/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no admission policies: %v", err)
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?m)^kind: ValidatingAdmissionPolicy\nmetadata:\n  name: (\S+)`).FindAllSubmatch(text, -1) {
			names = append(names, string(match[1]))
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff(names, policies); diff != "" {
		t.Errorf("the admission policies (-manifests +status):\n%s", diff)
	}
}
