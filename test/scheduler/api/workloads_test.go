// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// warnings has what the API server warned of.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// The API server warns who writes an annotation of Berth's on a workload itself, and refuses nothing.
func TestAnnotationsOfWorkloads(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	var got warnings
	config := rest.CopyConfig(w.Config)
	config.WarningHandler = &got
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "web"}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1alpha1.AnnotationPools: "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}
	once := template
	once.Spec.RestartPolicy = v1.RestartPolicyNever
	meta := func(annotations ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"example.com/a": "b"}}
		for _, key := range annotations {
			m.Annotations[key] = "web"
		}
		return m
	}
	deployment := func(annotations ...string) func(dry []string) error {
		return func(dry []string) error {
			_, err := kube.AppsV1().Deployments(simulation.Namespace).Create(w.Ctx, &appsv1.Deployment{
				ObjectMeta: meta(annotations...), Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
			}, metav1.CreateOptions{DryRun: dry})
			return err
		}
	}
	annotate := func(key string) func(dry []string) error {
		return func(dry []string) error {
			_, err := kube.AppsV1().Deployments(simulation.Namespace).Patch(w.Ctx, "web", types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"x"}}}`, key), metav1.PatchOptions{DryRun: dry})
			return err
		}
	}
	const because = `Validation failed for ValidatingAdmissionPolicy 'workloads.berth.dev' with binding 'workloads.berth.dev': metadata.annotations has `
	const where = "spec.template.metadata.annotations"
	if err := deployment()(nil); err != nil {
		t.Fatal(err)
	}
	dry := []string{metav1.DryRunAll}
	for _, test := range []struct {
		name string
		do   func(dry []string) error
		want string // empty: none
	}{
		{"a Deployment gets one", annotate(v1alpha1.AnnotationPools), because + "berth.dev/pools, which has no effect on a Deployment: write it under " + where},
		{"a Deployment gets another", annotate("example.com/b"), ""},
		{"a StatefulSet", func(dry []string) error {
			_, err := kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, &appsv1.StatefulSet{
				ObjectMeta: meta(v1alpha1.AnnotationPools), Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
			}, metav1.CreateOptions{DryRun: dry})
			return err
		}, because + "berth.dev/pools, which has no effect on a StatefulSet: write it under " + where},
		{"a CronJob", func(dry []string) error {
			_, err := kube.BatchV1().CronJobs(simulation.Namespace).Create(w.Ctx, &batchv1.CronJob{
				ObjectMeta: meta(v1alpha1.AnnotationPools), Spec: batchv1.CronJobSpec{Schedule: "0 0 * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}},
			}, metav1.CreateOptions{DryRun: dry})
			return err
		}, because + "berth.dev/pools, which has no effect on a CronJob: write it under spec.jobTemplate." + where},
	} {
		var want []string
		if test.want != "" {
			want = []string{test.want}
		}
		// The API server takes a moment to enforce a policy that was just made.
		w.Eventually("wait for the warning about "+test.name, func() error {
			got = nil
			if err := test.do(dry); err != nil {
				return err
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("the API server warns %q, want %q", []string(got), want)
			}
			return nil
		})
	}
}
