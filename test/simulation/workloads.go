// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Keeps fails if the Deployment has lost one of its addresses, or has more than
// most.
func (w *World) Keeps(original []string, most int) {
	w.T.Helper()
	now := w.AddressesOf("web")
	for _, address := range original {
		if !slices.Contains(now, address) {
			w.T.Errorf("the Deployment has %v, it lost %s", now, address)
		}
	}
	if len(now) > most {
		w.T.Errorf("the Deployment has %v, more than %d", now, most)
	}
}

// AddressesOf returns the addresses of a workload, held and retained.
func (w *World) AddressesOf(owner string) []string {
	w.T.Helper()
	ips, err := w.IPs()
	if err != nil {
		w.T.Fatal(err)
	}
	var addresses []string
	for i := range ips {
		if ips[i].Spec.Owner != nil && ips[i].Spec.Owner.Name == owner {
			addresses = append(addresses, ips[i].Name)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// PatchDeployment changes a Deployment by a merge patch.
func (w *World) PatchDeployment(name, patch string) {
	w.T.Helper()
	Patch(w, w.Kube.AppsV1().Deployments(Namespace), name, "%s", patch)
}

// RolledOut waits until all pods of a Deployment are of its template and ready,
// and no others are left.
func (w *World) RolledOut(name string, replicas int32) {
	w.T.Helper()
	w.Eventually("wait for Deployment "+name, func() error {
		d, err := w.Kube.AppsV1().Deployments(Namespace).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.Replicas != replicas || s.UpdatedReplicas != replicas || s.AvailableReplicas != replicas {
			return fmt.Errorf("%d pods, %d updated, %d available, want %d", s.Replicas, s.UpdatedReplicas, s.AvailableReplicas, replicas)
		}
		pods, err := w.Kube.CoreV1().Pods(Namespace).List(w.Ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		if len(pods.Items) != int(replicas) || slices.ContainsFunc(pods.Items, func(pod v1.Pod) bool { return pod.DeletionTimestamp != nil }) {
			return fmt.Errorf("%d pods are there, some may be on their way out", len(pods.Items))
		}
		return nil
	})
}

// CreateDeployment makes a Deployment whose pods ask for an address.
func (w *World) CreateDeployment(name string, replicas int32, strategy appsv1.DeploymentStrategy, options ...func(*v1.Pod)) {
	w.T.Helper()
	_, err := w.Kube.AppsV1().Deployments(Namespace).Create(w.Ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: Template(name, options...), Strategy: strategy,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
}

// OfSet makes a pod that a StatefulSet made, where no controller does.
func OfSet(set *appsv1.StatefulSet) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	}
}

// RetainForSet makes a StatefulSet and addresses that are retained for its pods:
// 10.0.70.200, 10.0.70.201, …, at most nine.
func (w *World) RetainForSet(name string, n int32) *appsv1.StatefulSet {
	w.T.Helper()
	set, err := w.Kube.AppsV1().StatefulSets(Namespace).Create(w.Ctx, NewSet(name, n), metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Pool(name, "10.0.70.200-10.0.70.209")
	for i := range n {
		address := fmt.Sprintf("10.0.70.%d", 200+i)
		_, err := w.Berth.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: address},
			Spec: v1alpha1.FloatingIPSpec{
				Address: address, Pool: name, ReleasePolicy: v1alpha1.ReleaseRetain,
				Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: Namespace, Name: name, UID: set.UID, PodName: fmt.Sprintf("%s-%d", name, i)},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			w.T.Fatal(err)
		}
	}
	return set
}

// Template returns a pod template for workloads.
func Template(app string, options ...func(*v1.Pod)) v1.PodTemplateSpec {
	pod := NewPod("", options...)
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}, Annotations: pod.Annotations},
		Spec:       pod.Spec,
	}
}

// NewSet returns a StatefulSet whose pods ask for an address.
func NewSet(name string, replicas int32, options ...func(*v1.Pod)) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: Template(name, options...),
		},
	}
}

// DeletePods deletes the pods of a workload and waits until others run.
func (w *World) DeletePods(app string) {
	w.T.Helper()
	before := w.PodsOf(app)
	w.Delete(slices.Collect(maps.Keys(before))...)
	w.Eventually("wait for new pods", func() error {
		after := w.PodsOf(app)
		for name, uid := range after {
			if before[name] == uid {
				return fmt.Errorf("%s is still there", name)
			}
		}
		if len(after) != len(before) {
			return fmt.Errorf("there are %d, there were %d", len(after), len(before))
		}
		return nil
	})
}

// PodsOf returns the names and UIDs of a workload's pods.
func (w *World) PodsOf(app string) map[string]types.UID {
	w.T.Helper()
	list, err := w.Kube.CoreV1().Pods(Namespace).List(w.Ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.T.Fatal(err)
	}
	pods := map[string]types.UID{}
	for i := range list.Items {
		pods[list.Items[i].Name] = list.Items[i].UID
	}
	return pods
}
