// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"net/http"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// A watch that the API server ends is begun again where it ended, and, when the API server
// has forgotten that, with the present objects.
func TestFollow(t *testing.T) {
	at := func(version string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", ResourceVersion: version}}
	}
	watches := [][]watch.Event{
		{{Type: watch.Added, Object: at("5")}, {Type: watch.Modified, Object: at("6")}},
		{{Type: watch.Bookmark, Object: at("9")}},
		{{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired}}},
		{{Type: watch.Added, Object: at("12")}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var from, seen []string
	err := follow(ctx, "3", func(options metav1.ListOptions) (watch.Interface, error) {
		from = append(from, options.ResourceVersion)
		events := watches[len(from)-1]
		fake := watch.NewFakeWithChanSize(len(events), false)
		for _, event := range events {
			fake.Action(event.Type, event.Object)
		}
		fake.Stop()
		return fake, nil
	}, func(event watch.Event) error {
		pod := event.Object.(*v1.Pod)
		if seen = append(seen, pod.ResourceVersion); pod.ResourceVersion == "12" {
			cancel()
		}
		return nil
	})
	if err != nil || !slices.Equal(from, []string{"3", "6", "9", ""}) || !slices.Equal(seen, []string{"5", "6", "12"}) {
		t.Errorf("%v: watched from %q and saw %q", err, from, seen)
	}
}

// An error that is not about age ends the watch.
func TestFollowEnds(t *testing.T) {
	err := follow(t.Context(), "3", func(metav1.ListOptions) (watch.Interface, error) {
		fake := watch.NewFakeWithChanSize(1, false)
		fake.Action(watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "no"})
		fake.Stop()
		return fake, nil
	}, func(watch.Event) error { return nil })
	if err == nil {
		t.Error("there was no error")
	}
}
