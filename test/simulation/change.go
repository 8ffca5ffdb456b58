// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"strings"
	"time"

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

// patcher is a client that changes objects of one kind.
type patcher[T any] interface {
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// Patch changes an object by a merge patch: a format and its
// values.
func Patch[T any](w *World, objects patcher[T], name, format string, values ...any) {
	w.T.Helper()
	if _, err := objects.Patch(w.Ctx, name, types.MergePatchType, fmt.Appendf(nil, format, values...), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// PatchPool changes a pool by a merge patch.
func (w *World) PatchPool(name, patch string) {
	w.T.Helper()
	Patch(w, w.Berth.IPPools, name, "%s", patch)
}

// Label labels a node.
func (w *World) Label(node, key, value string) {
	w.T.Helper()
	Patch(w, w.Kube.CoreV1().Nodes(), node, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	w.Followed()
}

// LabelNamespace labels the namespace of the tests.
func (w *World) LabelNamespace(key, value string) {
	w.T.Helper()
	Patch(w, w.Kube.CoreV1().Namespaces(), Namespace, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	w.Followed()
}

// Annotate changes a pod's annotation; an empty value removes it.
func (w *World) Annotate(pod, key, value string) {
	w.T.Helper()
	text := fmt.Sprintf("%q", value)
	if value == "" {
		text = "null"
	}
	Patch(w, w.Kube.CoreV1().Pods(Namespace), pod, `{"metadata":{"annotations":{%q:%s}}}`, key, text)
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
	Patch(w, w.Kube.CoreV1().Nodes(), node, `{"spec":{"unschedulable":%t}}`, unschedulable)
	w.Followed()
}

// Followed waits, in virtual time, until all programs and controllers know all changes: time passes
// when all of them wait. No user acts within the same nanosecond. Tests on real API servers wait
// for effects.
func (w *World) Followed() {
	if w.virtual != nil {
		<-time.After(time.Nanosecond)
	}
}
