// SPDX-License-Identifier: Apache-2.0

package api

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/docs"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

var (
	image   = regexp.MustCompile(`image: .*`)
	runbook = regexp.MustCompile(`https://github.com/berth-dev/berth/blob/[^/]+/docs`)
)

// What a release has for kubectl needs no checkout: the kinds alone, all objects, and manifests/
// with its components and examples. The images and the links to the docs are of the release.
func TestReleaseForKubectl(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	// It would overwrite dist/ of the checkout.
	dir := t.TempDir()
	for _, name := range []string{"Makefile", "cmd", "manifests", "test"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) {
		if out, err := exec.CommandContext(w.Ctx, name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
	}
	run("make", "-C", dir, "manifests", "VERSION=v0.1.0", "REGISTRY=registry.example.com/berth")
	run("tar", "-xzf", filepath.Join(dir, "dist/berth-manifests-v0.1.0.tar.gz"), "-C", dir+"/dist")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, "dist", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, err := docs.Read(root, "docs/how-to/installation.md")
	if err != nil {
		t.Fatal(err)
	}
	// Of a tag of the repository, as the page has it. The images of a checkout are by name where a
	// release has its own.
	ofTag := ""
	for _, block := range page.Blocks {
		if strings.HasPrefix(block.Text, "# kustomization.yaml\n") {
			own := strings.NewReplacer("https://github.com/berth-dev/berth//manifests", filepath.Join(root, "manifests"), "?ref=vVERSION", "", "vVERSION", "v0.1.0").Replace(block.Text)
			ofTag = strings.ReplaceAll(string(w.Kustomize(own)), "ghcr.io/berth-dev/", "registry.example.com/berth/")
		}
	}
	manifests := filepath.Join(dir, "dist/manifests")
	components := "components: [" + manifests + "/agent/host-root, " + manifests + "/agent/overlay, " + manifests + "/pod-defaults, " + manifests + "/network-policies, "

	for _, made := range []struct {
		name, text string
		kinds      int  // at least so many CRDs
		applied    bool // of kinds that the API server knows
		has        string
	}{
		{"berth.yaml", read("berth.yaml"), 6, true, "kind: DaemonSet"},
		{"berth-crds.yaml", read("berth-crds.yaml"), 6, true, "name: ippools.berth.dev"},
		{"manifests", string(w.Kustomize("resources: [" + manifests + "]\n")), 6, true, "kind: DaemonSet"},
		{"a tag", ofTag, 6, true, "--overlay=vxlan"},
		{"the components", string(w.Kustomize("resources: [" + manifests + "]\n" + components + manifests + "/monitoring]\n")), 6, false, "runbook_url: https://github.com/berth-dev/berth/blob/v0.1.0/docs"},
		{"agent/cleanup", string(w.Kustomize("resources: [" + manifests + "/agent/cleanup]\n")), 0, true, "name: berth-cleanup"},
	} {
		objects, err := deploy.Decode([]byte(made.text))
		if err == nil && made.applied {
			err = deploy.Apply(w.Ctx, w.Config, objects)
		}
		if err != nil {
			t.Errorf("%s: %v", made.name, err)
		}
		if !strings.Contains(made.text, made.has) || strings.Count(made.text, "kind: CustomResourceDefinition\n") != made.kinds {
			t.Errorf("%s has another number of kinds than %d, or no %q", made.name, made.kinds, made.has)
		}
		for _, line := range image.FindAllString(made.text, -1) {
			if !strings.HasPrefix(line, "image: registry.example.com/berth/berth-") || !strings.HasSuffix(line, ":v0.1.0") {
				t.Errorf("%s: %q is not of the release", made.name, line)
			}
		}
		for _, link := range runbook.FindAllString(made.text, -1) {
			if !strings.Contains(link, "/blob/v0.1.0/") {
				t.Errorf("%s: %s is not of the release", made.name, link)
			}
		}
	}

	files := func(folder string) (all []string) {
		err := fs.WalkDir(os.DirFS(folder), ".", func(path string, entry fs.DirEntry, err error) error {
			if path == "chart" {
				return fs.SkipDir
			}
			if err == nil && !strings.HasSuffix(path, "_test.go") {
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if diff := cmp.Diff(files(filepath.Join(root, "manifests")), files(manifests)); diff != "" {
		t.Errorf("the archive has other files than manifests/ (-manifests +archive):\n%s", diff)
	}
}
