// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"maps"
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

// The API server warns who writes words of Berth's that do nothing where they are, or not without
// others, and refuses nothing.
func TestWarnings(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	var got warnings
	config := rest.CopyConfig(w.Config)
	config.WarningHandler = &got
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dry := []string{metav1.DryRunAll}
	labels := map[string]string{"app": "web"}
	// pod is the one of templates, and right.
	pod := func(change func(*v1.PodTemplateSpec)) v1.PodTemplateSpec {
		whole := simulation.NewPod("web", simulation.Annotated(v1alpha1.AnnotationPools, "web"))
		template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels), Annotations: whole.Annotations}, Spec: whole.Spec}
		if change != nil {
			change(&template)
		}
		return template
	}
	itself := func(annotations map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "web", Annotations: annotations}
	}
	deployment := func(annotations map[string]string, change func(*v1.PodTemplateSpec)) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: itself(annotations), Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod(change)}}
	}
	deploy := func(change func(*v1.PodTemplateSpec)) func() error {
		return func() error {
			_, err := kube.AppsV1().Deployments(simulation.Namespace).Create(w.Ctx, deployment(nil, change), metav1.CreateOptions{DryRun: dry})
			return err
		}
	}
	run := func(change func(*v1.Pod)) func() error {
		return func() error {
			template := pod(nil)
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Annotations: template.Annotations}, Spec: template.Spec}
			change(pod)
			_, err := kube.CoreV1().Pods(simulation.Namespace).Create(w.Ctx, pod, metav1.CreateOptions{DryRun: dry})
			return err
		}
	}
	annotate := func(key string) func() error {
		return func() error {
			_, err := kube.AppsV1().Deployments(simulation.Namespace).Patch(w.Ctx, "there", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"x"}}}`, key), metav1.PatchOptions{DryRun: dry})
			return err
		}
	}
	there := deployment(nil, nil)
	there.Name = "there"
	if _, err := kube.AppsV1().Deployments(simulation.Namespace).Create(w.Ctx, there, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	sized := func(t *v1.PodTemplateSpec) { t.Annotations[v1alpha1.AnnotationPools] = "used" }
	grows := deployment(nil, sized)
	grows.Name = "sized"
	if _, err := kube.AppsV1().Deployments(simulation.Namespace).Create(w.Ctx, grows, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Pool("used", "10.0.70.2-10.0.70.6")
	used, err := w.Berth.IPPools.Get(w.Ctx, "used", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	used.Status = v1alpha1.IPPoolStatus{Capacity: 5, Allocated: 1, Retained: 1, Free: 3}
	if _, err := w.Berth.IPPools.UpdateStatus(w.Ctx, used, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	serve := func(class string) func() error {
		return func() error {
			_, err := kube.CoreV1().Services(simulation.Namespace).Create(w.Ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{
				Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Ports: []v1.ServicePort{{Port: 80}},
			}}, metav1.CreateOptions{DryRun: dry})
			return err
		}
	}
	// size creates a Deployment of some replicas with addresses of pool used, or scales the one that
	// is there.
	size := func(replicas int32) func() error {
		return func() error {
			d := deployment(nil, sized)
			d.Spec.Replicas = &replicas
			_, err := kube.AppsV1().Deployments(simulation.Namespace).Create(w.Ctx, d, metav1.CreateOptions{DryRun: dry})
			return err
		}
	}
	scale := func(replicas int) func() error {
		return func() error {
			_, err := kube.AppsV1().Deployments(simulation.Namespace).Patch(w.Ctx, "sized", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{DryRun: dry})
			return err
		}
	}
	const workload, where = "workloads.berth.dev", "write it under spec.template.metadata.annotations"
	const sizes, wait = "workload-sizes.berth.dev", "the others will wait, unless the workload kept addresses; add addresses to the pool, or name a second one"
	noLimit := func(t *v1.PodTemplateSpec) { t.Spec.Containers[0].Resources = v1.ResourceRequirements{} }
	for _, test := range []struct {
		name, policy string
		do           func() error
		want         string // empty: none
	}{
		{"a Deployment gets one", workload, annotate(v1alpha1.AnnotationPools), "metadata.annotations has berth.dev/pools, which has no effect on a Deployment: " + where},
		{"a Deployment gets another", "", annotate("example.com/b"), ""},
		{"a StatefulSet", workload, func() error {
			_, err := kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, &appsv1.StatefulSet{
				ObjectMeta: itself(map[string]string{v1alpha1.AnnotationPools: "web"}), Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod(nil)},
			}, metav1.CreateOptions{DryRun: dry})
			return err
		}, "metadata.annotations has berth.dev/pools, which has no effect on a StatefulSet: " + where},
		{"a CronJob", workload, func() error {
			once := pod(nil)
			once.Spec.RestartPolicy = v1.RestartPolicyNever
			_, err := kube.BatchV1().CronJobs(simulation.Namespace).Create(w.Ctx, &batchv1.CronJob{
				ObjectMeta: itself(map[string]string{v1alpha1.AnnotationPools: "web"}), Spec: batchv1.CronJobSpec{Schedule: "0 0 * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}},
			}, metav1.CreateOptions{DryRun: dry})
			return err
		}, "metadata.annotations has berth.dev/pools, which has no effect on a CronJob: write it under spec.jobTemplate.spec.template.metadata.annotations"},
		{"all is right", "", deploy(nil), ""},
		{"a label", workload, deploy(func(t *v1.PodTemplateSpec) { t.Labels[v1alpha1.AnnotationPools] = "web" }), "berth.dev/pools has no effect as a label: " + where},
		{"another prefix", workload, deploy(func(t *v1.PodTemplateSpec) { t.Annotations["berth.io/release-policy"] = "Retain" }),
			"the annotation berth.io/release-policy has no effect: write berth.dev/release-policy"},
		{"no limit", workload, deploy(noLimit),
			`the annotation berth.dev/pools has no effect, because no container has the limit berth.dev/ip and so no pod gets a floating IP: add resources.limits["berth.dev/ip"]: 1 to a container, or remove the annotation`},
		{"neither limit nor annotation", "", deploy(func(t *v1.PodTemplateSpec) { noLimit(t); t.Annotations, t.Spec.SchedulerName = nil, "" }), ""},
		{"no scheduler", workload, deploy(func(t *v1.PodTemplateSpec) { t.Spec.SchedulerName = "" }),
			`a container has the limit berth.dev/ip, but kube-scheduler gives no floating IPs, and will leave the pods Pending ("Insufficient berth.dev/ip"): write spec.template.spec.schedulerName: berth-scheduler`},
		{"another value of host-ports", workload, deploy(func(t *v1.PodTemplateSpec) { t.Annotations[v1alpha1.AnnotationHostPorts] = "random" }),
			`the annotation berth.dev/host-ports can only be Random, and pods with "random" are refused`},
		{"a pod without a scheduler", workload, run(func(p *v1.Pod) { p.Spec.SchedulerName = "" }),
			`a container has the limit berth.dev/ip, but kube-scheduler gives no floating IPs, and will leave the pods Pending ("Insufficient berth.dev/ip"): write spec.schedulerName: berth-scheduler`},
		{"a workload's pod", "", run(func(p *v1.Pod) {
			p.Spec.SchedulerName, p.OwnerReferences = "", []metav1.OwnerReference{*metav1.NewControllerRef(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"}}, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		}), ""},
		{"as many as are free", "", size(3), ""},
		{"more than are free", sizes, size(4), "IPPool used has 3 free addresses, and 4 pods more ask for one each: " + wait},
		{"grows by as many as are free", "", scale(4), ""},
		{"grows by more than are free", sizes, scale(5), "IPPool used has 3 free addresses, and 4 pods more ask for one each: " + wait},
		{"shrinks", "", scale(0), ""},
		{"a Service of the class", "services.berth.dev", serve(v1alpha1.LoadBalancerClass), "nothing gives the Service an address: Berth was installed without the value controller.services"},
		{"a Service of another class", "", serve("example.com/lb"), ""},
	} {
		var want []string
		if test.want != "" {
			want = []string{fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%[1]s': %s", test.policy, test.want)}
		}
		// The API server takes a moment to enforce a policy that was just made.
		w.Eventually("wait for the warning about "+test.name, func() error {
			got = nil
			if err := test.do(); err != nil {
				return err
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("the API server warns %q, want %q", []string(got), want)
			}
			return nil
		})
	}
}
