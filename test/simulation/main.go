// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/deploy"
)

// binDir has Berth's programs. Written by Main only.
var binDir string

// Main compiles berth-scheduler and berth-controller and runs the tests of a package.
// It is all of its TestMain.
func Main(m *testing.M) {
	code, err := compileAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func compileAndRun(m *testing.M) (code int, err error) {
	if binDir, err = os.MkdirTemp("", "berth-test-programs-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(binDir)
	if err := compile("berth-scheduler", "berth-controller"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func compile(programs ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return deploy.Compile(ctx, binDir, programs)
}

// Program is the path of berth-scheduler or berth-controller.
func Program(name string) string { return filepath.Join(binDir, name) }

// Plugin returns the path of kubectl-berth, which it compiles once.
func Plugin(t testing.TB) string {
	t.Helper()
	if err := compilePlugin(); err != nil {
		t.Fatal(err)
	}
	return Program("kubectl-berth")
}

// failover returns the path of berth-failover, which it compiles once.
func failover(t testing.TB) string {
	t.Helper()
	if err := compileFailover(); err != nil {
		t.Fatal(err)
	}
	return "berth-failover"
}

// Console returns the path of berth-console, which it compiles once.
func Console(t testing.TB) string {
	t.Helper()
	if err := compileConsole(); err != nil {
		t.Fatal(err)
	}
	return Program("berth-console")
}

var compileFailover = sync.OnceValue(func() error { return compile("berth-failover") })

var compileConsole = sync.OnceValue(func() error { return compile("berth-console") })

var compilePlugin = sync.OnceValue(func() error { return compile("kubectl-berth") })
