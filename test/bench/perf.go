// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/lab"
)

// perf runs scheduler_perf in a process of its own: it is a Go test.
func (b *bench) perf(ctx context.Context) error {
	bin, err := lab.BinDir()
	if err != nil {
		return err
	}
	say("building scheduler_perf")
	source := filepath.Join(b.root, "test", "bench", "perf")
	program := filepath.Join(b.dir, "perf.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", program, ".")
	build.Dir = source
	build.Env = append(os.Environ(), "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build scheduler_perf: %w\n%s", err, output)
	}
	modules, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("find the module cache: %w", err)
	}
	var turns []string
	for _, turn := range b.turns() {
		turns = append(turns, fmt.Sprintf("%d-%s", turn.round, turn.id))
	}
	say("scheduler_perf: %s; its log is %s", strings.Join(turns, " "), filepath.Join(b.out, "scheduler_perf.log"))
	log, err := os.Create(filepath.Join(b.out, "scheduler_perf.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// Not of ctx: group ends it, with all that it started.
	test := exec.CommandContext(context.Background(), program, "-test.run=^$", "-test.bench=.", "-test.benchtime=1x", "-test.timeout=0")
	test.Dir, test.Stdout, test.Stderr = source, log, log
	test.Env = append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"), // etcd
		// The API server looks for its fixtures where it was compiled, which -trimpath does not say, or
		// below these folders, as of Bazel.
		"TEST_SRCDIR="+strings.TrimSpace(string(modules)), "TEST_WORKSPACE=.",
		"TMPDIR="+b.dir,
		"ARTIFACTS="+b.dir, // the scheduler's log, which would be printed otherwise
		"BENCH_OUT="+b.out, fmt.Sprintf("BENCH_NODES=%d", b.nodes), fmt.Sprintf("BENCH_PODS=%d", b.pods), "BENCH_TURNS="+strings.Join(turns, " "))
	runErr := group(ctx, test)
	// Also what there is of an unfinished one.
	if text, err := os.ReadFile(filepath.Join(b.out, "scheduler_perf.json")); err == nil {
		if err := json.Unmarshal(text, &b.report.SchedulerPerf); err != nil {
			return fmt.Errorf("read the results of scheduler_perf: %w", err)
		}
	}
	if runErr != nil {
		return fmt.Errorf("scheduler_perf, see %s: %w", log.Name(), runErr)
	}
	return nil
}

// group runs a command and, when ctx ends or this process does, kills it with
// all that it started, such as its etcd.
func group(ctx context.Context, command *exec.Cmd) error {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	alive, hold, err := os.Pipe()
	if err != nil {
		return err
	}
	defer alive.Close()
	if err := command.Start(); err != nil {
		hold.Close()
		return err
	}
	// The guard reads until the other end of its pipe, which only this process
	// has, is closed. It is in a group of its own: Ctrl-C is not for it.
	guard := exec.CommandContext(context.Background(), "/bin/sh", "-c", `read -r done; [ "$done" ] || kill -9 -- "-$1"`, "guard", fmt.Sprint(command.Process.Pid))
	guard.Stdin, guard.SysProcAttr = alive, &syscall.SysProcAttr{Setpgid: true}
	if err := guard.Start(); err != nil {
		hold.Close()
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait() // killed
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err = <-ended:
		if err == nil {
			_, _ = io.WriteString(hold, "done\n") // the guard is there to be killed otherwise
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	hold.Close()
	_ = guard.Wait() // it fails where all have ended by themselves
	if ctx.Err() != nil {
		<-ended //nolint:errcheck // It was ended: the error says so.
	}
	return err
}
