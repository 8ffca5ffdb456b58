// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// A pod that runs with an address of another CNI plugin is told of, and evicted if the operator
// chose so; one that runs with its own is left alone.
func TestWrongAddress(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Nodes(1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.9")
	// As the chart does with controller.evictPodsWithWrongAddresses.
	const role = "evict"
	_, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}}},
	}, metav1.CreateOptions{})
	must(err)
	_, err = w.Kube.RbacV1().ClusterRoleBindings().Create(w.Ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.System, Name: "berth-controller"}},
	}, metav1.CreateOptions{})
	must(err)
	w.Controller("--evict-pods-with-wrong-addresses")
	_, err = w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("web", 2), metav1.CreateOptions{})
	must(err)
	run := func(name, address string) {
		t.Helper()
		w.Bound(name)
		pod, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, name, metav1.GetOptions{})
		must(err)
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = v1.PodRunning, address, []v1.PodIP{{IP: address}}
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue})
		_, err = w.Kube.CoreV1().Pods(simulation.Namespace).UpdateStatus(w.Ctx, pod, metav1.UpdateOptions{})
		must(err)
	}
	run("web-0", w.Address("web-0"))
	run("web-1", "10.244.0.9")
	w.Eventually("wait for the event", func() error { return w.EventOf("web-1", "WrongAddress", "The pod runs with 10.244.0.9 on node") })
	w.Eventually("wait for the eviction", func() error {
		pod, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "web-1", metav1.GetOptions{})
		if err == nil && pod.DeletionTimestamp == nil {
			err = errors.New("it is not being deleted")
		}
		return err
	})
	pod, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "web-0", metav1.GetOptions{})
	must(err)
	if pod.DeletionTimestamp != nil || w.EventOf("web-0", "WrongAddress", "") == nil {
		t.Error("a pod with its own address was evicted or told of")
	}
}
