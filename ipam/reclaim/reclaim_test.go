// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// While nobody knows what a workload wants its addresses are kept, but no longer than
// they may be.
func TestRetainForWhileTheWorkloadIsUnknown(t *testing.T) {
	const name = "10.0.70.2"
	for _, owner := range []*v1alpha1.Owner{shared("apps/v1", "Deployment"), set("web-0"), shared("batch/v1", "Job"), shared("example.org/v1", "Thing")} {
		for _, test := range []struct {
			name   string
			held   bool
			age    time.Duration
			limit  time.Duration
			want   []string
			unsure bool // it has to be looked at again
		}{
			{"retained for long enough", false, 2 * time.Hour, time.Hour, []string{"delete " + name}, false},
			{"retained for less", false, time.Minute, time.Hour, nil, true},
			{"retained without a limit", false, 2 * time.Hour, 0, nil, true},
			{"its pod is gone, and its time begins", true, 2 * time.Hour, time.Hour, []string{"update " + name}, false},
			{"its pod is gone, and there is no limit", true, 2 * time.Hour, 0, nil, true},
		} {
			t.Run(owner.Kind+"/"+test.name, func(t *testing.T) {
				pod := ""
				if test.held {
					pod = "web-0"
				}
				owner.Namespace = "ns"
				ip := record(name, owner, 1, pod)
				since := metav1.NewTime(time.Now().Add(-test.age))
				ip.Spec.ReleasePolicy, ip.Spec.LastPod, ip.Spec.Since = v1alpha1.ReleaseRetain, "web-0", &since
				if test.limit > 0 {
					ip.Spec.RetainFor = &metav1.Duration{Duration: test.limit}
				}
				w := newWorld(t, ip)
				w.cache(ip)
				w.failsReads(apierrors.NewInternalError(errUnreachable))
				if test.held {
					w.deleted.Add(ip.Spec.Pod.UID, true)
				}
				err := w.look(name)
				if writes := w.berth.Writes(); !slices.Equal(writes, test.want) || (err != nil) != test.unsure {
					t.Errorf("wrote %v, error %v; want %v", writes, err, test.want)
				}
			})
		}
	}
}

// An address whose recorded owner is a pod is kept while that pod is there, also
// where it is not the pod that had it, as an author can write.
func TestAnotherPodAsOwner(t *testing.T) {
	for _, named := range []string{"driver", ""} {
		for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleasePodDeleted} {
			t.Run(fmt.Sprintf("%q %s", named, policy), func(t *testing.T) {
				ip := record("10.0.70.2", &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: named}, 1, "")
				ip.Spec.ReleasePolicy, ip.Spec.LastPod = policy, "executor"
				w := newWorld(t, ip)
				w.cache(ip)
				if named != "" && len(w.indexed(byPodName, podKey("ns", named))) != 1 {
					t.Error("the end of the pod does not lead to the address")
				}
				if err := w.look(ip.Name); err != nil {
					t.Fatal(err)
				}
				if got, want := w.berth.Writes(), []string{"delete " + ip.Name}; !slices.Equal(got, want) {
					t.Errorf("wrote %v, want %v", got, want)
				}
			})
		}
	}
}

// Kinds that nobody has to look up are not needed. A ReplicationController is read as if
// it were of a custom kind.
func TestNeededKinds(t *testing.T) {
	never := record("10.0.70.1", shared("example.com/v1", "Other"), 1, "")
	never.Spec.ReleasePolicy = v1alpha1.ReleaseNever
	thing, controller := record("10.0.70.2", shared("example.org/v1", "Thing"), 1, ""), record("10.0.70.3", shared("v1", "ReplicationController"), 1, "")
	thing.Spec.ReleasePolicy, controller.Spec.ReleasePolicy = v1alpha1.ReleaseRetain, v1alpha1.ReleaseRetain
	w := newWorld(t, never, thing, controller)
	w.cache(never, thing, controller)
	w.mustNotBeAsked()
	want := map[schema.GroupKind]bool{{Group: "example.org", Kind: "Thing"}: true, {Kind: "ReplicationController"}: true}
	if got := w.neededKinds(); !maps.Equal(got, want) {
		t.Errorf("needed are %v, want %v", got, want)
	}
}
