// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

type recorder struct{ note string }

func (r *recorder) Eventf(_, _ runtime.Object, _, _, _, note string, args ...any) {
	r.note = fmt.Sprintf(note, args...)
}

func TestRecord(t *testing.T) {
	for _, test := range []struct{ name, note, want string }{
		{"a verb of fmt", "100%d taken", "100%d taken"},
		{"as long as may be", strings.Repeat("n", 1000), strings.Repeat("n", 1000)},
		{"too long", strings.Repeat("n", 1001), strings.Repeat("n", 1000) + "…"},
		{"too long, with characters of two bytes", "n" + strings.Repeat("ä", 500), "n" + strings.Repeat("ä", 499) + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			Warning("Reason", test.note).Record(&r, &v1.Pod{}, nil, "Test")
			if r.note != test.want {
				t.Errorf("%q is recorded as %q, want %q", test.note, r.note, test.want)
			}
		})
	}
}

// A note that changes is an event of its own, and a note that is told again counts, whether or not
// the object has changed.
func TestByNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: kube.EventsV1()})
		if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer broadcaster.Shutdown()
		recorder := ByNote(broadcaster.NewRecorder(scheme.Scheme, "test"), scheme.Scheme)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0", UID: "1"}}
		for i, note := range []string{"10.0.70.5", "10.0.70.5 and 2001:db8::5", "10.0.70.5"} {
			pod.ResourceVersion = fmt.Sprint(i)
			Warning("Waits", note).Record(recorder, pod, nil, "Test")
			synctest.Wait()
			time.Sleep(time.Second) // of virtual time, which is in an event's name
		}
		written, err := kube.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range written.Items {
			count := int32(1)
			if e.Series != nil {
				count = e.Series.Count
			}
			got = append(got, fmt.Sprintf("%s %s ×%d", e.Regarding.Name, e.Note, count))
		}
		slices.Sort(got)
		if want := []string{"db-0 10.0.70.5 and 2001:db8::5 ×1", "db-0 10.0.70.5 ×2"}; !slices.Equal(got, want) {
			t.Errorf("the API server has the events %q, want %q", got, want)
		}
	})
}
