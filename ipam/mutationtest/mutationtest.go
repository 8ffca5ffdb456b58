// SPDX-License-Identifier: Apache-2.0

// Package mutationtest checks that the seeded worlds of a package's TestModel find errors in the
// package's code.
package mutationtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Find replaces one piece of a file, old, and fails the test unless TestModel of the package in the
// working directory then fails. It runs the world of seed, and up to more seeds after it: each
// error has the seed of a world that finds it. Without a seed, another test of the package must
// fail. Find compiles the package, which takes seconds, so go test -short skips it.
func Find(t *testing.T, file, old, replacement string, seed uint64, more int) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-all looks for errors in this package's code")
	}
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(source, []byte(old)); n != 1 {
		t.Fatalf("%s has not one, but %d times:\n%s", file, n, old)
	}
	folder := t.TempDir()
	mutated := filepath.Join(folder, file)
	if err := os.WriteFile(mutated, bytes.Replace(source, []byte(old), []byte(replacement), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "model.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "-vet=off", "-overlay", filepath.Join(folder, "overlay.json"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if seed == 0 {
		if out, err := run(t, program, seed, 1, "-test.skip", "^Test(Model|Mutations)$"); err == nil {
			t.Fatalf("the package's tests besides TestModel pass:\n%s", out)
		}
		return
	}
	out, err := run(t, program, seed, 1, "-test.run", "^TestModel$")
	if err == nil {
		out, err = run(t, program, seed+1, more, "-test.run", "^TestModel$")
	}
	if err == nil {
		t.Fatalf("TestModel passes:\n%s", out)
	}
	if !strings.Contains(string(out), "repeats this world") {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "repeats this world") || strings.Contains(line, "after ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// run runs tests of a program.
func run(t *testing.T, program string, seed uint64, worlds int, which ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, which...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("BERTH_TEST_SEED=%d", seed), fmt.Sprintf("BERTH_TEST_DRAWS=%d", worlds))
	return cmd.CombinedOutput()
}
