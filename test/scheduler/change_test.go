// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// occupy takes the only address of a pool with a pod pool-first.
func (w *world) occupy(pool string) {
	w.t.Helper()
	w.create(newPod(pool+"-first", fromPools(pool)))
	w.bound(pool + "-first")
}

// reserve takes an address out of circulation as an administrator does.
func (w *world) reserve(address string) {
	w.t.Helper()
	_, err := w.berth.FloatingIPs.Create(w.ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec:       v1alpha1.FloatingIPSpec{Address: address, Reserved: true},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) patchPool(name, patch string) {
	w.t.Helper()
	if _, err := w.berth.IPPools.Patch(w.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) label(node, key, value string) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) labelNamespace(key, value string) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := w.kube.CoreV1().Namespaces().Patch(w.ctx, namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// annotate changes a pod's annotation; an empty value removes it.
func (w *world) annotate(pod, key, value string) {
	w.t.Helper()
	text := fmt.Sprintf("%q", value)
	if value == "" {
		text = "null"
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, text)
	if _, err := w.kube.CoreV1().Pods(namespace).Patch(w.ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// eventOf looks for an event about a pod.
func (w *world) eventOf(pod, reason, text string) error {
	events, err := w.kube.EventsV1().Events(namespace).List(w.ctx, metav1.ListOptions{})
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
