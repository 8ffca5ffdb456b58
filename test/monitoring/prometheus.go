// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/lab"
)

// Prometheus returns the folder with Debian's prometheus and promtool. The first call fetches
// 20 MB by the mirrors of the host's apt; later ones return at once. Several processes may
// call it at the same time.
func Prometheus(ctx context.Context) (dir string, err error) {
	bin, err := lab.BinDir()
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("fetch Prometheus: %w", err)
		}
	}()
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	root := filepath.Join(bin, "prometheus")
	lock, err := os.OpenFile(root+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	dir = filepath.Join(root, "usr", "bin")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	archives, err := os.MkdirTemp("", "berth-prometheus-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(archives)
	if err := download(ctx, archives); err != nil {
		// The list of packages may be old, or not there yet.
		if err := run(ctx, archives, "apt-get", "update", "-q"); err != nil {
			return "", err
		}
		if err := download(ctx, archives); err != nil {
			return "", err
		}
	}
	debs, err := filepath.Glob(filepath.Join(archives, "prometheus_*.deb"))
	if err != nil {
		return "", err
	}
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get download left %d archives, want 1", len(debs))
	}
	// The folder gets its name when all is in it.
	unpacked := filepath.Join(archives, "root")
	if err := run(ctx, archives, "dpkg-deb", "--extract", debs[0], unpacked); err != nil {
		return "", err
	}
	staged := root + ".new"
	for _, step := range []error{os.RemoveAll(staged), run(ctx, archives, "cp", "-a", unpacked, staged), os.RemoveAll(root), os.Rename(staged, root)} {
		if step != nil {
			return "", step
		}
	}
	return dir, nil
}

func download(ctx context.Context, dir string) error {
	// Without the sandbox apt's own user would have to own the folder.
	return run(ctx, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "prometheus")
}

func run(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
