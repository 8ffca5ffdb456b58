// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// runner starts programs that stay: on a host of a lab, or tethered to this
// program. start does not block; it may be called in parallel.
type runner interface {
	start(name string, argv ...string) (*daemon, error)
}

var (
	_ runner = (*Host)(nil)
	_ runner = (*tether)(nil)
)

// daemon is a started program.
type daemon struct {
	name string
	log  string        // path
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read after done
	end  func()        // ends it; nil for programs that end with their host
}

// watch makes a daemon of a started command.
func watch(name, log string, cmd *exec.Cmd) *daemon {
	d := &daemon{name: name, log: log, done: make(chan struct{})}
	go func() {
		d.err = cmd.Wait()
		close(d.done)
	}()
	return d
}

// failure says how the daemon ended, with the end of its log; nil while it
// runs.
func (d *daemon) failure() error {
	select {
	case <-d.done:
		return fmt.Errorf("%s ended (%w); the end of %s:\n%s", d.name, d.err, d.log, tailFile(d.log, 15))
	default:
		return nil
	}
}

// start runs a program in the host's namespaces until the host goes down. It
// outlives this program.
func (h *Host) start(name string, argv ...string) (*daemon, error) {
	full, err := h.Argv(argv...)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	log, err := h.cluster.openLog(h.name + "-" + name)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), full[0], full[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = h.Env(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", name, h.name, err)
	}
	p, err := processOf(cmd.Process.Pid)
	d := watch(name+" on "+h.name, log.Name(), cmd)
	if err != nil {
		<-d.done
		return nil, d.failure()
	}
	return d, h.cluster.update(func(s *state) { s.Daemons[h.name+"/"+name] = p })
}

// kill ends a program that start has started, at once. It does nothing where that does not run.
func (h *Host) kill(ctx context.Context, name string, p process) error {
	if !p.alive() {
		return nil
	}
	if _, err := h.Exec(ctx, "pkill", "-9", "-x", name); err != nil {
		return err
	}
	// The nsenter around it ends after it.
	return waitFor(ctx, "the end of "+name, nil, func(context.Context) error {
		if p.alive() {
			return fmt.Errorf("process %d runs", p.PID)
		}
		return nil
	})
}

// tether is a runner whose programs end with this program, however it ends.
type tether struct {
	dir string // for logs
	env []string
}

// tetherScript runs its arguments until descriptor 3, the other end of which
// only the lab's user holds, is closed.
const tetherScript = `"$@" 3<&- & p=$!; { read -r _ <&3; kill -9 $p; } >/dev/null 2>&1 & exec 3<&-; wait $p`

// start implements runner.
func (t *tether) start(name string, argv ...string) (*daemon, error) {
	log, err := os.OpenFile(filepath.Join(t.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer r.Close()
	cmd := exec.CommandContext(context.Background(), "/bin/sh", append([]string{"-c", tetherScript, "sh"}, argv...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = t.env, log, log, []*os.File{r}
	// Ctrl-C is for this program, which then ends its programs in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	d := watch(name, log.Name(), cmd)
	d.end = func() {
		w.Close()
		<-d.done
	}
	return d, nil
}

// patience is how long a lab waits for anything, also on a machine that has other
// work.
const patience = 5 * time.Minute

// waitFor calls check until it returns nil. It gives up when ctx ends or patience
// is over, with check's last error, or at once when one of the daemons has ended.
func waitFor(ctx context.Context, what string, daemons []*daemon, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not so within %s", patience))
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, d := range daemons {
			if f := d.failure(); f != nil {
				return fmt.Errorf("wait for %s: %w", what, f)
			}
		}
		if serr := sleep(ctx, 100*time.Millisecond); serr != nil {
			return fmt.Errorf("wait for %s: %w (last: %.300s)", what, serr, fmt.Sprint(err))
		}
	}
}

// tail returns the last lines of b.
func tail(b []byte, lines int) string {
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// withOutput adds the end of what a command printed to the command's error.
func withOutput(err error, output []byte) error {
	if t := tail(output, 5); t != "" {
		return fmt.Errorf("%w: %s", err, t)
	}
	return err
}

// tailFile returns the last lines of a file, or why it cannot be read.
func tailFile(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return tail(bytes.ToValidUTF8(b, []byte("?")), lines)
}
