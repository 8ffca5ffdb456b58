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
	"github.com/berth-dev/berth/test/short"
)

// binDir has Berth's programs, folder what the worlds share. Written by Main only.
var binDir, folder string

// Main compiles berth-scheduler and berth-controller and runs the tests of a package.
// It is all of its TestMain. With names, go test -short runs these tests alone.
func Main(m *testing.M, names ...string) {
	if len(names) > 0 {
		short.Tests(names...)
	}
	code, err := compileAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func compileAndRun(m *testing.M) (code int, err error) {
	if folder, err = os.MkdirTemp("", "berth-simulation-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(folder)
	if binDir, err = compile("berth-scheduler", "berth-controller"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func compile(programs ...string) (dir string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return deploy.Programs(ctx, programs...)
}

// compileOnce returns a function that compiles a program once.
func compileOnce(program string) func() error {
	return sync.OnceValue(func() error {
		_, err := compile(program)
		return err
	})
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

var compileFailover, compileConsole, compilePlugin = compileOnce("berth-failover"), compileOnce("berth-console"), compileOnce("kubectl-berth")
