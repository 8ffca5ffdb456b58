// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/test/simulation/customkind"
)

// Custom kinds with a scale subresource: pods of a fleet have random names, those
// of a crew numbers.
const (
	fleet = "Fleet"
	crew  = "Crew"
)

var customGroup = schema.GroupVersion{Group: "chaos.berth.test", Version: "v1"}

var customKinds = []customkind.Kind{
	{GVK: customGroup.WithKind(fleet), Resource: "fleets", Status: true},
	{GVK: customGroup.WithKind(crew), Resource: "crews", Numbered: true, Status: true},
}

func customResource(kind string) schema.GroupVersionResource {
	return customGroup.WithResource(strings.ToLower(kind) + "s")
}

// createCustom makes the API object of a workload.
func (w *world) createCustom(wl *workload) error {
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1.PodTemplateSpec{ObjectMeta: wl.template().ObjectMeta, Spec: wl.template().Spec})
	if err != nil {
		return err
	}
	_, err = w.Dynamic.Resource(wl.resource()).Namespace(wl.namespace).Create(w.Ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": customGroup.String(), "kind": wl.kind, "metadata": map[string]any{"name": wl.name, "namespace": wl.namespace},
		"spec": map[string]any{"replicas": int64(wl.replicas), "template": template},
	}}, metav1.CreateOptions{})
	return err
}
