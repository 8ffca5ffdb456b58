// SPDX-License-Identifier: Apache-2.0

package krew

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// The manifest names an archive for each platform that is there with that checksum, and has the
// program and the license; packed again, all is the same.
func TestWrite(t *testing.T) {
	release := Release{Version: "v0.1.0", URL: "https://example.com/v0.1.0", License: []byte("the license"), Completion: []byte("the script"), Programs: map[Platform][]byte{}}
	for _, p := range Platforms {
		release.Programs[p] = []byte("a program for " + p.String())
	}
	folders := []string{t.TempDir(), t.TempDir()}
	for _, folder := range folders {
		if err := release.Write(folder); err != nil {
			t.Fatal(err)
		}
	}
	text := read(t, folders[0], manifestName)
	var plugin Plugin
	if err := yaml.UnmarshalStrict(text, &plugin); err != nil {
		t.Fatal(err)
	}
	// The rules of krew: a name of a file, a version with a v, a line without a full stop.
	if plugin.Name != "berth" || !regexp.MustCompile(`^v\d+\.\d+\.\d+$`).MatchString(plugin.Spec.Version) || len(plugin.Spec.ShortDescription) > 50 {
		t.Errorf("krew refuses %+v", plugin)
	}
	if len(plugin.Spec.Platforms) != len(Platforms) {
		t.Fatalf("%d platforms, want %d", len(plugin.Spec.Platforms), len(Platforms))
	}
	for i, d := range plugin.Spec.Platforms {
		p := Platforms[i]
		if diff := cmp.Diff(map[string]string{"os": p.OS, "arch": p.Arch}, d.Selector.MatchLabels); diff != "" {
			t.Errorf("the selector of %s differs (-want +got):\n%s", p, diff)
		}
		packed := read(t, folders[0], path.Base(d.URI))
		if again := read(t, folders[1], path.Base(d.URI)); !bytes.Equal(packed, again) {
			t.Errorf("%s: packed again, the archive is another", p)
		}
		if sum := sha256.Sum256(packed); d.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the checksum is %s", p, d.SHA256)
		}
		got := unpack(t, packed)
		want := map[string]string{"LICENSE 644": "the license", d.Bin + " 755": "a program for " + p.String()}
		if p.OS != "windows" {
			want["kubectl_complete-berth 755"] = "the script"
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the archive of %s differs (-want +got):\n%s", p, diff)
		}
	}
	// Where krew unpacks an archive and has its programs (PluginVersionInstallPath and BinPath of its
	// package environment).
	krewRoot := t.TempDir()
	unpacked, bin := filepath.Join(krewRoot, "store/berth/v0.1.0"), filepath.Join(krewRoot, "bin")
	if err := errors.Join(os.MkdirAll(unpacked, 0o755), os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(unpacked, completion), nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(plugin.Spec.Caveats, "\n")
	copying := exec.CommandContext(t.Context(), "sh", "-ec", command)
	copying.Env = append(os.Environ(), "KREW_ROOT="+krewRoot)
	if out, err := copying.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	if _, err := os.Stat(filepath.Join(bin, completion)); err != nil {
		t.Errorf("the manifest's caveats put no completion on the PATH: %v", err)
	}
	release.Version = "dev"
	if err := release.Write(t.TempDir()); err == nil {
		t.Error("a version without a v is accepted, which krew refuses")
	}
}

func read(t *testing.T, folder, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func unpack(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		mode := map[int64]string{0o644: "644", 0o755: "755"}[header.Mode]
		files[header.Name+" "+mode] = string(content)
	}
}
