// SPDX-License-Identifier: Apache-2.0

// Package chromium fetches Debian's Chromium for tests of pages, with all that it needs, and runs
// it in the folder of these packages: it needs nothing of the host but its kernel, and draws the
// same everywhere. It needs root, as it changes its root.
package chromium

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// Program returns the path of a Chromium that takes Chromium's arguments. It sees the host's /tmp,
// and no other file of it. The first call on a machine fetches the packages; later ones return at
// once. Several processes may call it at the same time.
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
	// Another list of packages has another folder.
	dir := filepath.Join(bin, "chromium-"+strings.Join(packages(), "-"))
	return filepath.Join(dir, "chromium"), debian.Once(dir, func(staged string) error { return fill(ctx, staged) })
}

// fill makes the folder.
func fill(ctx context.Context, staged string) error {
	root := filepath.Join(staged, "root")
	if err := debian.Install(ctx, root, packages()); err != nil {
		return err
	}
	for _, folder := range []string{"proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(staged, "chromium"), []byte(script), 0o755)
}
