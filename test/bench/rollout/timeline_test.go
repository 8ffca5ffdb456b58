// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestTimeline(t *testing.T) {
	began := time.Unix(0, 0)
	line := newTimeline("ours", 2)
	for _, event := range []struct {
		second               int
		namespace, uid, node string
		phase                v1.PodPhase
	}{
		{0, "ours", "a", "", v1.PodPending},
		{0, "other", "x", "node1", v1.PodRunning},
		{1, "ours", "b", "", v1.PodPending},
		{2, "ours", "a", "node1", v1.PodPending},
		{3, "ours", "c", "node1", v1.PodFailed}, // its Deployment makes another
		{4, "ours", "a", "node1", v1.PodPending},
		{5, "ours", "a", "node1", v1.PodRunning},
		{6, "ours", "a", "node1", v1.PodRunning},
		{8, "ours", "b", "node2", v1.PodRunning},
	} {
		select {
		case <-line.all:
			t.Fatalf("second %d: done too early", event.second)
		default:
		}
		line.observe(began.Add(time.Duration(event.second)*time.Second), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: event.namespace, UID: types.UID(event.uid)},
			Spec:       v1.PodSpec{NodeName: event.node}, Status: v1.PodStatus{Phase: event.phase},
		})
	}
	select {
	case <-line.all:
	default:
		t.Error("both pods run, and the timeline is not done")
	}
	if created, running := line.count(); created != 3 || running != 2 {
		t.Errorf("%d pods created and %d Running, want 3 and 2", created, running)
	}
	bound, running, last := line.durations()
	if diff := cmp.Diff([]time.Duration{2 * time.Second, 7 * time.Second}, slices.Sorted(slices.Values(bound))); diff != "" {
		t.Errorf("until bound: -want +got\n%s", diff)
	}
	if diff := cmp.Diff([]time.Duration{5 * time.Second, 7 * time.Second}, slices.Sorted(slices.Values(running))); diff != "" {
		t.Errorf("until Running: -want +got\n%s", diff)
	}
	if want := began.Add(8 * time.Second); !last.Equal(want) {
		t.Errorf("the last pod was Running at %s, want %s", last, want)
	}
}
