// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`([a-z0-9/-]+)\\.(Test[A-Za-z0-9]+)`")
	shownBy   = regexp.MustCompile(`(?m)^\|.*\| shown by \|\n\|[-|]+\|\n((?:\|.*\n)+)`)
)

// A test that a page names is in that folder, and each row of a table that has what shows something
// names one.
func TestNamedTests(t *testing.T) {
	names := 0
	for path := range pages(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, named := range namedTest.FindAllStringSubmatch(string(content), -1) {
			names++
			if !hasTest(t, named[1], named[2]) {
				t.Errorf("%s: there is no %s in %s", path, named[2], named[1])
			}
		}
		for _, table := range shownBy.FindAllStringSubmatch(string(content), -1) {
			for row := range strings.Lines(table[1]) {
				if !namedTest.MatchString(row) {
					t.Errorf("%s: no test shows: %s", path, row)
				}
			}
		}
	}
	if names < 40 {
		t.Errorf("found %d names of tests only", names)
	}
}

func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
