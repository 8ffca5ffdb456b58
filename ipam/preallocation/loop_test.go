// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/store"
)

// After each result of the first look at a key, the key is looked at again when it should.
func TestNext(t *testing.T) {
	tired := errors.New("the API server is tired")
	type result struct {
		again time.Duration
		err   error
	}
	for _, test := range []struct {
		name    string
		results []result
		// looks are the times of all looks in seconds, failures the number of errors told.
		looks    []int
		failures int
	}{
		{"done", nil, []int{0}, 0},
		{"again later", []result{{5 * time.Second, nil}}, []int{0, 5}, 0},
		{"changed in the meantime", []result{{0, store.ErrChanged}}, []int{0, 1}, 0},
		{"a conflict", []result{{0, apierrors.NewConflict(schema.GroupResource{}, "a", tired)}}, []int{0, 1}, 0},
		{"gone", []result{{0, apierrors.NewNotFound(schema.GroupResource{}, "a")}}, []int{0, 1}, 0},
		{"failures", []result{{0, tired}, {0, tired}, {0, tired}}, []int{0, 2, 6, 14}, 3},
		{"failures before and after a success", []result{{0, tired}, {time.Second, nil}, {0, tired}}, []int{0, 2, 3, 5}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](2*time.Second, time.Minute))
				start := time.Now()
				var looks []int
				failures := 0
				look := func(context.Context, string) (time.Duration, error) {
					looks = append(looks, int(time.Since(start).Seconds()))
					if n := len(looks); n <= len(test.results) {
						return test.results[n-1].again, test.results[n-1].err
					}
					return 0, nil
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					for next(t.Context(), queue, look, func(string, error) { failures++ }) {
					}
				}()
				queue.Add("a")
				<-time.After(time.Minute)
				queue.ShutDown()
				<-done
				if diff := cmp.Diff(test.looks, looks); diff != "" || failures != test.failures {
					t.Errorf("%d failures were told, want %d; looks: %s", failures, test.failures, diff)
				}
			})
		})
	}
}
