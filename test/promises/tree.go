// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// tree is a copy of the repository, in which errors are made: tests also compile programs and read
// the chart, and leave what they compiled in the copy. With -trimpath it shares the compiled
// packages of the repository.
type tree struct {
	dir string
	// passed has the tests that pass without an error.
	passed map[string]error
}

// copyTree copies what git has or would add, and links the programs of the lab, which have nothing
// of Berth's.
func copyTree(ctx context.Context) (*tree, error) {
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	root := strings.TrimSpace(string(top))
	bin := filepath.Join(root, "bin") // make clean removes it, and git ignores it
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(bin, "promises-")
	if err != nil {
		return nil, err
	}
	t := &tree{dir: dir, passed: map[string]error{}}
	const script = `git ls-files -z --cached --others --exclude-standard | xargs -0 cp -p --parents -t "$0" && if test -d test/bin; then cp -al test/bin "$0/test/"; fi`
	cmd := exec.CommandContext(ctx, "sh", "-c", script, dir)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		t.remove()
		return nil, fmt.Errorf("copy the repository: %w: %s", err, output)
	}
	return t, nil
}

func (t *tree) remove() { os.RemoveAll(t.dir) }

// find says which ring finds an error. The error says what is wrong with the entry of the list.
func (t *tree) find(ctx context.Context, p promise) (finding, error) {
	path := filepath.Join(t.dir, p.File)
	right, err := os.ReadFile(path)
	if err != nil {
		return nobody, err
	}
	if n := bytes.Count(right, []byte(p.Old)); n != 1 {
		return nobody, fmt.Errorf("%s has Old %d times", p.File, n)
	}
	wrong := bytes.Replace(right, []byte(p.Old), []byte(p.New), 1)
	for _, ring := range []finding{makeTest, makeTestAll} {
		if ring == makeTest && !runsInShort(filepath.Join(t.dir, p.Package), p.Test) {
			continue
		}
		if err := os.WriteFile(path, wrong, 0o644); err != nil {
			return nobody, err
		}
		found, err := t.test(ctx, p, ring)
		if err := os.WriteFile(path, right, 0o644); err != nil {
			return nobody, err
		}
		if found {
			err = t.passes(ctx, p, ring)
		}
		switch {
		case err != nil:
			return nobody, err
		case found:
			return ring, nil
		}
	}
	return nobody, nil
}

// passes returns an error if a test fails without an error of the list, too.
func (t *tree) passes(ctx context.Context, p promise, ring finding) error {
	name := strings.Join([]string{p.Package, p.Test, string(ring)}, " ")
	err, known := t.passed[name]
	if !known {
		var failed bool
		if failed, err = t.test(ctx, p, ring); failed {
			err = errors.New("the test fails without the error, too")
		}
		t.passed[name] = err
	}
	return err
}

// failure is what a test prints that ran and failed.
var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: |^panic: `)

// test runs a test as a ring does and says whether it fails. An error is of a test that could not
// run.
func (t *tree) test(ctx context.Context, p promise, ring finding) (failed bool, err error) {
	args := []string{"test", "-vet=off", "-count=1", "-v", "-timeout=30m", "-run", pattern(p.Test)}
	if ring == makeTest {
		args = append(args, "-short")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = filepath.Join(t.dir, p.Package)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false", "REQUIRE_NETNS=1",
		"BERTH_LAB_BIN="+filepath.Join(t.dir, "test/bin")) // which are not built again
	// Go does not pass signals on to the test, which cleans up when it is interrupted.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	output, err := cmd.CombinedOutput()
	switch {
	case err == nil || ctx.Err() != nil:
		return false, ctx.Err()
	case failure.Match(output):
		return true, nil
	}
	return false, fmt.Errorf("go test %s: %w\n%s", p.Package, err, output)
}

// pattern matches one test, or subtest, alone.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// shortTests is a package's list of the tests that go test -short runs, which -run overrules; see
// package short.
var shortTests = regexp.MustCompile(`(?s)(?:short\.Tests\(|simulation\.Main\(m, )([^)]*)\)`)

// runsInShort says whether a test is one that go test -short runs, if its package has a list of
// these.
func runsInShort(dir, test string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if match := shortTests.FindSubmatch(text); match != nil {
			name, _, _ := strings.Cut(test, "/")
			return bytes.Contains(match[1], []byte(`"`+name+`"`))
		}
	}
	return true
}
