// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/lab"
)

// netfilterPackages have the programs that CNI plugins of other projects call, and those of the
// backend iptables of network policies; base-files says to scanners of images which distribution
// they are of, and has the licenses.
func netfilterPackages(arch string) debian.Request {
	return debian.Request{Arch: arch, Packages: []string{"iptables", "ipset", "nftables"}, Alone: []string{"base-files"}}
}

// netfilterWanted are the files of the packages that go into an image: programs, libraries, what
// these read, and licenses.
var netfilterWanted = regexp.MustCompile(`^/usr/sbin/(xtables-(nft|legacy)-multi|ip6?tables-(nft|legacy)(-save|-restore)?|ip6?tables(-save|-restore)?|ipset|nft)$` +
	`|^/usr/lib/[^/]+-linux-gnu/([^/]*\.so[.0-9]*|xtables/[^/]*)$|^/usr/lib/ld-linux-[^/]*$|^/usr/lib64/[^/]*$` +
	`|^/(s?bin|lib|lib64)$|^/etc/(protocols|services|os-release|debian_version)$|^/usr/lib/os-release$` +
	`|^/usr/share/doc/[^/]+(/copyright)?$|^/usr/share/common-licenses/|^/var/lib/dpkg/status\.d/`)

// iptablesProgram chooses between the two iptables, and iptablesNames are its names in the image.
const iptablesProgram = "berth-iptables"

var iptablesNames = []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"}

// fetchNetfilter makes the folder dir of the packages for an architecture.
func fetchNetfilter(ctx context.Context, progress io.Writer, dir, arch string) error {
	fetched, err := os.MkdirTemp("", "berth-debian-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fetched)
	archives, err := debian.Fetch(ctx, progress, fetched, netfilterPackages(arch))
	if err != nil {
		return err
	}
	if err := debian.Unpack(ctx, dir, archives); err != nil {
		return err
	}
	// By these records scanners know versions, as in other images without dpkg.
	records := filepath.Join(dir, "var/lib/dpkg/status.d")
	if err := os.MkdirAll(records, 0o755); err != nil {
		return err
	}
	for _, archive := range archives {
		record, err := exec.CommandContext(ctx, "dpkg-deb", "--field", archive).Output()
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Base(archive), err)
		}
		name, _, _ := strings.Cut(filepath.Base(archive), "_")
		if err := os.WriteFile(filepath.Join(records, name), record, 0o644); err != nil {
			return err
		}
	}
	for _, name := range iptablesNames {
		if err := os.Symlink("/"+iptablesProgram, filepath.Join(dir, "usr/sbin", name)); err != nil {
			return err
		}
	}
	return nil
}

// netfilterHere returns the folder of the packages for this machine's architecture. The first call
// fetches them; later ones return at once. Several processes may call it at the same time.
func netfilterHere(ctx context.Context, progress io.Writer) (string, error) {
	bin, err := lab.BinDir()
	if err != nil {
		return "", err
	}
	// Another list of packages has another folder.
	dir := filepath.Join(bin, "netfilter-"+strings.Join(netfilterPackages(runtime.GOARCH).Packages, "-"))
	return dir, debian.Once(dir, func(staged string) error { return fetchNetfilter(ctx, progress, staged, runtime.GOARCH) })
}

// netfilterFiles maps paths in an image to files of a folder that fetchNetfilter made.
func netfilterFiles(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if dest := path.Join("/", filepath.ToSlash(rel)); !entry.IsDir() && netfilterWanted.MatchString(dest) {
			files[dest] = file
		}
		return nil
	})
	return files, err
}

// netfilterVersions lists the packages of a folder that fetchNetfilter made, one a line.
func netfilterVersions(dir string) ([]string, error) {
	records, err := filepath.Glob(filepath.Join(dir, "var/lib/dpkg/status.d/*"))
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, record := range records {
		text, err := os.ReadFile(record)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if version, ok := strings.CutPrefix(line, "Version: "); ok {
				all[filepath.Base(record)+" "+strings.TrimSpace(version)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}
