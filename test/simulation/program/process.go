// SPDX-License-Identifier: Apache-2.0

// Package program runs Berth's programs, and the scheduler's with the configuration
// of the manifests.
package program

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Process is a program that runs. Safe for concurrent use.
type Process struct {
	name    string
	command *exec.Cmd // nil: it is part of this process
	kill    func()
	ended   chan struct{}
	err     error // written before ended is closed
}

// Run runs a program as a part of this process, which kill has end.
func Run(name string, run func() error, kill func()) *Process {
	p := &Process{name: name, kill: kill, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.err = run()
	}()
	return p
}

// Start starts a program, which ends no later than this process. It says in its log
// why it ended.
func Start(log *os.File, path string, args ...string) (*Process, error) {
	p := &Process{name: filepath.Base(path), command: exec.CommandContext(context.Background(), path, args...), ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.command.Wait()
	}()
	return p, nil
}

// Name of the program.
func (p *Process) Name() string { return p.name }

// PID is the process's number.
func (p *Process) PID() int {
	if p.command == nil {
		return os.Getpid()
	}
	return p.command.Process.Pid
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits until the process has ended, and says how.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Running complains if the process has ended.
func (p *Process) Running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %w", p.name, p.err)
	default:
		return nil
	}
}

// Kill ends the process as a power loss does, and waits until it has ended. It is
// idempotent.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Pause stops the process until Resume.
func (p *Process) Pause() { p.Signal(syscall.SIGSTOP) }

// Resume continues the process.
func (p *Process) Resume() { p.Signal(syscall.SIGCONT) }

// Signal sends a signal, unless the process has ended. To a part of this process any is SIGKILL.
func (p *Process) Signal(signal syscall.Signal) {
	select {
	case <-p.ended:
	default:
		if p.command == nil {
			p.kill()
			return
		}
		_ = p.command.Process.Signal(signal) // it may have just ended
	}
}
