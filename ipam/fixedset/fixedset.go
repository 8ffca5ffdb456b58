// SPDX-License-Identifier: Apache-2.0

// Package fixedset computes for how many pods a workload keeps addresses, if its pods
// share them: a Deployment, a ReplicaSet, a custom kind with a scale subresource. The
// number is its replicas plus spare ones: as many pods as its update strategy starts
// before it ends others. Another pod waits until a pod of the workload gives its
// addresses back, so after any update the pods are on the same addresses. The pods that
// a DaemonSet has on one node, one after the other, share in the same way; but none waits.
// docs/explanation/release.md has the rule for users.
//
// The scheduler uses it to decide which pods wait, the reclaimer to decide which
// addresses without a pod are kept. All functions are pure.
package fixedset

import (
	"math"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Size says for how many pods a workload keeps addresses.
type Size struct {
	// Replicas is how many pods the workload wants; Spare is for how many more it keeps
	// addresses.
	Replicas, Spare int64
	// Unlimited: no pod waits for the address of another. The workload keeps its oldest
	// addresses, for Replicas pods.
	Unlimited bool
}

// Pods returns for how many pods addresses are kept.
func (s Size) Pods() int64 { return s.Replicas + s.Spare }

// Spare is the pod template's annotation about spare addresses. The zero value: there is
// none, and the update strategy decides.
type Spare struct {
	Said      bool
	Pods      int64
	Unlimited bool
}

// With applies the annotation, if there is one, to a size that follows from the update
// strategy.
func (s Size) With(spare Spare) Size {
	switch {
	case spare.Unlimited:
		return Size{Replicas: s.Replicas, Unlimited: true}
	case spare.Said:
		return Size{Replicas: s.Replicas, Spare: spare.Pods}
	case s.Replicas == 0:
		return Size{}
	}
	return s
}

func size(replicas int64, spare Spare, needed func() int64) Size {
	return Size{Replicas: replicas, Spare: needed()}.With(spare)
}

// OfDeployment returns the size for a Deployment. If maxUnavailable resolves to 0, its
// controller ends no pod before a new one is available, so the new pods, up to maxSurge,
// need addresses of their own.
func OfDeployment(spec *appsv1.DeploymentSpec, spare Spare) Size {
	replicas := number(spec.Replicas)
	return size(replicas, spare, func() int64 {
		if spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			return 0
		}
		// The API server's default.
		quarter := intstr.FromString("25%")
		surge, unavailable := &quarter, &quarter
		if rolling := spec.Strategy.RollingUpdate; rolling != nil {
			surge, unavailable = orDefault(rolling.MaxSurge, surge), orDefault(rolling.MaxUnavailable, unavailable)
		}
		return needed(replicas, surge, unavailable)
	})
}

func orDefault(value, otherwise *intstr.IntOrString) *intstr.IntOrString {
	if value == nil {
		return otherwise
	}
	return value
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

// OfReplicaSet returns the size for a ReplicaSet. It has no update strategy: it starts a
// pod when another is being deleted.
func OfReplicaSet(spec *appsv1.ReplicaSetSpec, spare Spare) Size {
	return size(number(spec.Replicas), spare, func() int64 { return 0 })
}

// OfDaemonSet returns the size for each node of a DaemonSet. With maxSurge its controller
// ends the old pod of a node only when the new one is available, so the new one needs
// addresses of its own.
func OfDaemonSet(spec *appsv1.DaemonSetSpec, spare Spare) Size {
	return size(1, spare, func() int64 {
		rolling := spec.UpdateStrategy.RollingUpdate
		if rolling == nil {
			return 0
		}
		// The API server's defaults.
		none, one := intstr.FromInt32(0), intstr.FromInt32(1)
		// However many nodes it updates at a time, each has one pod more.
		return min(1, needed(1, orDefault(rolling.MaxSurge, &none), orDefault(rolling.MaxUnavailable, &one)))
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

// OfCustom returns the size for an object of a custom kind, or a ReplicationController.
// replicas is how many pods it wants. A kind with an unknown strategy may start pods
// before it ends others, so it gets addresses for one spare pod.
func OfCustom(object map[string]any, replicas int64, spare Spare) Size {
	return size(replicas, spare, func() int64 {
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

func intOrString(value any) (intstr.IntOrString, bool) {
	switch value := value.(type) {
	case int64:
		return intstr.FromInt32(int32(min(value, math.MaxInt32))), true
	case string:
		return intstr.Parse(value), true
	}
	return intstr.IntOrString{}, false
}

// number applies the API's default of 1.
func number(replicas *int32) int64 {
	if replicas == nil {
		return 1
	}
	return int64(*replicas)
}
