// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/test/image"
)

// unpacked makes an image with iptables and unpacks it, as a runtime does.
func unpacked(t *testing.T) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	repository, err := Root()
	must(err)
	packages, err := netfilterHere(t.Context(), t.Output())
	must(err)
	programs, root := t.TempDir(), t.TempDir()
	must(Compile(t.Context(), programs, []string{iptablesProgram}))
	img, err := berthImage{name: "iptables", programs: []string{iptablesProgram}, netfilter: true}.make(repository, programs, packages, runtime.GOARCH, "test", image.Uncompressed)
	must(err)
	layers, err := img.Layers()
	must(err)
	content, err := layers[0].Uncompressed()
	must(err)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return root
		}
		must(err)
		file := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			must(os.MkdirAll(file, 0o755))
		case tar.TypeSymlink:
			must(os.Symlink(h.Linkname, file))
		default:
			text, err := io.ReadAll(r)
			must(err)
			must(os.WriteFile(file, text, h.FileInfo().Mode()))
		}
	}
}

// Plugins in the agent's container find both iptables, for both address families, and nft. The name
// iptables leads to the one that the node uses.
func TestNetfilterInImage(t *testing.T) {
	netnstest.Need(t)
	root := unpacked(t)
	// As in a pod, where the node's lock is mounted, with /proc and /dev.
	for _, folder := range []string{"run", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	masquerade := []string{"-t", "nat", "-A", "POSTROUTING", "-p", "tcp", "-m", "multiport", "--dports", "80,81", "-m", "comment", "--comment", "a pod", "-j", "MASQUERADE"}
	for _, backend := range []struct{ name, version string }{{"nft", "(nf_tables)"}, {"legacy", "(legacy)"}} {
		for _, family := range []string{"iptables", "ip6tables"} {
			t.Run(family+"-"+backend.name, func(t *testing.T) {
				host := netnstest.New(t)
				run := func(args ...string) string {
					t.Helper()
					out, err := host.Command("unshare", append([]string{"--mount", "sh", "-ec", `mount --bind /proc "$0/proc"; mount --bind /dev "$0/dev"; exec chroot "$0" "$@"`, root}, args...)...)
					if err != nil {
						t.Fatal(err, out)
					}
					return out
				}
				if out, err := host.Command(family+"-"+backend.name, "-S"); err != nil {
					t.Skipf("the kernel has no such iptables: %v: %s", err, out)
				}
				run(append([]string{family + "-" + backend.name}, masquerade...)...)
				if out := run(family, "--version"); !strings.Contains(out, backend.version) {
					t.Errorf("it is %s, want %s", out, backend.version)
				}
				run(append([]string{family, "-t", "nat", "-C"}, masquerade[3:]...)...)
				if out := run(family+"-save", "-t", "nat"); !strings.Contains(out, "MASQUERADE") {
					t.Errorf("%s-save has no rule:\n%s", family, out)
				}
				if out := run("nft", "list", "tables"); strings.Contains(out, "nat") != (backend.name == "nft") {
					t.Errorf("nft lists %s", out)
				}
			})
		}
	}
}

// Scanners of images know distribution and packages, and every package has its license.
func TestNetfilterRecords(t *testing.T) {
	dir, err := netfilterHere(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	files, err := netfilterFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	versions, err := netfilterVersions(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(versions) < 10 || files["/usr/lib/os-release"] == "" {
		t.Errorf("packages %q, os-release %q", versions, files["/usr/lib/os-release"])
	}
	for _, version := range versions {
		name, _, _ := strings.Cut(version, " ")
		if license, err := os.Stat(filepath.Join(dir, "usr/share/doc", name, "copyright")); err != nil || license.Size() == 0 {
			t.Errorf("package %s has no license: %v", name, err)
		}
		if files["/usr/share/doc/"+name] == "" && files["/usr/share/doc/"+name+"/copyright"] == "" {
			t.Errorf("the image has no license of %s", name)
		}
	}
	for name := range files {
		if strings.HasPrefix(name, "/usr/bin/") || strings.HasSuffix(name, "/sh") {
			t.Errorf("the image has %s, which no plugin needs", name)
		}
	}
}
