// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// Each entry of the list can be tried: its page, its error and its test are there.
func TestList(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range all() {
		if seen[p.Promise] {
			t.Errorf("%q is there twice", p.Promise)
		}
		seen[p.Promise] = true
		page, _, _ := strings.Cut(p.Page, "#")
		if _, err := os.Stat(filepath.Join(root, page)); err != nil {
			t.Errorf("%q: %v", p.Promise, err)
		}
		text, err := os.ReadFile(filepath.Join(root, p.File))
		if err != nil {
			t.Errorf("%q: %v", p.Promise, err)
		}
		if n := strings.Count(string(text), p.Old); n != 1 || p.Old == p.New {
			t.Errorf("%q: %s has Old %d times, want it once, and New another text", p.Promise, p.File, n)
		}
		if !hasTest(t, p) {
			t.Errorf("%q: package %s has no test %s", p.Promise, p.Package, p.Test)
		}
	}
	if len(seen) < 60 {
		t.Errorf("%d promises, want 60 at least", len(seen))
	}
}

func hasTest(t *testing.T, p promise) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, p.Package, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(p.Test, "/")
	declaration := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(t \*testing\.T\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if declaration.Match(text) {
			return true
		}
	}
	return false
}

// go test -short runs the tests of a package's list, and where it has none all.
func TestRunsInShort(t *testing.T) {
	dir := t.TempDir()
	if !runsInShort(dir, "TestA") {
		t.Error("without a list TestA does not run")
	}
	const list = "package x\n\nfunc TestMain(m *testing.M) {\n\tshort.Tests(\"TestA\",\n\t\t\"TestB\")\n\tos.Exit(m.Run())\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "main_test.go"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"TestA": true, "TestB/subtest": true, "TestC": false} {
		if got := runsInShort(dir, name); got != want {
			t.Errorf("%s runs: %v, want %v", name, got, want)
		}
	}
}
