// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// A namespace that enforces the Pod Security Standard restricted takes the pods of all of Berth's
// programs but the ones that docs/explanation/security.md lists as having something of the node,
// whatever the chart's values. With a profile of AppArmor, too.
func TestRestricted(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	const namespace = "restricted"
	if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	for values, templates := range chartPods(w) {
		for name, template := range templates {
			// What it refers to is not there, and the standard does not ask for it.
			template.Spec.ServiceAccountName, template.Spec.PriorityClassName = "", ""
			_, err := w.Kube.CoreV1().Pods(namespace).Create(w.Ctx, &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec,
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil && !(apierrors.IsForbidden(err) && strings.Contains(err.Error(), "violates PodSecurity")) {
				t.Errorf("%s: %s: %v", values, name, err)
			}
			if before, seen := taken[name]; seen && before != (err == nil) {
				t.Errorf("%s: %s: other values make another answer: %v", values, name, err)
			}
			taken[name] = err == nil
			if confined := template.Spec.SecurityContext; err == nil && strings.HasSuffix(values, "everything.yaml") && (confined == nil || confined.AppArmorProfile == nil) {
				t.Errorf("%s: %s has not the profile of AppArmor", values, name)
			}
		}
	}
	want := map[string]bool{
		"berth-scheduler": true, "berth-controller": true, "berth-console": true, "berth-failover": true,
		"berth-agent": false, "berth-speaker": false, "berth-speaker-rack-1": false, "berth-speaker-rack-2": false, "berth-cleanup": false,
	}
	if !maps.Equal(taken, want) {
		t.Errorf("the namespace takes %v, want %v", taken, want)
	}
}

// chartPods returns the pod templates of each of the chart's sets of values, by the names of what
// makes the pods.
func chartPods(w *simulation.World) map[string]map[string]v1.PodTemplateSpec {
	w.T.Helper()
	chart, err := deploy.Chart()
	if err != nil {
		w.T.Fatal(err)
	}
	sets, err := filepath.Glob(filepath.Join(chart, "ci", "*.yaml"))
	if err != nil || len(sets) == 0 {
		w.T.Fatalf("%d sets of values: %v", len(sets), err)
	}
	pods := map[string]map[string]v1.PodTemplateSpec{}
	for _, values := range append(sets, "") {
		objects, err := deploy.ChartObjects(w.Ctx, w.T.Output(), w.System, values)
		if err != nil {
			w.T.Fatal(err)
		}
		pods[values] = map[string]v1.PodTemplateSpec{}
		for _, object := range objects {
			if !slices.Contains([]string{"Deployment", "DaemonSet"}, object.GetKind()) {
				continue
			}
			found, _, err := unstructured.NestedMap(object.Object, "spec", "template")
			var template v1.PodTemplateSpec
			if err == nil {
				err = runtime.DefaultUnstructuredConverter.FromUnstructured(found, &template)
			}
			if err != nil {
				w.T.Fatalf("%s: %s: %v", values, object.GetName(), err)
			}
			pods[values][object.GetName()] = template
		}
	}
	return pods
}
