// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// StatefulSets under the real StatefulSet controller and garbage collector.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{Controllers: true}, 3)
		w.Pool("web", "10.0.70.2-10.0.70.99")
		const (
			podDeleted = v1alpha1.ReleasePodDeleted
			retain     = v1alpha1.ReleaseRetain
			never      = v1alpha1.ReleaseNever
		)
		tests := []struct {
			name   string
			policy v1alpha1.ReleasePolicy
			// happen is an event of a set with three pods.
			happen func(w *simulation.World, set string)
			// pods are the ordinals that run in the end; same of them have the address
			// that the ordinal had before; kept are ordinals without a pod whose address
			// still is there.
			pods, same, kept []int
		}{
			{"pods are deleted", retain, (*simulation.World).DeletePods, []int{0, 1, 2}, []int{0, 1, 2}, nil},
			{"pods are deleted", never, (*simulation.World).DeletePods, []int{0, 1, 2}, []int{0, 1, 2}, nil},
			{"pods are deleted", podDeleted, (*simulation.World).DeletePods, []int{0, 1, 2}, nil, nil},
			{"scaled down", retain, scaleTo(1), []int{0}, []int{0}, nil},
			{"scaled down", never, scaleTo(1), []int{0}, []int{0}, []int{1, 2}},
			{"scaled down", podDeleted, scaleTo(1), []int{0}, []int{0}, nil},
			{"scaled to zero", retain, scaleTo(0), nil, nil, nil},
			{"scaled to zero and back", never, func(w *simulation.World, set string) { scaleTo(0)(w, set); scaleTo(3)(w, set) }, []int{0, 1, 2}, []int{0, 1, 2}, nil},
			{"scaled up", retain, scaleTo(5), []int{0, 1, 2, 3, 4}, []int{0, 1, 2}, nil},
			{"the start of the ordinals moves up", retain, startAt(2), []int{2, 3, 4}, []int{2}, nil},
			{"deleted", retain, deleteSet, nil, nil, nil},
			{"deleted", never, deleteSet, nil, nil, []int{0, 1, 2}},
			{"deleted", podDeleted, deleteSet, nil, nil, nil},
			{"deleted and made again", never, func(w *simulation.World, set string) { deleteSet(w, set); createSet(w, set, never) }, []int{0, 1, 2}, []int{0, 1, 2}, nil},
			{"deleted and made again", retain, func(w *simulation.World, set string) { deleteSet(w, set); createSet(w, set, retain) }, []int{0, 1, 2}, nil, nil},
		}
		for i, tc := range tests {
			w.Case(fmt.Sprintf("%s, %s", tc.policy, tc.name), func(w *simulation.World) {
				set := fmt.Sprintf("set%d", i)
				createSet(w, set, tc.policy)
				before := map[string]string{}
				for ordinal := range 3 {
					name := fmt.Sprintf("%s-%d", set, ordinal)
					before[name] = w.Address(name)
				}
				tc.happen(w, set)
				w.Eventually("wait for the set", func() error { return setHas(w, set, tc.pods, tc.kept) })
				for _, ordinal := range tc.same {
					name := fmt.Sprintf("%s-%d", set, ordinal)
					if got := w.Address(name); got != before[name] {
						w.T.Errorf("%s has %s, it had %s", name, got, before[name])
					}
				}
				w.Invariants()
			})
		}
	})
}

// setHas compares a set's bound pods and kept addresses.
func setHas(w *simulation.World, set string, wantPods, wantKept []int) error {
	pods, err := w.Pods()
	if err != nil {
		return err
	}
	ips, err := w.IPs()
	if err != nil {
		return err
	}
	got := map[string]string{}
	for i := range pods {
		if strings.HasPrefix(pods[i].Name, set+"-") && pods[i].Spec.NodeName != "" && pods[i].DeletionTimestamp == nil {
			got[pods[i].Name] = "has an address"
		}
	}
	for i := range ips {
		if owner := ips[i].Spec.Owner; owner != nil && owner.Name == set && ips[i].Spec.Pod == nil {
			got[owner.PodName] = "kept"
		}
	}
	want := map[string]string{}
	for _, ordinal := range wantPods {
		want[fmt.Sprintf("%s-%d", set, ordinal)] = "has an address"
	}
	for _, ordinal := range wantKept {
		want[fmt.Sprintf("%s-%d", set, ordinal)] = "kept"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return simulation.DiffError(diff)
	}
	return nil
}

func createSet(w *simulation.World, name string, p v1alpha1.ReleasePolicy) {
	w.T.Helper()
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet(name, 3, simulation.Policy(p)), metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// deleteSet deletes a set as kubectl does, and waits until its pods are gone.
func deleteSet(w *simulation.World, name string) {
	w.T.Helper()
	background := metav1.DeletePropagationBackground
	if err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Delete(w.Ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		w.T.Fatal(err)
	}
	w.Eventually("wait for the pods to be gone", func() error {
		if left := w.PodsOf(name); len(left) > 0 {
			return fmt.Errorf("left: %v", slices.Sorted(maps.Keys(left)))
		}
		return nil
	})
}

// scaleTo scales a set and waits until the set's controller is done.
func scaleTo(replicas int32) func(w *simulation.World, set string) {
	return func(w *simulation.World, set string) {
		changeSet(w, set, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	}
}

// startAt moves the first ordinal.
func startAt(ordinal int) func(w *simulation.World, set string) {
	return func(w *simulation.World, set string) {
		changeSet(w, set, fmt.Sprintf(`{"spec":{"ordinals":{"start":%d}}}`, ordinal))
	}
}

func changeSet(w *simulation.World, set, patch string) {
	w.T.Helper()
	patchSet(w, set, patch)
	w.Eventually("wait for the set's controller", func() error {
		now, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Get(w.Ctx, set, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return steady(now)
	})
}

func patchSet(w *simulation.World, set, patch string) {
	w.T.Helper()
	simulation.Patch(w, w.Kube.AppsV1().StatefulSets(simulation.Namespace), set, "%s", patch)
}

func steady(set *appsv1.StatefulSet) error {
	if set.Status.ObservedGeneration != set.Generation || set.Status.Replicas != *set.Spec.Replicas {
		return fmt.Errorf("%d of %d replicas, generation %d of %d", set.Status.Replicas, *set.Spec.Replicas, set.Status.ObservedGeneration, set.Generation)
	}
	return nil
}
