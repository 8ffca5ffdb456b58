// SPDX-License-Identifier: Apache-2.0

// Package fixedset computes for how many pods a workload keeps addresses, if its pods share them: a
// Deployment, a ReplicaSet, a custom kind with a scale subresource. The number is the replicas plus
// spare pods: as many as the update strategy starts before it ends others. Any further pod waits
// until a pod of the workload gives its addresses back. So after an update the pods have the same
// addresses as before. The successive pods of a DaemonSet on one node share addresses in the same
// way, but none of them waits. docs/explanation/release.md has the rule for users.
//
// The annotation [v1alpha1.AnnotationSpareAddresses] of the workload's pod template overrides the
// strategy, immediately and for all pods. The annotations of pods of an older template do not
// count, because one set has one number.
//
// The scheduler uses it to decide which pods wait, the reclaimer to decide which
// addresses without a pod are kept. All functions are pure.
package fixedset

import (
	"cmp"
	"fmt"
	"math"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Size says for how many pods a workload keeps addresses.
type Size struct {
	// Replicas is how many pods the workload wants. Spare is the number of further pods for which it
	// keeps addresses.
	Replicas, Spare int64
	// Unlimited says that no pod waits for the address of another. The workload keeps its oldest
	// addresses, for Replicas pods.
	Unlimited bool
	// Partial says that Replicas may count only some of the workload's pods. No pod waits, and the
	// workload keeps all addresses.
	Partial bool
}

// IsFixed says whether a pod waits while Pods other pods have addresses.
func (s Size) IsFixed() bool { return !s.Unlimited && !s.Partial }

// Pods returns for how many pods addresses are kept.
func (s Size) Pods() int64 { return s.Replicas + s.Spare }

// Spare is the pod template's annotation about spare addresses. The zero value means that there is
// no annotation, and the update strategy decides.
type Spare struct {
	Said      bool
	Pods      int64
	Unlimited bool
}

// SpareOf reads the annotation [v1alpha1.AnnotationSpareAddresses] of a pod or pod
// template. The error is for the author of the annotation.
func SpareOf(annotations map[string]string) (Spare, error) {
	text, ok := annotations[v1alpha1.AnnotationSpareAddresses]
	if !ok {
		return Spare{}, nil
	}
	if text == v1alpha1.SpareUnlimited {
		return Spare{Said: true, Unlimited: true}, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return Spare{}, fmt.Errorf("annotation %s: %q is neither a number from 0 to %d nor %q", v1alpha1.AnnotationSpareAddresses, text, math.MaxUint16, v1alpha1.SpareUnlimited)
	}
	return Spare{Said: true, Pods: int64(n)}, nil
}

// SlimTemplate returns the part of a pod template that determines the size.
func SlimTemplate(template *v1.PodTemplateSpec) (slim v1.PodTemplateSpec) {
	if text, ok := template.Annotations[v1alpha1.AnnotationSpareAddresses]; ok {
		slim.Annotations = map[string]string{v1alpha1.AnnotationSpareAddresses: text}
	}
	return slim
}

// size returns the size by the annotations of the pod template, or by the update strategy. It
// ignores an invalid annotation: the scheduler refuses pods with it.
func size(replicas int64, template metav1.ObjectMeta, needed func() int64) Size {
	spare, err := SpareOf(template.Annotations)
	switch {
	case err == nil && spare.Unlimited:
		return Size{Replicas: replicas, Unlimited: true}
	case err == nil && spare.Said:
		return Size{Replicas: replicas, Spare: spare.Pods}
	case replicas == 0:
		return Size{}
	}
	return Size{Replicas: replicas, Spare: needed()}
}

// OfDeployment returns the size for a Deployment. If maxUnavailable resolves to 0, its
// controller ends no pod before a new one is available, so the new pods, up to maxSurge,
// need addresses of their own.
func OfDeployment(spec *appsv1.DeploymentSpec) Size {
	replicas := int64(ptr.Deref(spec.Replicas, 1)) // the API's default
	return size(replicas, spec.Template.ObjectMeta, func() int64 {
		if spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			return 0
		}
		// The API server's default.
		quarter := intstr.FromString("25%")
		surge, unavailable := &quarter, &quarter
		if rolling := spec.Strategy.RollingUpdate; rolling != nil {
			surge, unavailable = cmp.Or(rolling.MaxSurge, surge), cmp.Or(rolling.MaxUnavailable, unavailable)
		}
		return needed(replicas, surge, unavailable)
	})
}

// needed returns how many pods a strategy starts before it ends any. It resolves
// percentages as the Deployment controller does. If both resolve to 0, the controller
// uses maxUnavailable 1, and the result is 0.
func needed(replicas int64, surge, unavailable *intstr.IntOrString) int64 {
	down, err := intstr.GetScaledValueFromIntOrPercent(unavailable, int(replicas), false)
	if err != nil || down > 0 {
		return 0
	}
	up, err := intstr.GetScaledValueFromIntOrPercent(surge, int(replicas), true)
	if err != nil {
		return 0
	}
	return int64(up)
}

// OfReplicaSet returns the size for a ReplicaSet. A ReplicaSet has no update strategy: it starts a
// pod when another pod is being deleted.
func OfReplicaSet(spec *appsv1.ReplicaSetSpec) Size {
	return size(int64(ptr.Deref(spec.Replicas, 1)), spec.Template.ObjectMeta, func() int64 { return 0 })
}

// OfDaemonSet returns the size for each node of a DaemonSet. With maxSurge its controller
// ends the old pod of a node only when the new one is available, so the new one needs
// addresses of its own.
func OfDaemonSet(spec *appsv1.DaemonSetSpec) Size {
	return size(1, spec.Template.ObjectMeta, func() int64 {
		rolling := spec.UpdateStrategy.RollingUpdate
		if rolling == nil {
			return 0
		}
		// The API server's defaults.
		none, one := intstr.FromInt32(0), intstr.FromInt32(1)
		// The number of nodes that it updates at a time does not matter: each has one more pod.
		return min(1, needed(1, cmp.Or(rolling.MaxSurge, &none), cmp.Or(rolling.MaxUnavailable, &one)))
	})
}

// strategies are the paths of maxSurge and maxUnavailable in custom kinds: an Argo
// Rollout, a CloneSet, and kinds modelled on a Deployment.
var strategies = [][]string{
	{"spec", "strategy", "canary"},
	{"spec", "strategy", "rollingUpdate"},
	{"spec", "updateStrategy", "rollingUpdate"},
	{"spec", "updateStrategy"},
	{"spec", "strategy"},
}

// sideBySide are strategies of an Argo Rollout that may run all old and all new pods at
// the same time.
var sideBySide = [][]string{
	{"spec", "strategy", "blueGreen"},
	{"spec", "strategy", "canary", "trafficRouting"},
}

// OfCustom returns the size for an object of a custom kind, or a ReplicationController. replicas is
// the number of pods in its scale. A kind with an unknown strategy may start pods before it ends
// others, so it gets addresses for one spare pod. A kind without spec.template may have several pod
// templates: the scale of a training job, for example, counts the workers and not their master.
func OfCustom(object map[string]any, replicas int64) Size {
	_, templated, _ := unstructured.NestedFieldNoCopy(object, "spec", "template")
	_, elsewhere, _ := unstructured.NestedFieldNoCopy(object, "spec", "workloadRef") // an Argo Rollout's
	if !templated && !elsewhere {
		return Size{Replicas: replicas, Partial: true}
	}
	return size(replicas, templateOf(object), func() int64 {
		if object["apiVersion"] == "v1" && object["kind"] == "ReplicationController" {
			return 0 // like a ReplicaSet
		}
		for _, path := range sideBySide {
			if _, found, _ := unstructured.NestedMap(object, path...); found {
				return replicas
			}
		}
		for _, path := range strategies {
			strategy, found, _ := unstructured.NestedMap(object, path...)
			if !found {
				continue
			}
			surge, surges := intOrString(strategy["maxSurge"])
			unavailable, says := intOrString(strategy["maxUnavailable"])
			if !says {
				continue
			}
			if !surges {
				surge = intstr.FromInt32(1)
			}
			return needed(replicas, &surge, &unavailable)
		}
		return 1
	})
}

// OfSingle returns the size for an object of a custom kind with one pod. For a moment it may have
// two.
func OfSingle(object map[string]any) Size {
	return size(1, templateOf(object), func() int64 { return 0 })
}

// templateOf returns the annotations of the pod template in spec.template.
func templateOf(object map[string]any) metav1.ObjectMeta {
	annotations, _, _ := unstructured.NestedStringMap(object, "spec", "template", "metadata", "annotations")
	return metav1.ObjectMeta{Annotations: annotations}
}

func intOrString(value any) (intstr.IntOrString, bool) {
	switch value := value.(type) {
	case int64:
		return intstr.FromInt32(int32(min(value, math.MaxInt32))), true
	case string:
		return intstr.Parse(value), true
	}
	return intstr.IntOrString{}, false
}
