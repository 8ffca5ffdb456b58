// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

// installed returns a backup of an API server to which the manifests were applied. Worlds begin
// with it: an API server without any objects makes its own first, and each object of the manifests
// is one more request.
var installed = sync.OnceValues(func() (file string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	cp, err := lab.StartControlPlane(ctx, lab.ControlPlaneOptions{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, cp.Stop()) }()
	config, err := cp.RESTConfig()
	if err != nil {
		return "", err
	}
	objects, err := deploy.Manifests()
	if err != nil {
		return "", err
	}
	if err := deploy.Apply(ctx, config, objects); err != nil {
		return "", err
	}
	file = filepath.Join(folder, "installed.etcd")
	return file, cp.Backup(ctx, file)
})

// Kustomized are the objects that `kubectl apply -k` applies if a user's
// kustomization puts Berth into another namespace, as text.
func (w *World) Kustomized(namespace string) []byte {
	w.T.Helper()
	root, err := deploy.Root()
	if err != nil {
		w.T.Fatal(err)
	}
	return w.Kustomize("namespace: " + namespace + "\nresources: [" + filepath.Join(root, "manifests") + "]\n")
}

// Kustomize returns the objects that `kubectl apply -k` applies of a kustomization, which names
// folders by their absolute paths.
func (w *World) Kustomize(kustomization string) []byte {
	w.T.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		w.T.Fatal(err)
	}
	dir := w.T.TempDir()
	// kustomize takes relative paths only.
	up := strings.Repeat("../", strings.Count(dir, "/"))
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" + absolute.ReplaceAllString(kustomization, "${1}"+up)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		w.T.Fatal(err)
	}
	var stderr bytes.Buffer
	command := exec.CommandContext(w.Ctx, filepath.Join(bin, "kubectl"), "kustomize", dir)
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		w.T.Fatalf("%v: %v\n%s", command, err, &stderr)
	}
	return output
}

// absolute is the beginning of an absolute path in a list.
var absolute = regexp.MustCompile(`([\[ "])/`)

// manifests are the objects that a user applies, but for the programs.
func (w *World) manifests() ([]*unstructured.Unstructured, error) {
	w.T.Helper()
	if w.System == deploy.Namespace {
		return deploy.Manifests()
	}
	objects, err := deploy.Decode(w.Kustomized(w.System))
	return deploy.WithoutPrograms(objects), err
}

// ApplyManifests applies the manifests as `kubectl apply --server-side` does and
// waits until the CRDs are served.
func (w *World) ApplyManifests() {
	w.T.Helper()
	objects, err := w.manifests()
	if err != nil {
		w.T.Fatal(err)
	}
	ctx, cancel := w.patient()
	defer cancel()
	if err := deploy.Apply(ctx, w.Config, objects); err != nil {
		w.T.Fatal(err)
	}
}

// Chart returns what the chart makes of values.
func (w *World) Chart(values map[string]any) []*unstructured.Unstructured {
	w.T.Helper()
	objects, err := deploy.ChartObjects(w.Ctx, w.T.Output(), w.System, w.File("values-*.yaml", values))
	if err != nil {
		w.T.Fatal(err)
	}
	return objects
}
