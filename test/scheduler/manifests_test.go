// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
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
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
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
	names, err := manifestFiles()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		objects, err := manifest(name)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, object := range objects {
			mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
			if err != nil {
				w.t.Fatalf("%s: %v", name, err)
			}
			_, err = api.Resource(mapping.Resource).Namespace(object.GetNamespace()).
				Apply(w.ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "test"})
			if err != nil {
				w.t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
			}
		}
	}
	w.eventually("wait for the API to be served", func() error {
		_, ipsErr := w.berth.FloatingIPs.List(w.ctx, metav1.ListOptions{})
		_, poolsErr := w.berth.IPPools.List(w.ctx, metav1.ListOptions{})
		return errors.Join(ipsErr, poolsErr)
	})
}
