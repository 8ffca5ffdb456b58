// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/berth-dev/berth/ipam/client"
)

// Manifests reads the objects that `kubectl apply -k manifests` applies, but for the
// programs, which a test runs itself. Where folders of manifests/ are named it reads
// these folders only.
func Manifests(folders ...string) ([]*unstructured.Unstructured, error) {
	kustomization, err := Manifest("kustomization.yaml")
	if err != nil {
		return nil, err
	}
	files, _, err := unstructured.NestedStringSlice(kustomization[0].Object, "resources")
	if err != nil {
		return nil, fmt.Errorf("kustomization.yaml: %w", err)
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		if len(folders) > 0 && !slices.Contains(folders, filepath.Dir(file)) {
			continue
		}
		objects, err := Manifest(file)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return WithoutPrograms(all), nil
}

// WithoutPrograms leaves out what runs Berth's programs.
func WithoutPrograms(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	return slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "Deployment" || object.GetKind() == "DaemonSet"
	})
}

// Manifest reads the objects of one file of manifests/.
func Manifest(name string) ([]*unstructured.Unstructured, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "manifests", name))
	if err != nil {
		return nil, err
	}
	objects, err := Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return objects, nil
}

// Decode decodes all documents of a YAML text.
func Decode(text []byte) ([]*unstructured.Unstructured, error) {
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

// Apply applies manifests as `kubectl apply --server-side` does, and waits until
// Berth's API is served or ctx ends. It is idempotent.
func Apply(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	lookup, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(lookup))
	for _, object := range objects {
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		// kustomize gives a namespace to kinds that it does not know, too, and
		// kubectl ignores it where they have none.
		to := dynamic.ResourceInterface(api.Resource(mapping.Resource))
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			to = api.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		if _, err := to.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	berth, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	return served(ctx, berth)
}

// served waits until the custom resources can be listed.
func served(ctx context.Context, berth *client.Client) error {
	ticker := time.NewTicker(30 * time.Millisecond)
	defer ticker.Stop()
	for {
		_, ips := berth.FloatingIPs.List(ctx, metav1.ListOptions{})
		_, pools := berth.IPPools.List(ctx, metav1.ListOptions{})
		_, claims := berth.IPClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		err := errors.Join(ips, pools, claims)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Berth's API: %w", err)
		case <-ticker.C:
		}
	}
}
