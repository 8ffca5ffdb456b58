// SPDX-License-Identifier: Apache-2.0

// Package chromium fetches Debian's Chromium for tests of pages, with all that it needs, and runs it in the folder of these
// packages: it needs nothing of the host but its kernel, and draws the same everywhere. It needs root, as it changes its root.
package chromium

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/lab"
)

// Env names a Chromium to run instead of Debian's.
const Env = "BERTH_TEST_CHROMIUM"

// packages are the browser without windows, and the font of its pages.
func packages() []string { return []string{"chromium-headless-shell", "fonts-dejavu-core"} }

// script runs the browser in the folder root beside it. The mounts end with the browser.
const script = `#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
exec unshare --mount --propagation private -- sh -c '
root=$1; shift
for folder in proc dev tmp; do mount --rbind "/$folder" "$root/$folder" || exit; done
exec env -i HOME=/tmp LANG=C.UTF-8 PATH="$PATH" chroot "$root" /usr/lib/chromium/chromium-headless-shell "$@"' sh "$root" "$@"
`

// Program returns the path of a Chromium that takes Chromium's arguments. It sees the host's /tmp, and no other file of it. The
// first call on a machine fetches the packages; later ones return at once. Several processes may call it at the same time.
func Program(ctx context.Context) (program string, err error) {
	if given := os.Getenv(Env); given != "" {
		return given, nil
	}
	bin, err := lab.BinDir()
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("fetch Chromium (or set %s to the path of one): %w", Env, err)
		}
	}()
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	// Another list of packages has another folder.
	dir := filepath.Join(bin, "chromium-"+strings.Join(packages(), "-"))
	program = filepath.Join(dir, "chromium")
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another process that fetches it: %w", err)
	}
	if _, err := os.Stat(dir); err == nil {
		return program, nil
	}
	return program, fetch(ctx, dir)
}

// fetch makes the folder, which gets its name when all is in it.
func fetch(ctx context.Context, dir string) error {
	apt, err := os.MkdirTemp("", "berth-chromium-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(apt)
	archives, err := debian.Fetch(ctx, os.Stderr, apt, debian.Request{Arch: runtime.GOARCH, Packages: packages()})
	if err != nil {
		return err
	}
	staged := dir + ".new"
	if err := os.RemoveAll(staged); err != nil {
		return err
	}
	root := filepath.Join(staged, "root")
	if err := debian.Unpack(ctx, root, archives); err != nil {
		return err
	}
	for _, folder := range []string{"proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(staged, "chromium"), []byte(script), 0o755); err != nil {
		return err
	}
	return os.Rename(staged, dir)
}
