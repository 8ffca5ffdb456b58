// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/tool"
)

// outcome is a part's result, with the failed tests and what they said.
type outcome struct {
	result
	failed      []testID
	said        map[testID]*excerpt
	err         error
	interrupted bool
}

func (o outcome) verdict() string {
	switch {
	case o.interrupted:
		return "interrupted"
	case o.Passed:
		return "passed"
	}
	return "FAILED"
}

// running is a part while it runs.
type running struct {
	part   part
	folder string
	last   atomic.Value // of string: the newest test that began
}

// run runs all suites of a part, also after one failed, and leaves logs and result in its folder.
func (r *running) run(ctx context.Context, o options) outcome {
	begin, rec := time.Now(), newRecord(r.folder, func(id testID) {
		o.say("FAIL %s %s, alone: %s", short(id.pkg), id.test, again(o.short, id))
	})
	defer rec.close()
	out := outcome{result: result{Part: r.part.name, Passed: true}, said: rec.said}
	for _, s := range r.part.suites {
		cpu, err := r.suite(ctx, o, s, rec)
		out.CPU += cpu
		if err != nil {
			out.Passed = false
			out.err = errors.Join(out.err, err)
		}
	}
	out.Wall, out.counts, out.failed = time.Since(begin), rec.counts, rec.failed
	if out.interrupted = ctx.Err() != nil; !out.interrupted {
		out.err = errors.Join(out.err, out.save(r.folder))
	}
	return out
}

// suite runs one suite, and returns the CPU time of its processes.
func (r *running) suite(ctx context.Context, o options, s suite, rec *record) (time.Duration, error) {
	args, err := o.command(ctx, r.part, s)
	if err != nil || args == nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(o.root, s.module)
	cmd.Env = append(os.Environ(), s.env...)
	// A signal goes to all processes of the suite, which then take down what they made.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 3 * time.Minute
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	var followed error
	var wait sync.WaitGroup
	wait.Go(func() {
		followed = rec.follow(reader, func(last string) { r.last.Store(last) })
		_, _ = io.Copy(io.Discard, reader)
	})
	err = cmd.Run()
	writer.Close()
	wait.Wait()
	var cpu time.Duration
	if state := cmd.ProcessState; state != nil {
		cpu = state.UserTime() + state.SystemTime()
	}
	return cpu, errors.Join(err, followed)
}

// timeout is how long the tests of one package may take: one that hangs says where, and the other
// parts run.
func (o options) timeout(p part) time.Duration {
	if o.short {
		return 20 * time.Minute
	}
	return 30*time.Minute + 2*time.Duration(p.minutes)*time.Minute
}

// command returns the program of a suite and its arguments, nil if there is nothing to run.
func (o options) command(ctx context.Context, p part, s suite) ([]string, error) {
	if s.long && o.short {
		return nil, nil
	}
	if s.command != nil {
		return s.command, nil
	}
	packages, err := s.list(ctx, o.root)
	if err != nil || len(packages) == 0 {
		return nil, err
	}
	args := []string{"go", "test", "-json", "-vet=off", "-timeout", o.timeout(p).String()}
	if !s.cached {
		args = append(args, "-count=1")
	}
	if o.short || s.core {
		args = append(args, "-short")
	}
	if s.side > 0 {
		args = append(args, "-p", strconv.Itoa(s.side), "-parallel", strconv.Itoa(s.side))
	}
	if s.run != "" {
		args = append(args, "-run", s.run)
	}
	if s.skip != "" && !o.short {
		args = append(args, "-skip", s.skip)
	}
	for _, p := range packages {
		args = append(args, p.ImportPath)
	}
	return args, nil
}

// alone runs the tests of one package that an expression names, and shows their output as it comes.
func (o options) alone(ctx context.Context, pkg, expression string) error {
	p, s, err := o.find(ctx, pkg)
	if err != nil {
		return err
	}
	if !p.pure {
		if err := tool.Install(ctx, o.say); err != nil {
			return err
		}
	}
	if !p.bare {
		build := programs.suites[0]
		if err := o.show(ctx, build, build.command); err != nil {
			return err
		}
	}
	args := []string{"go", "test", "-count=1", "-vet=off", "-v", "-timeout", o.timeout(p).String(), "-run", expression}
	if o.short {
		args = append(args, "-short")
	}
	inModule, err := filepath.Rel(s.module, pkg)
	if err != nil {
		return err
	}
	return o.show(ctx, s, append(args, "./"+inModule))
}

// show runs a program in a suite's module and environment, with the output of this one.
func (o options) show(ctx context.Context, s suite, args []string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(o.root, s.module)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}

// find returns the first part and suite that have a package.
func (o options) find(ctx context.Context, pkg string) (part, suite, error) {
	for _, p := range parts() {
		for _, s := range p.suites {
			if s.command != nil {
				continue
			}
			packages, err := s.list(ctx, o.root)
			if err != nil {
				return part{}, suite{}, err
			}
			if slices.ContainsFunc(packages, func(l listed) bool { return folder(l.ImportPath) == filepath.Clean(pkg) }) {
				return p, s, nil
			}
		}
	}
	return part{}, suite{}, fmt.Errorf("no part has a package %q with tests: write its folder, as in PACKAGE=test/node", pkg)
}
