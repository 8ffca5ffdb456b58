// SPDX-License-Identifier: Apache-2.0

// Package customkind imitates workloads of kinds that neither Kubernetes nor Berth
// knows: their definitions with a scale subresource, and their controllers.
package customkind

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a custom kind. Its controller keeps as many pods as are wanted, and
// replaces pods of an older template one by one, when all are ready.
type Kind struct {
	GVK      schema.GroupVersionKind
	Resource string
	// Numbered: pods have names that last, from NAME-First on; random ones otherwise.
	Numbered bool
	First    int
	// Sets: it owns ReplicaSets, and these the pods.
	Sets bool
	// Surge is how many pods more than wanted there are while some are replaced.
	Surge int
	// Adopts: it takes over pods and ReplicaSets that nobody owns.
	Adopts bool
	// Status: it writes how far it is.
	Status bool
	// Scaleless: it has no scale subresource.
	Scaleless bool
}

// GVR is the kind's resource.
func (k Kind) GVR() schema.GroupVersionResource {
	return k.GVK.GroupVersion().WithResource(k.Resource)
}

// Definition is the kind's CustomResourceDefinition.
func (k Kind) Definition() *unstructured.Unstructured {
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	subresources := map[string]any{"status": map[string]any{}}
	if !k.Scaleless {
		subresources["scale"] = map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": k.Resource + "." + k.GVK.Group},
		"spec": map[string]any{
			"group": k.GVK.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": k.Resource, "singular": strings.ToLower(k.GVK.Kind), "kind": k.GVK.Kind, "listKind": k.GVK.Kind + "List"},
			"versions": []any{map[string]any{
				"name": k.GVK.Version, "served": true, "storage": true,
				"schema":       map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": open, "status": open}}},
				"subresources": subresources,
			}},
		},
	}}
}

// Definitions is the resource of all Definitions.
var Definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Role lets Berth read kinds, by aggregation.
func Role(kinds []Kind) *rbacv1.ClusterRole {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
		Name: "berth-custom-kinds", Labels: map[string]string{"rbac.berth.dev/aggregate-to-controller": "true"},
	}}
	for _, kind := range kinds {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{kind.GVK.Group}, Resources: []string{kind.Resource, kind.Resource + "/scale"}, Verbs: []string{"get", "list", "watch"},
		})
	}
	return role
}

// Object has the fields of a workload that the controllers read and write.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas int32              `json:"replicas"`
		Template v1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
	Status Status `json:"status,omitzero"`
}

// Status says how far the controller of a workload is.
type Status struct {
	ObservedGeneration int64 `json:"observedGeneration"`
	Replicas           int32 `json:"replicas"`
	Updated            int32 `json:"updated"`
	Ready              int32 `json:"ready"`
}

// Read returns the workload that an API object is.
func Read(object *unstructured.Unstructured) (*Object, error) {
	read := &Object{}
	return read, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, read)
}

// AtRest says whether the workload has all its pods, by its status.
func (o *Object) AtRest() bool {
	want := o.Spec.Replicas
	return o.Status == Status{ObservedGeneration: o.Generation, Replicas: want, Updated: want, Ready: want}
}
