// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// A user does to pods with floating IPs what Kubernetes' conformance tests do ("should adopt
// matching orphans and release non-matching pods" of Jobs, "should adopt matching pods on creation
// and release no longer matching pods" of ReplicaSets, "should release no longer matching pods" of
// ReplicationControllers, "pod generation should start at 1 and increment per update"), and writes
// what he likes to their annotations: each keeps its address as long as it lives, nobody else gets
// it, and then it is free.
func TestUserChangesBoundPods(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{Controllers: true}, 1)
	w.Pool("web", "10.0.70.2-10.0.70.19")
	w.Create(simulation.NewPod("victim"))
	victim := w.Address("victim")
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "alice", Groups: []string{"system:authenticated"}}
	alice, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w.Bind("edit", "alice")
	w.Eventually("wait for the rights of users", func() error {
		if !w.UserAllowed("alice", "update /pods") {
			return fmt.Errorf("alice may not update pods")
		}
		return nil
	})
	update := func(name string, change func(*v1.Pod)) {
		t.Helper()
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			pod, err := alice.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(pod)
			_, err = alice.CoreV1().Pods(simulation.Namespace).Update(w.Ctx, pod, metav1.UpdateOptions{})
			return err
		}); err != nil {
			t.Errorf("pod %s: %v", name, err)
		}
	}
	// controlled waits until a pod has this controller; empty: none.
	controlled := func(name, kind string) {
		t.Helper()
		w.Eventually("wait for pod "+name+" to have the controller "+kind, func() error {
			if controller := metav1.GetControllerOf(w.Get(name)); controller == nil && kind != "" || controller != nil && controller.Kind != kind {
				return fmt.Errorf("it is %+v", controller)
			}
			return nil
		})
	}
	// running waits for the pod of a workload.
	running := func(app string) (name string) {
		t.Helper()
		w.Eventually("wait for a pod of "+app, func() error {
			pods, err := w.Kube.CoreV1().Pods(simulation.Namespace).List(w.Ctx, metav1.ListOptions{LabelSelector: "app=" + app})
			if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.PodIP == "" {
				return fmt.Errorf("there are %d: %w", len(pods.Items), err)
			}
			name = pods.Items[0].Name
			return nil
		})
		return name
	}
	one := int32(1)
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	unlike := func(pod *v1.Pod) { pod.Labels = map[string]string{"app": "not-matching-name"} }
	says := func(text string) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: text, v1alpha1.AnnotationClaim: "licences", v1alpha1.AnnotationReleasePolicy: "Never"}
		}
	}
	for _, c := range []struct {
		name string
		make func() (pod string, err error)
		does func(pod string)
	}{
		{"Job", func() (string, error) {
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: simulation.Template("job")}}
			job.Spec.Template.Spec.RestartPolicy = v1.RestartPolicyNever
			_, err := alice.BatchV1().Jobs(simulation.Namespace).Create(w.Ctx, job, metav1.CreateOptions{})
			return running("job"), err
		}, func(pod string) {
			update(pod, func(pod *v1.Pod) { pod.OwnerReferences = nil })
			controlled(pod, "Job")
			update(pod, func(pod *v1.Pod) { pod.Labels = nil })
			controlled(pod, "")
		}},
		{"ReplicaSet", func() (string, error) {
			w.Create(simulation.NewPod("orphan", func(pod *v1.Pod) { pod.Labels = selector("replicaset").MatchLabels }))
			w.Bound("orphan")
			_, err := alice.AppsV1().ReplicaSets(simulation.Namespace).Create(w.Ctx, &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: "replicaset"}, Spec: appsv1.ReplicaSetSpec{Replicas: &one, Selector: selector("replicaset"), Template: simulation.Template("replicaset")},
			}, metav1.CreateOptions{})
			return "orphan", err
		}, func(pod string) {
			controlled(pod, "ReplicaSet")
			update(pod, unlike)
			controlled(pod, "")
		}},
		{"ReplicationController", func() (string, error) {
			template := simulation.Template("replicationcontroller")
			_, err := alice.CoreV1().ReplicationControllers(simulation.Namespace).Create(w.Ctx, &v1.ReplicationController{
				ObjectMeta: metav1.ObjectMeta{Name: "replicationcontroller"}, Spec: v1.ReplicationControllerSpec{Replicas: &one, Selector: selector("replicationcontroller").MatchLabels, Template: &template},
			}, metav1.CreateOptions{})
			return running("replicationcontroller"), err
		}, func(pod string) {
			update(pod, unlike)
			controlled(pod, "")
		}},
		{"generation", nil, func(pod string) {
			update(pod, func(pod *v1.Pod) { pod.SetAnnotations(map[string]string{"key": "value"}) })
			update(pod, func(pod *v1.Pod) { pod.SetGeneration(1) })
		}},
		{"no annotation", nil, func(pod string) { update(pod, func(pod *v1.Pod) { pod.Annotations = nil }) }},
		{"another's address", nil, func(pod string) { update(pod, says(victim)) }},
		{"its own address, and another's", nil, func(pod string) { update(pod, says(w.Address(pod)+","+victim)) }},
		{"an address of nobody", nil, func(pod string) { update(pod, says("10.0.70.19")) }},
		{"no address", nil, func(pod string) { update(pod, says("web")) }},
	} {
		pod := "bare"
		if c.make == nil {
			w.Create(simulation.NewPod(pod))
		} else if pod, err = c.make(); err != nil {
			t.Fatal(err)
		}
		address, before := w.Address(pod), w.Get(pod)
		c.does(pod)
		// Had somebody given the address away, the next pod would have it.
		w.Create(simulation.NewPod("next"))
		if next := w.Address("next"); next == address || next == victim {
			t.Errorf("%s: the next pod has %s", c.name, next)
		}
		w.Delete("next")
		for name, holder := range map[string]*v1.Pod{address: before, victim: w.Get("victim")} {
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != holder.UID || ip.Spec.Node != holder.Spec.NodeName || ip.Spec.ReleasePolicy != v1alpha1.ReleasePodDeleted {
				t.Errorf("%s: %s is not the one of pod %s (%s) any more: %+v, %v", c.name, name, holder.Name, holder.UID, ip, err)
			}
		}
		if now := w.Get(pod); now.UID != before.UID {
			t.Fatalf("%s: pod %s was made anew", c.name, pod)
		}
		w.Delete(pod)
		w.Eventually("wait for the address of a pod that is gone", func() error { return w.Becomes(address, "free") })
	}
	w.Invariants()
}
