// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// With podDefaults, a pod that asks for an address gets Berth's scheduler and the pools of its
// namespace, unless it says otherwise; other pods, and namespaces that are not selected, are left
// alone.
func TestPodDefaults(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	for name, namespace := range map[string]*v1.Namespace{
		"web":   {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "web"}, Annotations: map[string]string{v1alpha1.AnnotationPools: "web,spare"}}},
		"plain": {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "web"}}},
		"other": {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationPools: "web"}}},
	} {
		namespace.Name = name
		if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var policy []string
	for _, object := range w.Chart(map[string]any{"podDefaults": map[string]any{
		"enabled": true, "namespaceSelector": map[string]any{"matchLabels": map[string]any{"team": "web"}},
	}}) {
		if object.GetName() != "pod-defaults.berth.dev" {
			continue
		}
		policy = append(policy, object.GetKind())
		if err := deploy.Apply(w.Ctx, w.Config, []*unstructured.Unstructured{object}); err != nil {
			t.Fatal(err)
		}
	}
	if len(policy) != 2 {
		t.Fatalf("the chart makes %q", policy)
	}
	// create returns the scheduler and the pools of a pod, which is not kept.
	create := func(namespace string, options ...func(*v1.Pod)) (string, error) {
		pod := simulation.NewPod("a", append([]func(*v1.Pod){func(pod *v1.Pod) {
			pod.Namespace, pod.Spec.SchedulerName = namespace, ""
		}}, options...)...)
		made, err := w.Kube.CoreV1().Pods(namespace).Create(w.Ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", err
		}
		return made.Spec.SchedulerName + " " + made.Annotations[v1alpha1.AnnotationPools], nil
	}
	w.Eventually("the policy works", func() error {
		got, err := create("web")
		if err == nil && got != "berth-scheduler web,spare" {
			err = fmt.Errorf("the pod has %q", got)
		}
		return err
	})
	ordinary := func(pod *v1.Pod) { pod.Spec.Containers[0].Resources = v1.ResourceRequirements{} }
	alias := func(pod *v1.Pod) {
		one := v1.ResourceList{"tke.cloud.tencent.com/eni-ip": simulation.Quantity("1")}
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: one, Limits: one}
	}
	second := func(pod *v1.Pod) {
		pod.Spec.Containers = append([]v1.Container{{Name: "side", Image: "none"}}, pod.Spec.Containers...)
	}
	for _, test := range []struct {
		name, namespace string
		option          func(*v1.Pod)
		want            string
	}{
		{"a namespace without pools", "plain", nil, "berth-scheduler "},
		{"a namespace that is not selected", "other", nil, "default-scheduler "},
		{"a pod without an address", "web", ordinary, "default-scheduler "},
		{"Galaxy's name of the resource", "web", alias, "berth-scheduler web,spare"},
		{"not the first container", "web", second, "berth-scheduler web,spare"},
		{"a scheduler of its own", "web", func(pod *v1.Pod) { pod.Spec.SchedulerName = "another" }, "another web,spare"},
		{"pools of its own", "web", simulation.Annotated(v1alpha1.AnnotationPools, "db"), "berth-scheduler db"},
		{"a claim", "web", simulation.Annotated(v1alpha1.AnnotationClaim, "db"), "berth-scheduler "},
		{"labels of pools", "web", simulation.Annotated(v1alpha1.AnnotationPoolSelector, "a=b"), "berth-scheduler "},
		{"another annotation", "web", simulation.Annotated(v1alpha1.AnnotationReleasePolicy, "Retain"), "berth-scheduler web,spare"},
	} {
		option := test.option
		if option == nil {
			option = func(*v1.Pod) {}
		}
		if got, err := create(test.namespace, option); err != nil || got != test.want {
			t.Errorf("%s: the pod has %q, want %q (%v)", test.name, got, test.want, err)
		}
	}
}
