// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/test/compile"
	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/image"
	"github.com/berth-dev/berth/test/lab"
)

// agnhost runs upstream's program for tests.
var agnhost = image.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}

// Images are some of upstream's, with what they run. All have the same files.
type Images map[string]image.Config

// The images that the cases of suites need. The one of network-policy-api's is in its
// base/manifests.yaml.
var (
	NetpolImages           = Images{imageutils.GetE2EImage(imageutils.Agnhost): agnhost}
	NetworkPolicyAPIImages = Images{"registry.k8s.io/e2e-test-images/agnhost:2.45": agnhost}
	ConformanceImages      = Images{
		imageutils.GetE2EImage(imageutils.Agnhost):         agnhost,
		imageutils.GetE2EImage(imageutils.AgnhostPrev):     agnhost,
		imageutils.GetE2EImage(imageutils.BusyBox):         {Cmd: []string{"sh"}},
		imageutils.GetE2EImage(imageutils.GlibcDnsTesting): {Cmd: []string{"sh"}},
		imageutils.GetE2EImage(imageutils.Nginx):           {Cmd: []string{"nginx", "-g", "daemon off;"}},
		imageutils.GetE2EImage(imageutils.Nonewprivs):      {Cmd: []string{"nnp"}},
		imageutils.GetE2EImage(imageutils.Pause):           {Entrypoint: []string{"/agnhost", "pause"}},
	}
)

// packages are Debian's: what upstream's images have beside their programs, and nginx. The shell is
// bash: Debian's busybox would call its own nc and not the one that cases expect, and dash drops
// variables whose names have dashes, which ConfigMaps have.
var packages = []string{"bash", "bind9-dnsutils", "busybox-static", "curl", "libc-bin", "netcat-openbsd", "nginx"}

// Load makes the images and loads them into the nodes.
func (images Images) Load(ctx context.Context, cluster *lab.Cluster, progress io.Writer) error {
	dir, err := os.MkdirTemp(cluster.Dir(), "upstream-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, err := imageFiles(ctx, cluster, progress, dir)
	if err != nil {
		return fmt.Errorf("make upstream's images: %w", err)
	}
	var archives []string
	for ref, config := range images {
		archive, err := cluster.BuildImage(ref, files, config)
		if err != nil {
			return err
		}
		archives = append(archives, archive)
	}
	return cluster.LoadImage(ctx, archives...)
}

// imageFiles maps paths in the images to files of this machine, some of which it makes in dir.
func imageFiles(ctx context.Context, cluster *lab.Cluster, progress io.Writer, dir string) (map[string]string, error) {
	root := filepath.Join(cluster.BinDir(), "upstream-"+strings.Join(packages, "-"))
	if err := debian.Once(root, func(staged string) error { return installRoot(ctx, staged) }); err != nil {
		return nil, err
	}
	source, err := moduleDir(ctx, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	porter := filepath.Join(source, "test/images/agnhost/porter")
	built, err := lab.BuildPackage(ctx, progress, "k8s.io/kubernetes/test/images/nonewprivs")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(built)
	if err != nil {
		return nil, err
	}
	// It finds out whether it gets the rights of its owner.
	nnp := filepath.Join(dir, "nnp")
	if err := os.WriteFile(nnp, program, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(nnp, 0o755|os.ModeSetuid); err != nil {
		return nil, err
	}
	files := map[string]string{
		"/": root, "/agnhost": filepath.Join(cluster.BinDir(), "agnhost"), "/usr/local/bin/nnp": nnp,
		"/localhost.crt": filepath.Join(porter, "localhost.crt"), "/localhost.key": filepath.Join(porter, "localhost.key"),
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		return files, unix.Close(fd)
	}
	fmt.Fprintf(progress, "this kernel has no SCTP sockets (%v): agnhost has its own\n", err)
	files["/agnhost.upstream"] = files["/agnhost"]
	files["/agnhost"], err = lab.BuildProgram(ctx, progress, "upstream/agnhost")
	return files, err
}

// installRoot makes the folder root of the packages, with what their scripts and Dockerfiles of
// upstream's images make.
func installRoot(ctx context.Context, root string) error {
	if err := debian.Install(ctx, root, packages); err != nil {
		return err
	}
	// Images get a /tmp that all may write to.
	for _, dir := range []string{"tmp", "usr/share/doc", "usr/share/locale", "usr/share/man"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"root", "run", "uploads"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	links := map[string]string{"agnhost-2": "agnhost", "usr/bin/nc": "nc.openbsd", "usr/bin/sh": "bash"}
	applets, err := exec.CommandContext(ctx, filepath.Join(root, "usr/bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("list busybox's programs: %w", err)
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		name := filepath.Join("usr/bin", applet)
		if _, err := os.Lstat(filepath.Join(root, name)); err != nil && links[name] == "" {
			links[name] = "busybox"
		}
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	const users = "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(users), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\nwww-data:x:33:\n"), 0o644)
}

// NetworkPolicyAPIDefinition returns the file with the definition of ClusterNetworkPolicies that
// has all features.
func NetworkPolicyAPIDefinition(ctx context.Context) (string, error) {
	dir, err := moduleDir(ctx, "sigs.k8s.io/network-policy-api")
	return filepath.Join(dir, "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"), err
}

// moduleDir returns the folder of the source of a module that the module test requires.
func moduleDir(ctx context.Context, module string) (string, error) {
	root, err := compile.Root()
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	command.Dir, command.Env = filepath.Join(root, "test"), append(os.Environ(), "GOWORK=off")
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", module, err)
	}
	return strings.TrimSpace(string(output)), nil
}
