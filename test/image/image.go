// SPDX-License-Identifier: Apache-2.0

// Package image makes container images of files of this machine, without an engine, a
// registry or another image. Equal files make equal images, to the byte. The images of a release
// and of the lab come from here.
package image

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Config says how to run the image.
type Config struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // KEY=value
	User       string   // empty: root
	Labels     map[string]string
}

// Compression of an image's layer.
type Compression int

// Compression of images that travel, and of images that stay on this machine.
const (
	Compressed   Compression = gzip.BestCompression
	Uncompressed Compression = gzip.NoCompression
)

// searchPath is the PATH of the images' processes. Programs are at the root.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"

// Make makes an image of one layer for an architecture, as Go calls it. files maps absolute
// paths in the image to files or folders of this machine, which must stay until the image is
// written.
func Make(arch string, files map[string]string, config Config, compression Compression) (v1.Image, error) {
	tree, err := layerTree(files)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	// Where pods need a place to write or to mount.
	for _, dir := range []string{"/etc", "/tmp"} {
		if _, ok := tree[dir]; !ok {
			tree[dir] = ""
		}
	}
	opener := func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeLayer(w, tree)) }()
		return r, nil
	}
	layer, err := tarball.LayerFromOpener(opener, tarball.WithCompressionLevel(int(compression)), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Config = v1.Config{
		Entrypoint: config.Entrypoint, Cmd: config.Cmd, User: config.User, Labels: config.Labels,
		Env: append([]string{"PATH=" + searchPath}, config.Env...),
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	return img, nil
}

// Write writes images, one of each architecture, as one archive that `docker load`, `ctr
// images import` and `skopeo` (oci-archive:) read: the tar of an OCI layout. ref is the name
// that they give to it.
func Write(out, ref string, images ...v1.Image) (err error) {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("write image %q: %w", ref, err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		file, err := img.ConfigFile()
		if err != nil {
			return fmt.Errorf("write image %q: %w", ref, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: file.Platform()}})
	}
	dir, err := os.MkdirTemp(filepath.Dir(out), ".layout-")
	if err != nil {
		return fmt.Errorf("write image %q: %w", ref, err)
	}
	defer os.RemoveAll(dir)
	root, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write image %q: %w", ref, err)
	}
	// containerd and Docker read the one, the OCI specifies the other.
	names := map[string]string{"io.containerd.image.name": tag.Name(), "org.opencontainers.image.ref.name": tag.TagStr()}
	if err := root.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return fmt.Errorf("write image %q: %w", ref, err)
	}
	file, err := os.Create(out)
	if err != nil {
		return fmt.Errorf("write image %q: %w", ref, err)
	}
	tree, err := layerTree(map[string]string{"/": dir})
	if err == nil {
		err = writeLayer(file, tree)
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("write image %q: %w", ref, err)
	}
	return nil
}

// layerTree lists what goes into a layer: absolute path in the image to path
// on this machine, with all parents (whose own path is empty).
func layerTree(files map[string]string) (map[string]string, error) {
	tree := map[string]string{}
	for dest, src := range files {
		if !path.IsAbs(dest) {
			return nil, fmt.Errorf("path %q in the image is not absolute", dest)
		}
		err := filepath.WalkDir(src, func(p string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(src, p)
			if err != nil {
				return err
			}
			tree[path.Join(dest, filepath.ToSlash(rel))] = p
			return nil
		})
		if err != nil {
			return nil, err
		}
		for dir := path.Dir(path.Clean(dest)); dir != "/"; dir = path.Dir(dir) {
			if _, ok := tree[dir]; !ok {
				tree[dir] = ""
			}
		}
	}
	delete(tree, "/")
	return tree, nil
}

// writeLayer writes a layer's tar. Owner and times are left out, so that
// equal files make equal layers.
func writeLayer(w io.Writer, tree map[string]string) error {
	tw := tar.NewWriter(w)
	for _, dest := range slices.Sorted(maps.Keys(tree)) {
		if err := writeEntry(tw, strings.TrimPrefix(dest, "/"), tree[dest]); err != nil {
			return err
		}
	}
	return tw.Close()
}

func writeEntry(tw *tar.Writer, dest, src string) error {
	if src == "" {
		mode := int64(0o755)
		if dest == "tmp" {
			mode = 0o1777
		}
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dest + "/", Mode: mode})
	}
	fi, err := os.Lstat(src)
	if err != nil {
		return err
	}
	// Of whoever builds, the umask is no part of the image.
	mode := int64(0o644)
	if fi.Mode().Perm()&0o111 != 0 {
		mode = 0o755
	}
	if fi.Mode()&fs.ModeSetuid != 0 {
		mode |= 0o4000
	}
	switch {
	case fi.IsDir():
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dest + "/", Mode: mode})
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: dest, Linkname: target, Mode: 0o777})
	case fi.Mode().IsRegular():
		f, err := os.Open(src)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dest, Mode: mode, Size: fi.Size()}); err != nil {
			return err
		}
		_, err = io.Copy(tw, f)
		return err
	default:
		return fmt.Errorf("%s is no file, folder or link", src)
	}
}
