// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Occupy takes the only address of a pool with a pod pool-first.
func (w *World) Occupy(pool string) {
	w.T.Helper()
	w.Create(NewPod(pool+"-first", FromPools(pool)))
	w.Bound(pool + "-first")
}

// Reserve takes an address out of circulation as an administrator does.
func (w *World) Reserve(address string) {
	w.T.Helper()
	_, err := w.Berth.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec:       v1alpha1.FloatingIPSpec{Address: address, Reserved: true},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
}

// PatchPool changes a pool by a merge patch.
func (w *World) PatchPool(name, patch string) {
	w.T.Helper()
	if _, err := w.Berth.IPPools.Patch(w.Ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// Label labels a node.
func (w *World) Label(node, key, value string) {
	w.T.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// LabelNamespace labels the namespace of the tests.
func (w *World) LabelNamespace(key, value string) {
	w.T.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := w.Kube.CoreV1().Namespaces().Patch(w.Ctx, Namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// Annotate changes a pod's annotation; an empty value removes it.
func (w *World) Annotate(pod, key, value string) {
	w.T.Helper()
	text := fmt.Sprintf("%q", value)
	if value == "" {
		text = "null"
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, text)
	if _, err := w.Kube.CoreV1().Pods(Namespace).Patch(w.Ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// EventOf looks for an event about a pod.
func (w *World) EventOf(pod, reason, text string) error {
	events, err := w.Kube.EventsV1().Events(Namespace).List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var notes []string
	for _, event := range events.Items {
		if event.Regarding.Name != pod {
			continue
		}
		if event.Reason == reason && strings.Contains(event.Note, text) {
			return nil
		}
		notes = append(notes, event.Reason+": "+event.Note)
	}
	return fmt.Errorf("no event %s with %q, but %q", reason, text, notes)
}

// Cordon keeps new pods from a node, or lets them in again.
func (w *World) Cordon(node string, unschedulable bool) {
	w.T.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, unschedulable)
	if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}
