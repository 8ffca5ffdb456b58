// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/monitoring"
	"github.com/berth-dev/berth/test/simulation"
)

// The API server accepts what the chart makes of each of its sets of values, every field of it.
func TestChartIsAccepted(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{System: "network"})
	operators(w)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.Kube.Discovery()))
	chart, err := deploy.Chart()
	if err != nil {
		t.Fatal(err)
	}
	sets, err := filepath.Glob(filepath.Join(chart, "ci", "*.yaml"))
	if err != nil || len(sets) == 0 {
		t.Fatalf("%d sets of values: %v", len(sets), err)
	}
	for _, values := range append(sets, "") {
		objects, err := deploy.ChartObjects(w.Ctx, t.Output(), w.System, values)
		if err != nil {
			t.Fatal(err)
		}
		if len(objects) < 20 {
			t.Errorf("%s makes only %d objects", values, len(objects))
		}
		for _, object := range objects {
			if object.GetKind() == "SecurityContextConstraints" {
				continue // of OpenShift
			}
			to, namespaced := whereOf(w, mapper, object)
			if namespaced && object.GetNamespace() != w.System && object.GetNamespace() != v1.NamespaceNodeLease {
				t.Errorf("%s: %s %s is in namespace %q", values, object.GetKind(), object.GetName(), object.GetNamespace())
			}
			dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict, FieldManager: "helm", Force: new(true)}
			if err := apply(w, to, object, dry); err != nil {
				t.Errorf("%s: %s %s: %v", values, object.GetKind(), object.GetName(), err)
			}
		}
	}
}

// whereOf returns where an object is written, and whether it is in a namespace.
func whereOf(w *simulation.World, mapper meta.RESTMapper, object *unstructured.Unstructured) (to dynamic.ResourceInterface, namespaced bool) {
	w.T.Helper()
	mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
	if err != nil {
		w.T.Fatal(err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return w.Dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()), true
	}
	return w.Dynamic.Resource(mapping.Resource), false
}

// operators makes the kinds of Prometheus' operator, and waits until they are served.
func operators(w *simulation.World) {
	w.T.Helper()
	kinds, err := monitoring.OperatorKinds(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	crds := w.Dynamic.Resource(apiextensions.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, kind := range kinds {
		if _, err := crds.Create(w.Ctx, kind, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
	w.Eventually("the operator's kinds are served", func() error {
		served, err := w.Kube.Discovery().ServerResourcesForGroupVersion("monitoring.coreos.com/v1")
		if err == nil && len(served.APIResources) < len(kinds) {
			err = fmt.Errorf("%d of %d", len(served.APIResources), len(kinds))
		}
		return err
	})
}

func apply(w *simulation.World, to dynamic.ResourceInterface, object *unstructured.Unstructured, options metav1.PatchOptions) error {
	text, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = to.Patch(w.Ctx, object.GetName(), types.ApplyPatchType, text, options)
	return err
}
