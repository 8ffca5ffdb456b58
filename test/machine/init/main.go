// SPDX-License-Identifier: Apache-2.0

// Init is the first process of an emulated machine; see package machine. It reads
// from [guest.JobPath] which tests to run, reports on [guest.ReportPort] and powers
// off.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/machine/guest"
)

func main() {
	if err := run(); err != nil {
		// The kernel's console is the standard error of the first process.
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	// The host starts QEMU with -no-reboot, so that this ends it.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func run() error {
	for _, m := range []struct{ source, target, kind string }{
		{"proc", "/proc", "proc"}, {"sys", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"}, {"run", "/run", "tmpfs"}, {"tmp", "/tmp", "tmpfs"},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if out, err := exec.CommandContext(context.Background(), "/usr/sbin/ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set the loopback up: %w: %s", err, out)
	}
	port, err := os.OpenFile(guest.ReportPort, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open the port for reports: %w", err)
	}
	defer port.Close()
	report := json.NewEncoder(port)
	text, err := os.ReadFile(guest.JobPath)
	if err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	var job guest.Job
	if err := json.Unmarshal(text, &job); err != nil {
		return fmt.Errorf("decode what to run: %w", err)
	}
	return errors.Join(runJob(job, report), drain(port))
}

// drain waits until the port has sent everything.
func drain(port *os.File) error { return unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) }

func runJob(job guest.Job, report *json.Encoder) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.CommandContext(context.Background(), job.Program, job.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = job.Dir, w, w
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin", "HOME=/tmp"}, job.Env...)
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return report.Encode(guest.Event{Kind: guest.Exit, Line: err.Error()})
	}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			if err := report.Encode(guest.Event{Kind: guest.Output, Line: strings.TrimSuffix(line, "\n")}); err != nil {
				return err
			}
		}
		if err != nil {
			break
		}
	}
	end := guest.Event{Kind: guest.Exit}
	if err := cmd.Wait(); err != nil {
		end.Line = err.Error()
	}
	return report.Encode(end)
}
