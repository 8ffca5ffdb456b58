// SPDX-License-Identifier: Apache-2.0

package fixedset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// saying is a pod template with the annotation, or without it.
func saying(spare string) v1.PodTemplateSpec {
	if spare == "" {
		return v1.PodTemplateSpec{}
	}
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationSpareAddresses: spare, "other": "x"}}}
	return SlimTemplate(&template)
}

// The sizes are from docs/explanation/release.md. Percentages resolve as they do in the
// Deployment controller.
func TestOfDeployment(t *testing.T) {
	rolling := func(surge, unavailable string) appsv1.DeploymentStrategy {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}}
	}
	for _, test := range []struct {
		replicas int32
		strategy appsv1.DeploymentStrategy
		spare    string
		want     Size
	}{
		{4, rolling("25%", "25%"), "", Size{Replicas: 4}},
		{3, rolling("25%", "25%"), "", Size{Replicas: 3, Spare: 1}},
		{1, appsv1.DeploymentStrategy{}, "", Size{Replicas: 1, Spare: 1}},
		{4, appsv1.DeploymentStrategy{}, "", Size{Replicas: 4}},
		{0, rolling("25%", "25%"), "", Size{}},
		{60, rolling("25%", "0"), "", Size{Replicas: 60, Spare: 15}},
		{3, rolling("2", "0"), "", Size{Replicas: 3, Spare: 2}},
		{3, rolling("2", "1"), "", Size{Replicas: 3}},
		{3, rolling("0", "1"), "", Size{Replicas: 3}},
		{3, rolling("0", "10%"), "", Size{Replicas: 3}}, // the controller counts it as 1
		{3, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, "", Size{Replicas: 3}},
		{3, rolling("1", "0"), "two", Size{Replicas: 3, Spare: 1}},
		{3, rolling("1", "0"), "2", Size{Replicas: 3, Spare: 2}},
		{3, rolling("1", "0"), "0", Size{Replicas: 3}},
		{3, rolling("1", "0"), "Unlimited", Size{Replicas: 3, Unlimited: true}},
	} {
		t.Run(fmt.Sprintf("%d %+v %+v", test.replicas, test.strategy, test.spare), func(t *testing.T) {
			got := OfDeployment(&appsv1.DeploymentSpec{Replicas: &test.replicas, Strategy: test.strategy, Template: saying(test.spare)})
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	if got := OfReplicaSet(&appsv1.ReplicaSetSpec{}); got != (Size{Replicas: 1}) {
		t.Errorf("a ReplicaSet that says nothing: %+v", got)
	}
}

// Of a node. The API server refuses strategies with both numbers, and fills in the one that is
// missing.
func TestOfDaemonSet(t *testing.T) {
	rolling := func(surge, unavailable string) appsv1.DaemonSetUpdateStrategy {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		return appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &s, MaxUnavailable: &u}}
	}
	for _, test := range []struct {
		strategy appsv1.DaemonSetUpdateStrategy
		spare    string
		want     Size
	}{
		{rolling("0", "1"), "", Size{Replicas: 1}},
		{rolling("0", "10%"), "", Size{Replicas: 1}},
		{rolling("1", "0"), "", Size{Replicas: 1, Spare: 1}},
		{rolling("30", "0"), "", Size{Replicas: 1, Spare: 1}}, // nodes at a time, each with one pod more
		{rolling("5%", "0"), "", Size{Replicas: 1, Spare: 1}},
		{rolling("0%", "1"), "", Size{Replicas: 1}},
		{appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}, "", Size{Replicas: 1}},
		{appsv1.DaemonSetUpdateStrategy{}, "", Size{Replicas: 1}},
		{rolling("1", "0"), "0", Size{Replicas: 1}},
		{rolling("0", "1"), "1", Size{Replicas: 1, Spare: 1}},
	} {
		t.Run(fmt.Sprintf("%+v %+v", test.strategy, test.spare), func(t *testing.T) {
			if got := OfDaemonSet(&appsv1.DaemonSetSpec{UpdateStrategy: test.strategy, Template: saying(test.spare)}); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestOfCustom(t *testing.T) {
	for _, test := range []struct {
		name, object string
		want         int64
	}{
		{"an Argo Rollout with a canary", `{spec: {template: {}, strategy: {canary: {maxSurge: "25%", maxUnavailable: 0}}}}`, 2},
		{"the same with pods to lose", `{spec: {template: {}, strategy: {canary: {maxSurge: "25%", maxUnavailable: 1}}}}`, 0},
		{"the same, whose author says nothing", `{spec: {template: {}, strategy: {canary: {steps: []}}}}`, 1},
		{"a canary beside a stable set in full number", `{spec: {template: {}, strategy: {canary: {trafficRouting: {nginx: {}}, maxUnavailable: 1}}}}`, 8},
		{"blue-green", `{spec: {template: {}, strategy: {blueGreen: {activeService: a}}}}`, 8},
		{"a CloneSet", `{spec: {template: {}, updateStrategy: {type: ReCreate, maxUnavailable: "20%"}}}`, 0},
		{"a CloneSet that surges", `{spec: {template: {}, updateStrategy: {maxUnavailable: 0, maxSurge: 3}}}`, 3},
		{"like a Deployment", `{spec: {template: {}, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: "50%", maxUnavailable: "0%"}}}}`, 4},
		{"a ReplicationController", `{apiVersion: v1, kind: ReplicationController, spec: {template: {}}}`, 0},
		{"its template says", `{spec: {template: {metadata: {annotations: {berth.dev/spare-addresses: "5"}}}, strategy: {canary: {steps: []}}}}`, 5},
		{"a Rollout of a Deployment's template", `{spec: {workloadRef: {kind: Deployment, name: web}, strategy: {canary: {maxSurge: 3, maxUnavailable: 0}}}}`, 3},
		{"nothing is known", `{spec: {template: {}, replicas: 8}}`, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := map[string]any{}
			if err := yaml.Unmarshal([]byte(test.object), &object); err != nil {
				t.Fatal(err)
			}
			got := OfCustom(integers(object).(map[string]any), 8)
			if got != (Size{Replicas: 8, Spare: test.want}) || got.Pods() != 8+test.want {
				t.Errorf("got %+v for %d pods, want %d spare", got, got.Pods(), test.want)
			}
		})
	}
}

// Of a kind with several pod templates, or none, the scale may count some of the pods.
func TestOfPartial(t *testing.T) {
	for _, object := range []string{`{}`, `{spec: {pytorchReplicaSpecs: {Master: {template: {}}, Worker: {template: {}}}}}`} {
		var read map[string]any
		if err := yaml.Unmarshal([]byte(object), &read); err != nil {
			t.Fatal(err)
		}
		if got := OfCustom(read, 3); got != (Size{Replicas: 3, Partial: true}) || got.IsFixed() {
			t.Errorf("%s: %+v", object, got)
		}
	}
}

// integers converts numbers as the API machinery's decoder does.
func integers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key := range value {
			value[key] = integers(value[key])
		}
	case float64:
		return int64(value)
	}
	return value
}

func TestSpareOf(t *testing.T) {
	for text, want := range map[string]Spare{
		"0": {Said: true}, "3": {Said: true, Pods: 3}, "Unlimited": {Said: true, Unlimited: true},
	} {
		if got, err := SpareOf(map[string]string{v1alpha1.AnnotationSpareAddresses: text}); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "25%", "unlimited", "70000", "1.5"} {
		if _, err := SpareOf(map[string]string{v1alpha1.AnnotationSpareAddresses: text}); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if got, err := SpareOf(nil); err != nil || got != (Spare{}) {
		t.Errorf("no annotation: %+v, %v", got, err)
	}
}
