// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
)

// source makes files of a program, and returns which paths of an image they have.
func source(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"prog", "sub/data"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strings.Repeat(file, 1000)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("data", filepath.Join(sub, "link")); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"/prog": filepath.Join(dir, "prog"), "/opt/all": dir}
}

var config = Config{
	Entrypoint: []string{"/prog"}, Cmd: []string{"serve"}, Env: []string{"A=b"}, User: "65532",
	Labels: map[string]string{"org.opencontainers.image.title": "prog", "org.opencontainers.image.licenses": "Apache-2.0"},
}

// both makes an archive of images of two architectures.
func both(t *testing.T, files map[string]string, compression Compression) (archive string) {
	t.Helper()
	var images []v1.Image
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := Make(arch, files, config, compression)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	archive = filepath.Join(t.TempDir(), "image.tar")
	if err := Write(archive, "berth.dev/test:v1", images...); err != nil {
		t.Fatal(err)
	}
	return archive
}

// entries calls see for each entry of a tar.
func entries(t *testing.T, r io.Reader, see func(*tar.Header, io.Reader)) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		see(h, tr)
	}
}

// open unpacks an archive and returns the one image index that it has.
func open(t *testing.T, archive string) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := t.TempDir()
	entries(t, file, func(h *tar.Header, r io.Reader) {
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			return
		}
		text, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v, %v; want one index", manifest, err)
	}
	inner, err := index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return inner, manifest.Manifests[0]
}

func TestWrite(t *testing.T) {
	for name, compression := range map[string]Compression{"compressed": Compressed, "uncompressed": Uncompressed} {
		t.Run(name, func(t *testing.T) {
			index, descriptor := open(t, both(t, source(t), compression))
			names := map[string]string{"io.containerd.image.name": "berth.dev/test:v1", "org.opencontainers.image.ref.name": "v1"}
			if diff := cmp.Diff(names, descriptor.Annotations); diff != "" {
				t.Error(diff)
			}
			for _, arch := range []string{"amd64", "arm64"} {
				checkImage(t, index, arch)
			}
		})
	}
}

func checkImage(t *testing.T, index v1.ImageIndex, arch string) {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var img v1.Image
	for _, m := range manifest.Manifests {
		if match.Platforms(v1.Platform{OS: "linux", Architecture: arch})(m) {
			if img, err = index.Image(m.Digest); err != nil {
				t.Fatal(err)
			}
		}
	}
	if img == nil || len(manifest.Manifests) != 2 {
		t.Fatalf("no image for %s among %v", arch, manifest.Manifests)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{Entrypoint: config.Entrypoint, Cmd: config.Cmd, User: "65532", Labels: config.Labels, Env: []string{"PATH=" + searchPath, "A=b"}}
	if diff := cmp.Diff(want, file.Config); diff != "" || file.Architecture != arch {
		t.Error(file.Architecture, diff)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	entries(t, r, func(h *tar.Header, _ io.Reader) { got = append(got, h.Name+h.Linkname) })
	paths := []string{"etc/", "opt/", "opt/all/", "opt/all/prog", "opt/all/sub/", "opt/all/sub/data", "opt/all/sub/linkdata", "prog", "tmp/"}
	if diff := cmp.Diff(paths, got); diff != "" {
		t.Error(diff)
	}
}

// Building a release again makes the same bytes, at any time and on any machine.
func TestEqualFilesMakeEqualImages(t *testing.T) {
	files := source(t)
	first, err := os.ReadFile(both(t, files, Compressed))
	if err != nil {
		t.Fatal(err)
	}
	later := source(t)
	for _, path := range later {
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(path, 1000, 1000); err != nil {
				t.Fatal(err)
			}
		}
	}
	second, err := os.ReadFile(both(t, later, Compressed))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two archives of equal files differ")
	}
	if err := os.WriteFile(later["/prog"], []byte("another"), 0o755); err != nil {
		t.Fatal(err)
	}
	third, err := os.ReadFile(both(t, later, Compressed))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, third) {
		t.Error("the archive of another program is the same")
	}
}

func TestMakeRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, files := range map[string]map[string]string{
		"relative path": {"prog": dir},
		"no such file":  {"/prog": filepath.Join(dir, "absent")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Make("amd64", files, Config{}, Uncompressed); err == nil {
				t.Error("no error")
			}
		})
	}
}
