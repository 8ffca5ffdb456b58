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
	"path"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// The manifest names an archive for each platform that is there with that checksum, and has the program
// and the license; packed again, all is the same.
func TestWrite(t *testing.T) {
	release := Release{Version: "v0.1.0", URL: "https://example.com/v0.1.0", License: []byte("the license"), Programs: map[Platform][]byte{}}
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
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the archive of %s differs (-want +got):\n%s", p, diff)
		}
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
