// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is one host of a lab: the router, the client, the control plane or a
// node. It is safe for concurrent use and stays valid over StopNode and
// StartNode.
type Host struct {
	cluster *Cluster
	name    string
}

// ErrHostDown is returned when something is asked of a host that is stopped
// or whose init has died.
var ErrHostDown = errors.New("host is down")

// Name returns the host's name, for a node the name of its Node object.
func (h *Host) Name() string { return h.name }

// PID returns the process, as seen outside, that is the host's init; its
// entries in /proc/PID/ns are the host's namespaces. After StopNode and
// StartNode it is another one. The error is ErrHostDown.
func (h *Host) PID() (int, error) {
	s, err := loadState(h.cluster.name)
	if err != nil {
		return 0, err
	}
	p := s.Inits[h.name]
	if !p.alive() {
		return 0, fmt.Errorf("%s: %w", h.name, ErrHostDown)
	}
	return p.PID, nil
}

// NetNS returns the path of the host's network namespace.
func (h *Host) NetNS() (string, error) {
	pid, err := h.PID()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/ns/net", pid), nil
}

// Argv returns the command line that runs argv on the host.
func (h *Host) Argv(argv ...string) ([]string, error) {
	pid, err := h.PID()
	if err != nil {
		return nil, err
	}
	enter := []string{"nsenter", "--target", strconv.Itoa(pid), "--net", "--mount", "--pid", "--uts", "--"}
	return append(enter, argv...), nil
}

// Env returns the environment of commands on the host: this program's, with
// the lab's programs (agnhost, ctr, kubectl, …) first in PATH.
func (h *Host) Env() []string { return marked(h.cluster.name, h.cluster.bin) }

// Command returns a command that runs argv in all of the host's namespaces.
// When ctx ends, the command and its children are killed. When the host is
// down, starting it fails with ErrHostDown.
func (h *Host) Command(ctx context.Context, argv ...string) *exec.Cmd {
	full, err := h.Argv(argv...)
	if err != nil {
		cmd := exec.CommandContext(ctx, argv[0])
		cmd.Err = err
		return cmd
	}
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env = h.Env()
	// nsenter's child, in the other PID namespace, does not end with
	// nsenter; but it is in its process group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Exec runs argv on the host and returns its standard output. The error has
// the end of its standard error.
func (h *Host) Exec(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := h.Command(ctx, argv...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("run %q on %s: %w", strings.Join(argv, " "), h.name, withOutput(err, stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// Do runs f on an operating system thread that is in the host's network
// namespace (and in no other of its namespaces). Goroutines that f starts
// are not in it; a socket that f makes stays in it wherever it is used.
func (h *Host) Do(f func() error) error {
	path, err := h.NetNS()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- inNetNS(path, f) }()
	return <-done
}

// inNetNS runs f in the network namespace at path. The calling goroutine
// must end afterwards: when the thread cannot be moved back, it is left
// locked, so that the thread ends with the goroutine.
func inNetNS(path string, f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer home.Close()
	target, err := os.Open(path)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer target.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
		runtime.UnlockOSThread()
	}
	return err
}

// Dial connects from the host. address must have an IP address, not a name.
// It fits http.Transport's DialContext.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens on the host. address must have an IP address, not a name.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// boot starts the host's init, which runs script, and waits until the host
// can be used. It gives the host no links.
func (h *Host) boot(ctx context.Context, script string) error {
	log, err := h.cluster.openLog(h.name + "-init")
	if err != nil {
		return err
	}
	defer log.Close()
	file := filepath.Join(h.cluster.Dir(), "init-"+h.name+".sh")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return fmt.Errorf("boot %s: %w", h.name, err)
	}
	// It outlives ctx; only its start ends with it, see below.
	cmd := exec.CommandContext(context.Background(), "/bin/sh", file)
	cmd.Args[0] = "lab/" + h.cluster.name + "/" + h.name // the name that ps shows
	cmd.Env = h.Env()
	cmd.Dir = "/"
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("boot %s: %w", h.name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("boot %s: %w", h.name, err)
	}
	p, err := processOf(cmd.Process.Pid)
	// Recorded before it is ready: a script that hangs must be found too.
	if uerr := h.cluster.update(func(s *state) { s.Inits[h.name] = p }); err == nil {
		err = uerr
	}
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	go func() { _ = cmd.Wait() }() // reaps it whenever it ends; closes stdout
	if strings.TrimSpace(line) != initReady {
		p.kill()
		if ctx.Err() != nil {
			return fmt.Errorf("boot %s: %w", h.name, context.Cause(ctx))
		}
		return fmt.Errorf("boot %s: init ended: %s", h.name, h.cluster.logTail(h.name+"-init"))
	}
	return err
}
