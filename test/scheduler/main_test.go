// SPDX-License-Identifier: Apache-2.0

// Package scheduler tests berth-scheduler and berth-controller as programs on a
// real API server, with the permissions that manifests/ gives them. Nodes and
// the kubelet are imitated; nothing needs root.
//
// Every program reaches the API server through a [proxy] of its own, which can
// stop a request before it arrives or before it is answered and hold back a
// watch: so a test can kill a program between any two of its side effects. The
// imitated kubelet trusts what the agent trusts, and fails the test at once if
// two live pods have one address.
package scheduler

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// binDir has berth-scheduler and berth-controller. Written by TestMain only.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "berth-test-scheduler-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for _, name := range []string{"scheduler", "controller"} {
		build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "berth-"+name), "./cmd/"+name)
		build.Dir = root
		build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build berth-%s: %v\n%s", name, err, out)
			return 1
		}
	}
	return m.Run()
}

// root of the repository.
const root = "../.."
