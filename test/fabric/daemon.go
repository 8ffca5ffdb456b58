// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/lab"
)

// packages have the routing daemons.
func packages() []string { return []string{"bird2", "frr"} }

// fetch returns the folder of Debian's packages, in which the daemons run. The first call on a
// machine fetches 30 MB; later ones return at once. Several processes may call it at the same time.
func fetch(ctx context.Context) (string, error) {
	bin, err := lab.BinDir()
	if err != nil {
		return "", err
	}
	// Another list of packages has another folder.
	dir := filepath.Join(bin, "fabric-"+strings.Join(packages(), "-"))
	return dir, debian.Once(dir, func(staged string) error { return fill(ctx, staged) })
}

// fill makes the folder.
func fill(ctx context.Context, root string) error {
	if err := debian.Install(ctx, root, packages()); err != nil {
		return err
	}
	// FRR looks its users up, and keeps files in folders that its package's scripts make.
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\nfrrvty:x:101:root\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, folder := range []string{"dev", "proc", "tmp", "var/tmp/frr", "var/run/frr", "var/lib/frr", "run/bird"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("make /dev/null: %w", err)
	}
	return nil
}

// Daemon is a routing daemon in a network namespace.
type Daemon struct {
	folder    string
	processes []*exec.Cmd
}

// StartFRR starts FRR with the configuration of its bgpd, with bfdd where that has BFD. in runs a
// function in the network namespace. It runs until Stop.
func StartFRR(ctx context.Context, in func(func() error) error, config string) (*Daemon, error) {
	return start(ctx, map[string]string{"bgpd.conf": config, "zebra.conf": "hostname zebra\n", "bfdd.conf": "hostname bfdd\n"}, in, func(inside string) [][]string {
		common := []string{"-u", "root", "-g", "root", "--vty_socket", inside, "-P", "0", "--log", "stdout", "-z", inside + "/zserv.api"}
		commands := [][]string{
			append([]string{"/usr/lib/frr/zebra", "-f", inside + "/zebra.conf", "-i", inside + "/zebra.pid"}, common...),
			append([]string{"/usr/lib/frr/bgpd", "-f", inside + "/bgpd.conf", "-i", inside + "/bgpd.pid"}, common...),
		}
		if strings.Contains(config, " bfd") {
			commands = append(commands, append([]string{"/usr/lib/frr/bfdd", "-f", inside + "/bfdd.conf", "-i", inside + "/bfdd.pid"}, common...))
		}
		return commands
	})
}

// StartBIRD starts BIRD with a configuration, as StartFRR.
func StartBIRD(ctx context.Context, in func(func() error) error, config string) (*Daemon, error) {
	return start(ctx, map[string]string{"bird.conf": config}, in, func(inside string) [][]string {
		return [][]string{{"/usr/sbin/bird", "-f", "-c", inside + "/bird.conf", "-s", inside + "/bird.ctl", "-P", inside + "/bird.pid"}}
	})
}

// start starts programs of the packages. commands returns their command lines; inside is the path
// of the files to them.
func start(ctx context.Context, files map[string]string, in func(func() error) error, commands func(inside string) [][]string) (*Daemon, error) {
	root, err := fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetch routing daemons: %w", err)
	}
	folder, err := os.MkdirTemp(filepath.Join(root, "tmp"), "router-")
	if err != nil {
		return nil, fmt.Errorf("start a routing daemon: %w", err)
	}
	d := &Daemon{folder: folder}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return nil, errors.Join(err, d.Stop())
		}
	}
	for _, args := range commands(strings.TrimPrefix(folder, root)) {
		if err := d.run(root, in, args); err != nil {
			return nil, errors.Join(fmt.Errorf("start %s: %w", args[0], err), d.Stop())
		}
	}
	return d, nil
}

// run starts a program that runs until Stop, in a root that has the packages and /proc alone.
func (d *Daemon) run(root string, in func(func() error) error, args []string) error {
	log, err := os.OpenFile(filepath.Join(d.folder, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	const enter = `mount --bind /proc "$0/proc" && exec chroot "$0" "$@"`
	// It outlives the caller's context.
	cmd := exec.CommandContext(context.Background(), "unshare", append([]string{"--mount", "sh", "-c", enter, root}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := in(cmd.Start); err != nil {
		return err
	}
	d.processes = append(d.processes, cmd)
	return nil
}

// Log returns what the programs wrote.
func (d *Daemon) Log() string {
	text, err := os.ReadFile(filepath.Join(d.folder, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Kill ends the programs at once: their peers see TCP connections end and no message. What they
// wrote into the kernel stays.
func (d *Daemon) Kill() {
	for _, cmd := range d.processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	d.processes = nil
}

// Stop is Kill, and removes the files.
func (d *Daemon) Stop() error {
	d.Kill()
	return os.RemoveAll(d.folder)
}
