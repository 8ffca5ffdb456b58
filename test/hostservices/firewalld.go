// SPDX-License-Identifier: Apache-2.0

package hostservices

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/lab"
)

// packages have the services and what starts them.
func packages() []string { return []string{"firewalld", "dbus-daemon"} }

// fetch returns the folder of Debian's packages, in which the services run. The first call on a
// machine fetches 30 MB; later ones return at once. Several processes may call it at the same time.
func fetch(ctx context.Context) (string, error) {
	bin, err := lab.BinDir()
	if err != nil {
		return "", err
	}
	// Another list of packages has another folder.
	dir := filepath.Join(bin, "hostservices-"+strings.Join(packages(), "-"))
	return dir, debian.Once(dir, func(staged string) error { return fill(ctx, staged) })
}

// fill makes the folder.
func fill(ctx context.Context, root string) error {
	if err := debian.Install(ctx, root, packages()); err != nil {
		return err
	}
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("make /dev/null: %w", err)
	}
	return nil
}

// bus is the address of the bus of services; an abstract one belongs to the network namespace.
const bus = "unix:abstract=berth-bus"

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>` + bus + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="*"/><allow send_destination="*"/><allow receive_type="*"/></policy></busconfig>
`

// startLimit is how long firewalld may take until it answers; it is there so that one that hangs is
// found.
const startLimit = 2 * time.Minute

// Firewalld is the real firewalld of Debian's package, and its bus, in the network namespace of a
// node. Nothing else of it is the node's: its root has the packages alone.
type Firewalld struct {
	// Conf is the path of its firewalld.conf.
	Conf string

	in           func(func() error) error
	env          []string
	root, folder string
	services     []*exec.Cmd
}

// StartFirewalld starts it, with settings in place of the package's, and returns when it answers.
// It runs until Stop. in runs a function in the node's network namespace; env is added to the
// programs' environment. The first call on a machine fetches 30 MB.
func StartFirewalld(ctx context.Context, in func(func() error) error, env []string, settings ...string) (*Firewalld, error) {
	root, err := fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetch firewalld: %w", err)
	}
	folder, err := os.MkdirTemp(filepath.Join(root, "tmp"), "node-")
	if err != nil {
		return nil, fmt.Errorf("start firewalld: %w", err)
	}
	f := &Firewalld{Conf: filepath.Join(folder, "firewalld/firewalld.conf"), in: in, env: env, root: root, folder: folder}
	if err := f.start(ctx, settings); err != nil {
		return nil, errors.Join(fmt.Errorf("start firewalld: %w\n%s", err, f.Log()), f.Stop())
	}
	return f, nil
}

func (f *Firewalld) start(ctx context.Context, settings []string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(f.root, "etc/firewalld"), f.folder).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	conf, err := os.ReadFile(f.Conf)
	if err != nil {
		return err
	}
	conf = append(conf, strings.Join(settings, "\n")+"\n"...)
	for path, text := range map[string]string{f.Conf: string(conf), filepath.Join(f.folder, "bus.conf"): busConfig} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	inside := strings.TrimPrefix(f.folder, f.root)
	answer, bus, err := os.Pipe()
	if err != nil {
		return err
	}
	defer answer.Close()
	err = f.service(bus, "/usr/bin/dbus-daemon", "--config-file="+inside+"/bus.conf", "--nofork", "--nopidfile", "--print-address")
	_ = bus.Close()
	if err != nil {
		return err
	}
	// The bus prints its address when it takes connections.
	if _, err := bufio.NewReader(answer).ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the bus: %w", err)
	}
	if err := f.service(nil, "/usr/bin/python3", "/usr/sbin/firewalld", "--nofork", "--nopid", "--system-config", inside+"/firewalld", "--log-file", inside+"/firewalld.log"); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f.Follow(ctx, "firewall-cmd --state")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// service starts a program that runs until Stop. Its standard output is a file, or the log where
// that is nil.
func (f *Firewalld) service(output *os.File, program string, args ...string) error {
	log, err := os.OpenFile(filepath.Join(f.folder, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// It outlives the caller's context.
	cmd := f.command(context.Background(), program, args...)
	cmd.Stdout, cmd.Stderr = cmp.Or(output, log), log
	if err := f.in(cmd.Start); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	f.services = append(f.services, cmd)
	return nil
}

// Follow runs commands as a page has them, one a line: firewall-cmd with its arguments.
func (f *Firewalld) Follow(ctx context.Context, commands string) error {
	for line := range strings.Lines(commands) {
		fields := arguments(line)
		if len(fields) == 0 || fields[0] != "firewall-cmd" {
			return fmt.Errorf("%q is no command for firewalld", line)
		}
		var out []byte
		err := f.in(func() (err error) {
			out, err = f.command(ctx, "/usr/bin/python3", append([]string{"/usr/bin/firewall-cmd"}, fields[1:]...)...).CombinedOutput()
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(fields, " "), err, out)
		}
	}
	return nil
}

// arguments splits a command as a shell does; it knows single quotes.
func arguments(line string) []string {
	quoted := false
	fields := strings.FieldsFunc(line, func(r rune) bool {
		if r == '\'' {
			quoted = !quoted
		}
		return !quoted && unicode.IsSpace(r)
	})
	for i := range fields {
		fields[i] = strings.ReplaceAll(fields[i], "'", "")
	}
	return fields
}

// command returns a command that runs a program of the packages.
func (f *Firewalld) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin", "DBUS_SYSTEM_BUS_ADDRESS=" + bus}, f.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: f.root}
	return cmd
}

// Log returns what the programs wrote.
func (f *Firewalld) Log() string {
	text, err := os.ReadFile(filepath.Join(f.folder, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Stop ends it, and removes its files. What it wrote into the kernel stays, as at the end of any
// program, unless its table has an owner.
func (f *Firewalld) Stop() error {
	for _, cmd := range f.services {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return os.RemoveAll(f.folder)
}
