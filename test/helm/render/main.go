// SPDX-License-Identifier: Apache-2.0

// Render renders the chart of manifests/chart with Helm's own engine. With -out it writes
// manifests/ from it, each template to the file of the same path; otherwise it prints the
// objects that a values file makes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/engine"
)

// namespace is the namespace of manifests/namespace.yaml.
const namespace = "berth-system"

// kubernetes is the version that manifests/ is for; Helm's own may be older.
var kubernetes = common.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}

// rendering is a part of manifests/: the templates below a folder, with values.
type rendering struct {
	folder string // of manifests/; empty: all that the defaults make
	values map[string]any
}

// renderings are the sources of manifests/: the chart's defaults, and the values of kustomizations
// of parts. A later rendering replaces no file of an earlier one.
var renderings = []rendering{
	{"", nil},
	{"agent/overlay", map[string]any{"overlay": map[string]any{"enabled": true}}},
	{"monitoring", map[string]any{"metrics": map[string]any{
		"monitors": map[string]any{"enabled": true}, "rules": map[string]any{"enabled": true}, "dashboards": map[string]any{"enabled": true},
	}}},
	{"pod-defaults", map[string]any{"podDefaults": map[string]any{"enabled": true}}},
	{"network-policies", map[string]any{"networkPolicy": map[string]any{"programs": map[string]any{"enabled": true}}}},
	{"agent/cleanup", map[string]any{"agent": map[string]any{"mode": "cleanup"}}},
}

func main() {
	dir := flag.String("chart", "manifests/chart", "folder of the chart")
	out := flag.String("out", "", "folder to write the defaults into, as files of the templates' paths")
	valuesFile := flag.String("values", "", "file of values to print the objects of; - is stdin")
	in := flag.String("namespace", namespace, "namespace of the release whose objects are printed")
	flag.Parse()
	if err := run(*dir, *out, *valuesFile, *in, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, out, valuesFile, in string, stdout io.Writer) error {
	c, err := open(dir)
	if err != nil {
		return err
	}
	if out != "" {
		return write(c, out)
	}
	values, err := readValues(valuesFile)
	if err != nil {
		return err
	}
	files, err := render(c, in, values)
	if err != nil {
		return err
	}
	deleteHooks(files)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := fmt.Fprintf(stdout, "---\n%s", files[name]); err != nil {
			return err
		}
	}
	return nil
}

func open(dir string) (*chart.Chart, error) {
	loaded, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("load chart %s: %w", dir, err)
	}
	c, ok := loaded.(*chart.Chart)
	if !ok {
		return nil, fmt.Errorf("load chart %s: it is of another version, %T", dir, loaded)
	}
	return c, nil
}

func readValues(file string) (map[string]any, error) {
	switch file {
	case "":
		return nil, nil
	case "-":
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		return common.ReadValues(text)
	}
	return common.ReadValuesFile(file)
}

// render returns what the templates make, by their paths below templates/. Templates that make
// nothing, and the notes, are left out.
func render(c *chart.Chart, in string, values map[string]any) (map[string]string, error) {
	capabilities := *common.DefaultCapabilities
	capabilities.KubeVersion = kubernetes
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "berth", Namespace: in, IsInstall: true}, &capabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	prefix := path.Join(c.Name(), "templates") + "/"
	for name, text := range rendered {
		if text = strings.TrimSpace(text); text != "" && path.Ext(name) == ".yaml" {
			files[strings.TrimPrefix(name, prefix)] = text + "\n"
		}
	}
	return files, nil
}

// deleteHooks deletes the templates of objects that only Helm makes, when it uninstalls.
func deleteHooks(files map[string]string) {
	maps.DeleteFunc(files, func(name, _ string) bool { return path.Dir(name) == "uninstall" })
}

// write writes manifests/ below out, and removes no file.
func write(c *chart.Chart, out string) error {
	var errs []error
	for _, r := range renderings {
		files, err := render(c, namespace, r.values)
		if err != nil {
			return err
		}
		// The files that it is made of are written one by one.
		delete(files, "crd.yaml")
		deleteHooks(files)
		for name, text := range files {
			if strings.HasPrefix(name, r.folder) {
				errs = append(errs, put(filepath.Join(out, filepath.FromSlash(name)), text))
			}
		}
	}
	for _, file := range c.Files {
		if path.Dir(file.Name) == "crd" {
			errs = append(errs, put(filepath.Join(out, filepath.FromSlash(file.Name)), string(file.Data)))
		}
	}
	return errors.Join(errs...)
}

func put(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
