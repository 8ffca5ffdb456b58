// SPDX-License-Identifier: Apache-2.0

// Package debian fetches packages of Debian for any architecture, by the mirrors of the host's apt
// or, where the host is another distribution, by the one of EnvMirror. The host's apt checks them
// by the signatures of Debian. It installs nothing, runs no script of a package, and leaves the
// host's own packages and apt's state as they are.
package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Suite is the release that packages are of, whichever the host has: the first whose QEMU emulates
// a card with SR-IOV.
const Suite = "trixie"

// EnvMirror names a mirror of Debian, the URI of its folder "debian". A host of another
// distribution needs it.
const EnvMirror = "BERTH_DEBIAN_MIRROR"

// keyring is the file of the signatures, which other distributions have, too, in a package.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Request says which packages to fetch.
type Request struct {
	// Arch is Debian's name of an architecture. For Berth's architectures Go has the same names.
	Arch string
	// Packages come with all that they depend on, Alone without.
	Packages, Alone []string
}

// Fetch fetches packages below the folder dir, which it makes, from the first mirror that has them,
// and returns the archives, sorted.
func Fetch(ctx context.Context, progress io.Writer, dir string, r Request) ([]string, error) {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("the host has no %s, which fetches Debian's packages: %w", tool, err)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("find the keys of Debian (install the package debian-archive-keyring): %w", err)
	}
	candidates, err := mirrors(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, mirror := range candidates {
		fmt.Fprintf(progress, "fetching packages of Debian %s for %s from %s: %s\n", Suite, r.Arch, mirror, strings.Join(slices.Concat(r.Packages, r.Alone), ", "))
		archives, err := download(ctx, filepath.Join(dir, strconv.Itoa(i)), mirror, r)
		if err == nil {
			return archives, nil
		}
		errs = append(errs, fmt.Errorf("fetch from %s: %w", mirror, err))
	}
	return nil, fmt.Errorf("no mirror of the host's apt has Debian's packages; set %s to one that has: %w", EnvMirror, errors.Join(errs...))
}

// mirrors lists the mirrors to try.
func mirrors(ctx context.Context) ([]string, error) {
	if mirror := os.Getenv(EnvMirror); mirror != "" {
		return []string{strings.TrimSuffix(mirror, "/")}, nil
	}
	return hostMirrors(ctx)
}

// Unpack unpacks archives into the folder root, which it makes. As in Debian, all is in /usr, and
// the old folders are links.
func Unpack(ctx context.Context, root string, archives []string) error {
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", name), 0o755); err != nil {
			return fmt.Errorf("unpack packages: %w", err)
		}
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return fmt.Errorf("unpack packages: %w", err)
		}
	}
	for _, deb := range archives {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, root).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	return nil
}

// Install fetches packages for this machine's architecture, and unpacks them into the folder root,
// which it makes.
func Install(ctx context.Context, root string, packages []string) error {
	apt, err := os.MkdirTemp("", "berth-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(apt)
	archives, err := Fetch(ctx, os.Stderr, apt, Request{Arch: runtime.GOARCH, Packages: packages})
	if err != nil {
		return err
	}
	return Unpack(ctx, root, archives)
}

// Once has fill make the folder dir where there is none, and gives the folder its name when all is
// in it. Several processes may call it at the same time: one fills, the others wait.
func Once(dir string, fill func(staged string) error) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("wait for another process that fetches packages: %w", err)
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	staged := dir + ".new"
	if err := os.RemoveAll(staged); err != nil {
		return err
	}
	if err := fill(staged); err != nil {
		return err
	}
	return os.Rename(staged, dir)
}

// hostMirrors lists the mirrors of the host's own release that its apt uses.
func hostMirrors(ctx context.Context) ([]string, error) {
	const file = "/etc/os-release"
	release, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("find the host's release: %w", err)
	}
	codename := codenameOf(string(release))
	if codename == "" {
		return nil, fmt.Errorf("%s has no VERSION_CODENAME, by which apt's mirrors are found", file)
	}
	uris, err := exec.CommandContext(ctx, "apt-get", "--print-uris", "update").Output()
	if err != nil {
		return nil, fmt.Errorf("list apt's sources with apt-get --print-uris update: %w", err)
	}
	all := mirrorsOf(string(uris), codename)
	if len(all) == 0 {
		return nil, fmt.Errorf("apt has no source with the release %s; add a mirror to /etc/apt/sources.list, or set %s", codename, EnvMirror)
	}
	return all, nil
}

// codenameOf returns VERSION_CODENAME of the text of os-release(5), empty where there is none.
func codenameOf(release string) string {
	for line := range strings.Lines(release) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}

// mirrorsOf returns the mirrors of a release in what apt-get --print-uris update prints, each
// once: lines that begin with the URI of a file, in quotes.
func mirrorsOf(uris, codename string) []string {
	var all []string
	for line := range strings.Lines(uris) {
		uri, _, _ := strings.Cut(strings.TrimPrefix(line, "'"), "'")
		if mirror, ok := strings.CutSuffix(uri, "/dists/"+codename+"/InRelease"); ok && !slices.Contains(all, mirror) {
			all = append(all, mirror)
		}
	}
	return all
}

// download fetches from one mirror, with a state of apt of its own in dir.
func download(ctx context.Context, dir, mirror string, r Request) ([]string, error) {
	archives := filepath.Join(dir, "cache/archives")
	for _, folder := range []string{filepath.Join(dir, "lists/partial"), filepath.Join(archives, "partial")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	files := map[string]string{
		"sources.list": "deb [signed-by=" + keyring + "] " + mirror + " " + Suite + " main\n",
		"status":       "", // no package is installed
		"apt.conf": `
			APT::Architecture "` + r.Arch + `";
			APT::Architectures { "` + r.Arch + `"; };
			Dir::State "` + dir + `";
			Dir::State::Lists "` + dir + `/lists";
			Dir::State::status "` + dir + `/status";
			Dir::Cache "` + dir + `/cache";
			Dir::Etc::SourceList "` + dir + `/sources.list";
			Dir::Etc::SourceParts "/dev/null";
			Dir::Etc::Preferences "/dev/null";
			Dir::Etc::PreferencesParts "/dev/null";
			APT::Install-Recommends "false";
			APT::Sandbox::User "root";
			Acquire::Languages "none";
			Acquire::Retries "3";
			Acquire::http::Timeout "30";
		`,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	calls := [][]string{{"update", "-q", "--error-on=any"}, append([]string{"install", "-y", "-q", "--download-only"}, r.Packages...)}
	if len(r.Alone) > 0 {
		calls = append(calls, append([]string{"download", "-q"}, r.Alone...))
	}
	for _, args := range calls {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Dir = archives // of download
		cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return filepath.Glob(filepath.Join(archives, "*.deb"))
}
