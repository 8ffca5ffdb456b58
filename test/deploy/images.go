// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-dev/berth/test/compile"
	"github.com/berth-dev/berth/test/image"
	"github.com/berth-dev/berth/test/lab"
)

// berthImage is one of Berth's images: programs at the root. It runs the first.
type berthImage struct {
	name     string
	about    string
	programs []string
	user     string
	// netfilter says that it has iptables and nft, for plugins of other projects.
	netfilter bool
}

// unprivileged is the user of programs that need nothing of their node.
const unprivileged = "65532:65532"

var images = []berthImage{
	{"berth-scheduler", "kube-scheduler that gives pods floating IPs", compile.Images["berth-scheduler"], unprivileged, false},
	{"berth-controller", "frees floating IPs", compile.Images["berth-controller"], unprivileged, false},
	{"berth-agent", "wires pods with floating IPs, on every node", compile.Images["berth-agent"], "", true},
	{"berth-console", "shows who has which floating IP", compile.Images["berth-console"], unprivileged, false},
	{"berth-failover", "moves pods with floating IPs from nodes that died", compile.Images["berth-failover"], unprivileged, false},
	{"berth-speaker", "announces floating IPs by BGP", compile.Images["berth-speaker"], unprivileged, false},
}

// named returns the images of these names, all without names.
func named(names []string) []berthImage {
	if len(names) == 0 {
		return images
	}
	return slices.DeleteFunc(slices.Clone(images), func(i berthImage) bool { return !slices.Contains(names, i.name) })
}

// Registry is the registry of the chart's images, and Version the tag of images that are no
// release.
const (
	Registry = "ghcr.io/berth-dev"
	Version  = "dev"
)

const source = "https://github.com/berth-dev/berth"

// make makes the image of programs that are in a folder; netfilter is a folder that fetchNetfilter
// made.
func (i berthImage) make(root, programs, netfilter, arch, version string, compression image.Compression) (v1.Image, error) {
	files := map[string]string{}
	if i.netfilter {
		var err error
		if files, err = netfilterFiles(netfilter); err != nil {
			return nil, fmt.Errorf("%s for %s: %w", i.name, arch, err)
		}
	}
	files["/licenses/LICENSE"] = filepath.Join(root, "LICENSE")
	for _, program := range i.programs {
		files["/"+program] = filepath.Join(programs, program)
	}
	img, err := image.Make(arch, files, image.Config{
		Entrypoint: []string{"/" + i.programs[0]}, User: i.user,
		Labels: map[string]string{
			"org.opencontainers.image.title": i.name, "org.opencontainers.image.description": i.about,
			"org.opencontainers.image.version": version, "org.opencontainers.image.source": source,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}, compression)
	if err != nil {
		return nil, fmt.Errorf("%s for %s: %w", i.name, arch, err)
	}
	return img, nil
}

// LoadImages makes images, all of Berth's when none is named, of the programs in the
// repository's bin folder and loads them into the nodes of a lab.
func LoadImages(ctx context.Context, cluster *lab.Cluster, progress io.Writer, names ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cluster.Dir(), "berth-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	netfilter, err := netfilterHere(ctx, progress)
	if err != nil {
		return fmt.Errorf("make Berth's images: %w", err)
	}
	var archives []string
	for _, i := range named(names) {
		img, err := i.make(root, filepath.Join(root, "bin"), netfilter, runtime.GOARCH, Version, image.Uncompressed)
		if err != nil {
			return err
		}
		archive := filepath.Join(dir, i.name+".tar")
		if err := image.Write(archive, Registry+"/"+i.name+":"+Version, img); err != nil {
			return err
		}
		archives = append(archives, archive)
	}
	if err := cluster.LoadImage(ctx, archives...); err != nil {
		return err
	}
	fmt.Fprintln(progress, "loaded Berth's images into the nodes")
	return nil
}

// Images compiles Berth's programs for some architectures and writes one archive of each of
// Berth's images into a folder. registry and version are how the images are called.
func Images(ctx context.Context, progress io.Writer, out, registry, version string, architectures []string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	built, err := os.MkdirTemp("", "berth-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(built)
	for _, arch := range architectures {
		dir := filepath.Join(built, "netfilter-"+arch)
		if err := fetchNetfilter(ctx, progress, dir, arch); err != nil {
			return fmt.Errorf("make Berth's images: %w", err)
		}
		packages, err := netfilterVersions(dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(progress, "packages for %s: %s\n", arch, strings.Join(packages, ", "))
	}
	for _, i := range images {
		var all []v1.Image
		for _, arch := range architectures {
			dir := filepath.Join(built, arch)
			// The program shall not depend on git's state of the folder.
			if err := compileFor(ctx, arch, dir, i.programs, "-buildvcs=false"); err != nil {
				return err
			}
			img, err := i.make(root, dir, filepath.Join(built, "netfilter-"+arch), arch, version, image.Compressed)
			if err != nil {
				return err
			}
			all = append(all, img)
		}
		archive := filepath.Join(out, i.name+"-"+version+".tar")
		if err := image.Write(archive, strings.TrimSuffix(registry, "/")+"/"+i.name+":"+version, all...); err != nil {
			return err
		}
		fmt.Fprintf(progress, "%s: %s for %s\n", archive, registry+"/"+i.name+":"+version, strings.Join(architectures, ", "))
	}
	return nil
}
