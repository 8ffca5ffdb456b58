// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// console serves the cluster's page on this machine until stop is called, and says its URL.
func (d *demo) console(ctx context.Context) (stop func(), err error) {
	command := exec.CommandContext(ctx, filepath.Join(d.programs, "kubectl-berth"), "console", "--kubeconfig="+d.cluster.Kubeconfig())
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 5 * time.Second
	// Not even a demo that is killed leaves it behind. The signal comes when the thread that started
	// it ends.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start kubectl berth console: %w", err)
	}
	started, stopped := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		started <- command.Start()
		<-stopped
	}()
	stop = func() {
		_ = command.Cancel() // it may have ended
		_ = command.Wait()
		close(stopped)
	}
	if err := <-started; err != nil {
		close(stopped)
		return nil, fmt.Errorf("start kubectl berth console: %w", err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		stop()
		return nil, fmt.Errorf("start kubectl berth console: %w", err)
	}
	d.say("$ kubectl berth console")
	d.say("watch the pods in a browser: %s", strings.TrimSpace(strings.TrimPrefix(line, "Open ")))
	return stop, nil
}
