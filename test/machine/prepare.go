// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/lab"
)

// ErrUnavailable is returned where no machine can run: on another processor, without
// Debian's package tools, or where the packages cannot be fetched.
var ErrUnavailable = errors.New("no emulated machine here")

// packages are the packages that a machine is made of, without their dependencies.
func packages() []string {
	return []string{
		"qemu-system-x86",
		"linux-image-amd64",
		"kmod", "liblzma5", // the kernel's modules are compressed
		"iproute2", "iputils-ping", "nftables",
		"iptables", "ipset", // of kube-proxy
	}
}

// complete is a file of a root whose preparation ended; it has packages' names, so
// that a root of another list is made again.
const complete = "berth-complete"

// root is a folder with the unpacked packages.
type root struct {
	dir    string
	kernel string // the kernel's version
}

// prepare returns the machine's packages, unpacked below the lab's folder of
// programs. The first call fetches 160 MB and takes about 15 seconds; later ones
// return at once. Several processes may call it at the same time.
func prepare(ctx context.Context, progress io.Writer) (*root, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("%w: it needs Linux on amd64", ErrUnavailable)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it needs root, to run QEMU in a folder of Debian packages", ErrUnavailable)
	}
	bin, err := lab.BinDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(bin, "machine")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare the machine: %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("prepare the machine: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("wait for another preparation of the machine: %w", err)
	}
	want := strings.Join(packages(), "\n")
	if have, err := os.ReadFile(filepath.Join(dir, complete)); err != nil || string(have) != want {
		if err := fetch(ctx, dir, progress); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, complete), []byte(want), 0o644); err != nil {
			return nil, fmt.Errorf("prepare the machine: %w", err)
		}
	}
	return openRoot(dir)
}

func openRoot(dir string) (*root, error) {
	kernels, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return nil, fmt.Errorf("prepare the machine: %s has %d kernels, want 1; remove the folder and try again", dir, len(kernels))
	}
	return &root{dir: dir, kernel: strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")}, nil
}

// fetch replaces dir by the unpacked packages and all that they depend on.
func fetch(ctx context.Context, dir string, progress io.Writer) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	apt, err := os.MkdirTemp("", "berth-machine-apt-")
	if err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	defer os.RemoveAll(apt)
	archives, err := debian.Fetch(ctx, progress, apt, debian.Request{Arch: runtime.GOARCH, Packages: packages()})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := debian.Unpack(ctx, dir, archives); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	r, err := openRoot(dir)
	if err != nil {
		return err
	}
	if out, err := r.command(ctx, "depmod", "-a", r.kernel).CombinedOutput(); err != nil {
		return fmt.Errorf("index the modules of kernel %s: %w: %s", r.kernel, err, out)
	}
	return nil
}

// command returns a command that runs a program of the root, and dies with this
// process.
func (r *root) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.program(name), args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// program returns the path of a program inside the root.
func (r *root) program(name string) string {
	if _, err := os.Stat(filepath.Join(r.dir, "usr/sbin", name)); err == nil {
		return "/usr/sbin/" + name
	}
	return "/usr/bin/" + name
}
