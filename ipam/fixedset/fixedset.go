// SPDX-License-Identifier: Apache-2.0

// Package fixedset says for how many pods a workload keeps addresses whose pods
// share them out: a Deployment, a ReplicaSet, a custom kind with a scale
// subresource. It is as many as the workload has replicas, and as many more, the
// spare ones, as its update strategy starts before it ends others. A pod beyond that
// waits until another one of the workload gives its addresses back, so after any
// update the pods are on the same addresses. docs/release.md has the rule for users.
//
// The scheduler (who waits) and the reclaimer (which addresses without a pod are
// kept) both take it from here. Pure.
package fixedset

import (
	"math"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Size is for how many pods a workload keeps addresses.
type Size struct {
	// Replicas is how many pods the workload wants, and Spare for how many more it
	// keeps addresses.
	Replicas, Spare int64
	// Unlimited: no pod waits for another one's address. The workload keeps its
	// oldest addresses, for as many pods as it wants.
	Unlimited bool
}

// Pods is for how many pods addresses are kept.
func (s Size) Pods() int64 { return s.Replicas + s.Spare }

// Spare is what the pod template says of the spare addresses; the zero value: nothing, the
// strategy does.
type Spare struct {
	Said      bool
	Pods      int64
	Unlimited bool
}

// With applies what the annotation says, if it does, to a size that follows from the
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

// OfDeployment reads a Deployment. Its controller ends no pod before a new one is
// available where maxUnavailable comes to 0, so the new ones, up to maxSurge, need
// addresses of their own.
func OfDeployment(spec *appsv1.DeploymentSpec, spare Spare) Size {
	replicas := number(spec.Replicas)
	return size(replicas, spare, func() int64 {
		if spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			return 0
		}
		// What the API server sets where the author says nothing.
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

// needed is how many pods a strategy starts before it ends any, if it does; it
// resolves the numbers as the Deployment controller does. If both come to 0 that
// counts maxUnavailable as 1.
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

// OfReplicaSet reads a ReplicaSet, which has no strategy: it starts a pod when
// another is being deleted.
func OfReplicaSet(spec *appsv1.ReplicaSetSpec, spare Spare) Size {
	return size(number(spec.Replicas), spare, func() int64 { return 0 })
}

// strategies are where custom kinds have maxSurge and maxUnavailable: an Argo
// Rollout, a CloneSet, and those that are made like a Deployment.
var strategies = [][]string{
	{"spec", "strategy", "canary"},
	{"spec", "strategy", "rollingUpdate"},
	{"spec", "updateStrategy", "rollingUpdate"},
	{"spec", "updateStrategy"},
	{"spec", "strategy"},
}

// sideBySide are strategies of an Argo Rollout by which old and new pods run side by
// side in full number.
var sideBySide = [][]string{
	{"spec", "strategy", "blueGreen"},
	{"spec", "strategy", "canary", "trafficRouting"},
}

// OfCustom reads an object of a custom kind, or a ReplicationController, that wants
// some replicas. A kind whose strategy is not known may start pods before it ends
// others, so there is a spare one.
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

// number applies the API's default.
func number(replicas *int32) int64 {
	if replicas == nil {
		return 1
	}
	return int64(*replicas)
}
