// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"
)

// ImageConfig is what an image says about running it.
type ImageConfig struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // KEY=value
}

// BuildImage makes an image of one layer and returns the path of its archive
// (as `docker save` writes it), for [Cluster.LoadImage]. files maps absolute
// paths in the image to files or folders of this machine. The archive is in
// the lab's folder and goes with it.
func (c *Cluster) BuildImage(ref string, files map[string]string, cfg ImageConfig) (string, error) {
	out := filepath.Join(c.imageDir(), strings.NewReplacer("/", "_", ":", "_").Replace(ref)+".tar")
	return out, WriteImage(out, ref, files, cfg)
}

func (c *Cluster) imageDir() string { return filepath.Join(c.Dir(), "images") }

// WriteImage is BuildImage for any path. Equal files make an equal image.
func WriteImage(out, ref string, files map[string]string, cfg ImageConfig) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("build image %q: %w", ref, err)
	}
	tree, err := layerTree(files)
	if err != nil {
		return fmt.Errorf("build image %q: %w", ref, err)
	}
	opener := func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeLayer(w, tree)) }()
		return r, nil
	}
	// Not compressed: it travels no further than this machine.
	layer, err := tarball.LayerFromOpener(opener, tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return fmt.Errorf("build image %q: %w", ref, err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("build image %q: %w", ref, err)
	}
	img, err = mutate.ConfigFile(img, configFile(img, cfg))
	if err != nil {
		return fmt.Errorf("build image %q: %w", ref, err)
	}
	if err := tarball.WriteToFile(out, tag, img); err != nil {
		return fmt.Errorf("build image %q: %w", ref, err)
	}
	return nil
}

// configFile returns the image's own configuration with cfg in it, for the
// kind of machine that this program runs on.
func configFile(img v1.Image, cfg ImageConfig) *v1.ConfigFile {
	f, err := img.ConfigFile()
	if err != nil { // an image in memory always has one
		f = &v1.ConfigFile{}
	}
	f = f.DeepCopy()
	f.OS, f.Architecture = "linux", runtime.GOARCH
	f.Config = v1.Config{Entrypoint: cfg.Entrypoint, Cmd: cfg.Cmd, Env: append([]string{"PATH=" + imagePath}, cfg.Env...)}
	return f
}

const imagePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"

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
	// Where pods need a place to write or to mount.
	for _, dir := range []string{"/etc", "/tmp"} {
		if _, ok := tree[dir]; !ok {
			tree[dir] = ""
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
	switch mode := int64(fi.Mode().Perm()); {
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

// LoadImage loads image archives into containerd of every node. A node that
// is stopped is an error; one that is stopped later keeps its images. Pods
// should say imagePullPolicy: Never.
func (c *Cluster) LoadImage(ctx context.Context, archives ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		group.Go(func() error {
			var errs []error
			for _, a := range archives {
				errs = append(errs, n.loadImage(ctx, a))
			}
			return errors.Join(errs...)
		})
	}
	return group.Wait()
}

// loadImage loads one archive into the node's containerd, where kubelet looks
// for images.
func (n *Node) loadImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer f.Close()
	cmd := n.Command(ctx, filepath.Join(n.cluster.bin, "ctr"), "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = f
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("load image %s into %s: %w", archive, n.name, withOutput(err, out.Bytes()))
	}
	return nil
}
