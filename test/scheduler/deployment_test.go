// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// Deployments under the real Deployment and ReplicaSet controllers.
func TestDeployment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.5")

	deployments := w.kube.AppsV1().Deployments(namespace)
	three, one, none := int32(3), intstr.FromInt32(1), intstr.FromInt32(0)
	_, err := deployments.Create(w.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &three, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: template("web", policy(v1alpha1.ReleaseRetain)),
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &none},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.rolledOut("web", 3)
	w.invariants()
	original := w.addressesOf("web")
	if len(original) != 3 {
		t.Fatalf("the Deployment has %v", original)
	}

	t.Run("its pods are deleted", func(t *testing.T) {
		w := w.on(t)
		w.deletePods("web")
		w.rolledOut("web", 3)
		w.invariants()
		w.keeps(original, 4)
	})
	t.Run("rolling updates with one address to spare", func(t *testing.T) {
		w := w.on(t)
		for i := range 3 {
			w.patchDeployment("web", fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"version":"v%d"}}}}}`, i))
			w.rolledOut("web", 3)
			w.invariants()
			w.keeps(original, 4)
		}
	})
	t.Run("the pod with the surplus address ends", func(t *testing.T) {
		w := w.on(t)
		pods, err := w.pods()
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods {
			if !slices.Contains(original, pods[i].Annotations[v1alpha1.AnnotationFloatingIPs]) {
				w.delete(pods[i].Name)
			}
		}
		w.eventually("wait for the surplus address to be free", func() error {
			if now := w.addressesOf("web"); !slices.Equal(now, original) {
				return fmt.Errorf("it has %v, it had %v", now, original)
			}
			return nil
		})
		w.invariants()
	})
	t.Run("scaled down", func(t *testing.T) {
		w := w.on(t)
		w.patchDeployment("web", `{"spec":{"replicas":1}}`)
		w.rolledOut("web", 1)
		// The pod that is left may have any of them; the oldest is kept besides.
		w.eventually("wait for addresses to be free", func() error {
			if now := w.addressesOf("web"); len(now) > 2 {
				return fmt.Errorf("it has %v", now)
			}
			return nil
		})
		w.invariants()
	})
	t.Run("deleted", func(t *testing.T) {
		w := w.on(t)
		background := metav1.DeletePropagationBackground
		if err := deployments.Delete(w.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Fatal(err)
		}
		w.eventually("wait for all addresses to be free", func() error {
			if now := w.addressesOf("web"); len(now) != 0 {
				return fmt.Errorf("it has %v", now)
			}
			return nil
		})
		w.invariants()
	})
}

// keeps fails if the Deployment has lost one of its addresses, or has more than
// most.
func (w *world) keeps(original []string, most int) {
	w.t.Helper()
	now := w.addressesOf("web")
	for _, address := range original {
		if !slices.Contains(now, address) {
			w.t.Errorf("the Deployment has %v, it lost %s", now, address)
		}
	}
	if len(now) > most {
		w.t.Errorf("the Deployment has %v, more than %d", now, most)
	}
}

// addressesOf returns the addresses of a workload, held and retained.
func (w *world) addressesOf(owner string) []string {
	w.t.Helper()
	ips, err := w.ips()
	if err != nil {
		w.t.Fatal(err)
	}
	var addresses []string
	for i := range ips {
		if ips[i].Spec.Owner.Name == owner {
			addresses = append(addresses, ips[i].Name)
		}
	}
	slices.Sort(addresses)
	return addresses
}

func (w *world) patchDeployment(name, patch string) {
	w.t.Helper()
	if _, err := w.kube.AppsV1().Deployments(namespace).Patch(w.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// rolledOut waits until all pods of a Deployment are of its template and ready,
// and no others are left.
func (w *world) rolledOut(name string, replicas int32) {
	w.t.Helper()
	w.eventually("wait for Deployment "+name, func() error {
		d, err := w.kube.AppsV1().Deployments(namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.Replicas != replicas || s.UpdatedReplicas != replicas || s.AvailableReplicas != replicas {
			return fmt.Errorf("%d pods, %d updated, %d available, want %d", s.Replicas, s.UpdatedReplicas, s.AvailableReplicas, replicas)
		}
		if n := len(w.podsOf(name)); n != int(replicas) {
			return fmt.Errorf("%d pods are there", n)
		}
		return nil
	})
}
