// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/berth-dev/berth/test/lab"
)

// manifestFiles are the files of manifests/ that `kubectl apply -k` applies, but
// for the programs, which the tests run themselves.
func manifestFiles() ([]string, error) {
	kustomization, err := manifest("kustomization.yaml")
	if err != nil {
		return nil, err
	}
	resources, _, err := unstructured.NestedStringSlice(kustomization[0].Object, "resources")
	if err != nil {
		return nil, fmt.Errorf("kustomization.yaml: %w", err)
	}
	return slices.DeleteFunc(resources, func(name string) bool {
		base := filepath.Base(name)
		return base == "deployment.yaml" || base == "daemonset.yaml"
	}), nil
}

// manifest reads the objects of one file of manifests/.
func manifest(name string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(filepath.Join(root, "manifests", name))
	if err != nil {
		return nil, err
	}
	objects, err := objectsOf(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return objects, nil
}

// objectsOf decodes all documents of a YAML text.
func objectsOf(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}

// kustomized are the objects that `kubectl apply -k` applies if a user's
// kustomization puts Berth into another namespace, as text.
func (w *world) kustomized(namespace string) []byte {
	w.t.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	base, err := filepath.Abs(filepath.Join(root, "manifests"))
	if err != nil {
		w.t.Fatal(err)
	}
	// kustomize takes relative paths only.
	if base, err = filepath.Rel(dir, base); err != nil {
		w.t.Fatal(err)
	}
	text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: %s\nresources: [%s]\n", namespace, base)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	var stderr bytes.Buffer
	command := exec.CommandContext(w.ctx, filepath.Join(bin, "kubectl"), "kustomize", dir)
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		w.t.Fatalf("%v: %v\n%s", command, err, &stderr)
	}
	return output
}

// manifests are the objects that a user applies, but for the programs.
func (w *world) manifests() []*unstructured.Unstructured {
	w.t.Helper()
	if w.system != berthSystem {
		objects, err := objectsOf(w.kustomized(w.system))
		if err != nil {
			w.t.Fatal(err)
		}
		return slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
			return object.GetKind() == "Deployment" || object.GetKind() == "DaemonSet"
		})
	}
	names, err := manifestFiles()
	if err != nil {
		w.t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	for _, name := range names {
		objects, err := manifest(name)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, objects...)
	}
	return all
}

// applyManifests applies the manifests as `kubectl apply --server-side` does and
// waits until the CRDs are served.
func (w *world) applyManifests() {
	w.t.Helper()
	api, err := dynamic.NewForConfig(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.kube.Discovery()))
	for _, object := range w.manifests() {
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if err != nil {
			w.t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		// kustomize gives a namespace to kinds that it does not know, too, and
		// kubectl ignores it where they have none.
		to := dynamic.ResourceInterface(api.Resource(mapping.Resource))
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			to = api.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		if _, err := to.Apply(w.ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
			w.t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
	w.eventually("wait for the API to be served", func() error {
		_, ipsErr := w.berth.FloatingIPs.List(w.ctx, metav1.ListOptions{})
		_, poolsErr := w.berth.IPPools.List(w.ctx, metav1.ListOptions{})
		return errors.Join(ipsErr, poolsErr)
	})
}
