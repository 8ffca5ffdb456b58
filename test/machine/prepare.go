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
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/lab"
)

// ErrUnavailable is returned where no machine can run: on another processor, without
// Debian's package tools, or where the packages cannot be fetched.
var ErrUnavailable = errors.New("no emulated machine here")

// packages are what a machine is made of, without what they depend on.
func packages() []string {
	return []string{
		"qemu-system-x86",
		"linux-image-amd64",
		"kmod", "liblzma5", // the kernel's modules are compressed
		"iproute2", "iputils-ping", "nftables",
		"iptables", "ipset", // of kube-proxy
	}
}

const (
	// suite is the first release of Debian whose QEMU emulates a card with SR-IOV.
	suite = "trixie"
	// complete is a file of a root whose preparation ended; it has packages' names, so
	// that a root of another list is made again.
	complete = "berth-complete"
)

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

// fetch replaces dir by the unpacked packages and all that they depend on. Nothing is
// installed: no script of a package runs, and the host's packages stay as they are.
func fetch(ctx context.Context, dir string, progress io.Writer) error {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w: the host has no %s", ErrUnavailable, tool)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	apt, err := os.MkdirTemp("", "berth-machine-apt-")
	if err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	defer os.RemoveAll(apt)
	archives, err := downloadFromAny(ctx, apt, progress)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	// Debian's packages have all in /usr, and the old folders are links.
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(dir, "usr", name), 0o755); err != nil {
			return fmt.Errorf("prepare the machine: %w", err)
		}
		if err := os.Symlink("usr/"+name, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("prepare the machine: %w", err)
		}
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(deb), err, out)
		}
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

// downloadFromAny fetches the packages and all that they depend on from the first mirror of
// the host's apt that has them, and returns the folder below dir that they are in.
func downloadFromAny(ctx context.Context, dir string, progress io.Writer) (string, error) {
	candidates, err := hostMirrors(ctx)
	if err != nil {
		return "", err
	}
	var errs []error
	for i, mirror := range candidates {
		fmt.Fprintf(progress, "fetching the emulated machine from %s: %s\n", mirror, strings.Join(packages(), ", "))
		archives, err := download(ctx, filepath.Join(dir, strconv.Itoa(i)), mirror)
		if err == nil {
			return archives, nil
		}
		errs = append(errs, fmt.Errorf("fetch from %s: %w", mirror, err))
	}
	return "", errors.Join(errs...)
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
	mirrors := mirrorsOf(string(uris), codename)
	if len(mirrors) == 0 {
		return nil, fmt.Errorf("apt has no source with the release %s; add a mirror of Debian to /etc/apt/sources.list", codename)
	}
	return mirrors, nil
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
func download(ctx context.Context, dir, mirror string) (archives string, err error) {
	archives = filepath.Join(dir, "cache/archives")
	for _, folder := range []string{filepath.Join(dir, "lists/partial"), filepath.Join(archives, "partial")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return "", err
		}
	}
	files := map[string]string{
		"sources.list": "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + mirror + " " + suite + " main\n",
		"status":       "", // no package is installed
		"apt.conf": `
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
			return "", err
		}
	}
	for _, args := range [][]string{
		{"update", "-q", "--error-on=any"},
		append([]string{"install", "-y", "-q", "--download-only"}, packages()...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return archives, nil
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
