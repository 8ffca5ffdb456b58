// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/test/image"
)

// BuildImage makes an image of one layer and returns the path of its archive, for
// [Cluster.LoadImage]. files maps absolute paths in the image to files or folders of this
// machine. The archive is in the lab's folder and goes with it.
func (c *Cluster) BuildImage(ref string, files map[string]string, config image.Config) (string, error) {
	// Not compressed: it travels no further than this machine.
	img, err := image.Make(runtime.GOARCH, files, config, image.Uncompressed)
	if err != nil {
		return "", fmt.Errorf("%s: %w", ref, err)
	}
	out := filepath.Join(c.imageDir(), strings.NewReplacer("/", "_", ":", "_").Replace(ref)+".tar")
	return out, image.Write(out, ref, img)
}

func (c *Cluster) imageDir() string { return filepath.Join(c.Dir(), "images") }

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
