// SPDX-License-Identifier: Apache-2.0

package podevent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/event"
)

var resource = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}

// cluster is an API server with the events of the namespace default.
type cluster struct {
	t *testing.T

	mu     sync.Mutex
	events map[string]*eventsv1.Event
	// did are the requests.
	did []string
	// err is what the API server answers instead.
	err error
}

func (c *cluster) Create(_ context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did = append(c.did, fmt.Sprintf("create %s %s %s", e.Regarding.Name, e.Reason, e.Note))
	if c.err != nil {
		return nil, c.err
	}
	if c.events[e.Name] != nil {
		return nil, apierrors.NewAlreadyExists(resource, e.Name)
	}
	c.events[e.Name] = e.DeepCopy()
	return e, nil
}

func (c *cluster) Patch(_ context.Context, name string, kind types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (*eventsv1.Event, error) {
	var change eventsv1.Event
	if err := json.Unmarshal(patch, &change); err != nil || kind != types.MergePatchType || change.Series == nil {
		c.t.Errorf("patch %s %s: %v", kind, patch, err)
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did = append(c.did, fmt.Sprintf("count %d", change.Series.Count))
	if c.err != nil {
		return nil, c.err
	}
	e := c.events[name]
	if e == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	e.Series = change.Series
	return e, nil
}

// record runs a Recorder while do records, in a bubble of time, and returns the requests.
func record(t *testing.T, do func(c *cluster, warn func(pod, reason, note string))) (c *cluster) {
	synctest.Test(t, func(t *testing.T) {
		c = &cluster{t: t, events: map[string]*eventsv1.Event{}}
		r := New("berth-agent", func(namespace string) Events {
			if namespace != "default" {
				t.Errorf("an event in namespace %q", namespace)
			}
			return c
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		do(c, func(pod, reason, note string) {
			regarding := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod, UID: types.UID(pod)}}
			event.Warning(reason, note).Record(r, regarding, nil, "Test")
			synctest.Wait()
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) expect(want ...string) {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.did, want) {
		c.t.Errorf("the requests are %q, want %q", c.did, want)
	}
	c.did = nil
}

// answer has the API server answer with an error from now on, or as it should.
func (c *cluster) answer(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func TestEvent(t *testing.T) {
	c := record(t, func(_ *cluster, warn func(pod, reason, note string)) { warn("a", "Lost", "100%d") })
	if len(c.events) != 1 {
		t.Fatalf("there are %d events", len(c.events))
	}
	for _, e := range c.events {
		want := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "a", UID: "a"}
		if e.Regarding != want || e.Type != corev1.EventTypeWarning || e.Note != "100%d" || e.Action != "Test" || e.EventTime.IsZero() ||
			e.ReportingController != "berth-agent" || e.ReportingInstance == "" || e.Series != nil {
			t.Errorf("%+v", e)
		}
	}
}

// What happens again is counted: at once the second time, and then now and then.
func TestSeries(t *testing.T) {
	record(t, func(c *cluster, warn func(pod, reason, note string)) {
		warn("a", "Lost", "1")
		warn("b", "Lost", "2")
		warn("a", "Found", "3")
		c.expect("create a Lost 1", "create b Lost 2", "create a Found 3")
		warn("a", "Lost", "4")
		c.expect("count 2")
		warn("a", "Lost", "5")
		warn("a", "Lost", "6")
		c.expect()
		<-time.After(quiet + time.Second)
		c.expect("count 4")
		warn("a", "Lost", "7")
		<-time.After(quiet)
		c.expect("count 5")
		<-time.After(2 * quiet)
		c.expect()
		warn("a", "Lost", "8")
		c.expect("create a Lost 8")
		// The API server forgets events.
		c.mu.Lock()
		clear(c.events)
		c.mu.Unlock()
		warn("a", "Lost", "9")
		c.expect("count 2", "create a Lost 8")
	})
}

func TestFailure(t *testing.T) {
	record(t, func(c *cluster, warn func(pod, reason, note string)) {
		c.answer(errors.New("dial tcp: connection refused"))
		warn("a", "Lost", "1")
		warn("b", "Lost", "2")
		c.expect("create a Lost 1")
		<-time.After(3 * pause / 2)
		c.expect("create a Lost 1")
		c.answer(nil)
		<-time.After(3 * pause / 2)
		c.expect("create a Lost 1", "create b Lost 2")

		c.answer(apierrors.NewForbidden(resource, "a", errors.New("no")))
		warn("c", "Lost", "3")
		<-time.After(2 * pause)
		c.expect("create c Lost 3")

		c.answer(errors.New("dial tcp: connection refused"))
		warn("d", "Lost", "4")
		<-time.After(2 * tries * pause)
		c.expect(slices.Repeat([]string{"create d Lost 4"}, tries)...)
	})
}

// More events than can be written are lost, and nobody waits.
func TestTooMany(t *testing.T) {
	r := New("berth-agent", func(string) Events { return nil })
	for range waiting + 1 {
		r.Eventf(&corev1.ObjectReference{Namespace: "default", Name: "a"}, nil, corev1.EventTypeNormal, "Lost", "Test", "")
	}
	if len(r.queue) != waiting {
		t.Errorf("%d events wait, want %d", len(r.queue), waiting)
	}
	for range waiting {
		<-r.queue
	}
	var node runtime.Object = &corev1.Node{}
	if r.Eventf(node, nil, corev1.EventTypeNormal, "Lost", "Test", ""); len(r.queue) != 0 {
		t.Error("records an event about a node")
	}
}
