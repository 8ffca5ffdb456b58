// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/test/compile"
)

// BinDir returns the folder of the lab's programs: what BinEnv names, or test/bin in the
// repository around the working directory; each minor of KubernetesEnv has a folder below it.
func BinDir() (string, error) {
	if d := os.Getenv(BinEnv); d != "" {
		return filepath.Abs(d)
	}
	m, err := compile.Test("", nil)
	return m.Out, err
}

// Build builds the lab's programs that are missing or out of date into
// BinDir. It takes minutes when nothing was ever built, and milliseconds when
// all is there. Several programs may call it at the same time.
func Build(ctx context.Context, w io.Writer) error {
	return build(ctx, newProgress(w))
}

func build(ctx context.Context, progress *progress) error {
	modules, err := compile.Lab()
	if err != nil {
		return fmt.Errorf("build the lab's programs: %w", err)
	}
	return pinned(ctx, progress, modules...)
}

// BuildProgram builds a program that only some tests need, the package in a folder of this
// module or of a module below it, into BinDir, where it is missing or out of date. It returns
// its path.
func BuildProgram(ctx context.Context, w io.Writer, folder string) (path string, err error) {
	name, pkg := strings.ReplaceAll(folder, "/", "-"), "./"+folder
	module, in, _ := strings.Cut(folder, "/")
	switch module {
	case helmModule, "dns":
		pkg = "./" + in
	default:
		module = ""
	}
	return buildOne(ctx, w, module, name, pkg)
}

// BuildPackage is BuildProgram for a package of a module that this one requires.
func BuildPackage(ctx context.Context, w io.Writer, pkg string) (path string, err error) {
	return buildOne(ctx, w, "", filepath.Base(pkg), pkg)
}

// BuildHelm is BuildProgram for Helm's own program, of the version that the module helm pins.
func BuildHelm(ctx context.Context, w io.Writer) (path string, err error) {
	return buildOne(ctx, w, helmModule, "helm", "helm.sh/helm/v4/cmd/helm")
}

// InstallPlugins builds upstream plugins of CNI that nodes do not come with, where they are missing
// or out of date, and copies them to the node.
func (n *Node) InstallPlugins(ctx context.Context, w io.Writer, plugins ...string) error {
	for _, plugin := range plugins {
		module := ""
		if plugin == "meta/flannel" {
			module = "flannel" // it is not in the version of the other plugins any more
		}
		path, err := buildOne(ctx, w, module, filepath.Base(plugin), "github.com/containernetworking/plugins/plugins/"+plugin)
		if err != nil {
			return err
		}
		if _, err := n.Exec(ctx, "cp", path, "/opt/cni/bin/"); err != nil {
			return fmt.Errorf("install %s on %s: %w", plugin, n.name, err)
		}
	}
	return nil
}

// helmModule is the folder of the module of Helm and what renders with it.
const helmModule = "helm"

func buildOne(ctx context.Context, w io.Writer, module, name, pkg string) (path string, err error) {
	bin, err := BinDir()
	if err != nil {
		return "", err
	}
	m, err := compile.Test(module, map[string]string{name: pkg})
	if err == nil {
		err = pinned(ctx, newProgress(w), m)
	}
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return filepath.Join(bin, name), nil
}

// pinned compiles programs, unless BinEnv names a folder that has them.
func pinned(ctx context.Context, progress *progress, modules ...compile.Module) error {
	if os.Getenv(BinEnv) != "" {
		return nil
	}
	return compile.Pinned(ctx, progress.say, modules...)
}
