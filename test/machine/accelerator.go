// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options by which QEMU runs a machine: with the processor's support, and by translation of
// instructions, which works everywhere and takes about ten times as long.
var (
	kvm = []string{"-accel", "kvm", "-cpu", "host"}
	tcg = []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
)

// chosen are the options of all machines of this process.
var chosen struct {
	sync.Once
	options []string
}

// accelerator tries once whether KVM works, which the host's /dev/kvm does not say.
func (r *root) accelerator(ctx context.Context, log io.Writer) []string {
	chosen.Do(func() {
		chosen.options = kvm
		if err := errors.Join(r.addKVM(), r.starts(ctx, kvm)); err != nil {
			chosen.options = tcg
			fmt.Fprintf(log, "KVM does not work here, so machines are slow: %v\n", err)
		}
	})
	return chosen.options
}

// addKVM makes the host's device in the root.
func (r *root) addKVM() error {
	var host unix.Stat_t
	if err := unix.Stat("/dev/kvm", &host); err != nil {
		return fmt.Errorf("find /dev/kvm: %w", err)
	}
	dev := filepath.Join(r.dir, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(filepath.Join(dev, "kvm"), unix.S_IFCHR|0o600, int(host.Rdev)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make /dev/kvm for QEMU: %w", err)
	}
	return nil
}

// starting is how long a kernel may take to say its first line. One that needs longer is no better
// than an emulated one.
const starting = 10 * time.Second

// starts returns why the kernel does not begin with QEMU's options.
func (r *root) starts(ctx context.Context, options []string) error {
	ctx, end := context.WithTimeoutCause(ctx, starting, fmt.Errorf("the kernel said nothing for %s", starting))
	defer end()
	qemu := r.qemu(ctx, options, "console=ttyS0 earlyprintk=ttyS0")
	out, err := qemu.StdoutPipe()
	if err != nil {
		return err
	}
	qemu.Stderr = qemu.Stdout
	if err := qemu.Start(); err != nil {
		return err
	}
	defer func() { end(); _ = qemu.Wait() }()
	said := &tail{limit: 5}
	for lines := bufio.NewScanner(io.TeeReader(out, said)); lines.Scan(); {
		if strings.Contains(lines.Text(), "Linux version") {
			return nil
		}
	}
	return errors.Join(context.Cause(ctx), fmt.Errorf("the kernel does not begin; QEMU said:\n%s", said))
}
