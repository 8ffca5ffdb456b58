// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
