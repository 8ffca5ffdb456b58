// SPDX-License-Identifier: Apache-2.0

// Package podevent writes the agent's events about its node's pods (events.k8s.io). It is
// what client-go's recorder does without client-go's clientset, which that imports: events that
// are alike are one event that is counted, a series (KEP-383). It never reads events.
package podevent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"
)

// Events is the part of a typed client of one namespace's events that a Recorder uses. Its
// methods block for one request.
type Events interface {
	Create(ctx context.Context, event *eventsv1.Event, options metav1.CreateOptions) (*eventsv1.Event, error)
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*eventsv1.Event, error)
}

// client-go's values.
const (
	// waiting is how many events wait at most to be written; more are lost.
	waiting = 1000
	// tries is how often an event is tried to be written, and pause is the wait in between, to
	// which up to a quarter is added.
	tries, pause = 12, 10 * time.Second
	// quiet is how long nothing like an event happens until the next one is a new event.
	quiet = 6 * time.Minute
)

// Recorder is an event.Recorder. Run writes.
type Recorder struct {
	events             func(namespace string) Events
	component, program string
	queue              chan *eventsv1.Event
}

// New returns a Recorder for a component such as berth-agent.
func New(component string, events func(namespace string) Events) *Recorder {
	// As client-go does: the name of an event's instance has no other use.
	host, _ := os.Hostname()
	return &Recorder{events: events, component: component, program: component + "-" + host, queue: make(chan *eventsv1.Event, waiting)}
}

// Eventf records an event about a pod, which is a *corev1.Pod or a reference to one. It does
// not block and is safe for concurrent use.
func (r *Recorder) Eventf(regarding, _ runtime.Object, eventtype, reason, action, note string, args ...any) {
	var about corev1.ObjectReference
	switch o := regarding.(type) {
	case *corev1.ObjectReference:
		about = *o
	case *corev1.Pod:
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: o.Namespace, Name: o.Name, UID: o.UID}
	default:
		klog.Background().Error(nil, "Cannot record an event that is not about a pod", "object", regarding, "reason", reason)
		return
	}
	now := time.Now()
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, Name: util.GenerateEventName(about.Name, now.UnixNano())},
		EventTime:  metav1.NewMicroTime(now), Regarding: about,
		Type: eventtype, Reason: reason, Action: action, Note: fmt.Sprintf(note, args...),
		ReportingController: r.component, ReportingInstance: r.program,
	}
	select {
	case r.queue <- event:
	default:
		klog.Background().V(2).Info("Lost an event, because too many wait to be written", "pod", klog.KRef(about.Namespace, about.Name), "reason", reason)
	}
}

// alike is what events of one series have in common.
type alike struct {
	regarding                 corev1.ObjectReference
	eventtype, reason, action string
}

// series is an event and how often the API server knows it to have happened.
type series struct {
	*eventsv1.Event

	written int32
}

// last returns when the event happened last.
func (s *series) last() time.Time {
	if s.Series == nil {
		return s.EventTime.Time
	}
	return s.Series.LastObservedTime.Time
}

// Run writes events until the context ends.
func (r *Recorder) Run(ctx context.Context) error {
	all := map[alike]*series{}
	ticker := time.NewTicker(quiet)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-r.queue:
			key := alike{event.Regarding, event.Type, event.Reason, event.Action}
			known := all[key]
			if known == nil {
				all[key] = &series{Event: event}
				r.write(ctx, event)
				continue
			}
			first := known.Series == nil
			if first {
				known.Series = &eventsv1.EventSeries{Count: 1}
			}
			known.Series.Count++
			known.Series.LastObservedTime = event.EventTime
			if first {
				// How often it happens after the second time is written now and then.
				known.written = known.Series.Count
				r.write(ctx, known.Event)
			}
		case <-ticker.C:
			for key, known := range all {
				if known.Series != nil && known.Series.Count != known.written {
					known.written = known.Series.Count
					r.write(ctx, known.Event)
				}
				if time.Since(known.last()) > quiet {
					delete(all, key)
				}
			}
		}
	}
}

// write writes an event, and tries again where the API server does not answer.
func (r *Recorder) write(ctx context.Context, event *eventsv1.Event) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(event.Regarding.Namespace, event.Regarding.Name), "reason", event.Reason)
	for try := 1; ; try++ {
		err := r.put(ctx, event)
		var refused apierrors.APIStatus
		switch {
		case err == nil, apierrors.IsAlreadyExists(err), ctx.Err() != nil:
			return
		case errors.As(err, &refused):
			logger.Error(err, "The API server refused an event")
			return
		case try == tries:
			logger.Error(err, "Cannot write an event, gave up")
			return
		case try == 1:
			logger.Info("Cannot write an event, will try again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(pause, 0.25)):
		}
	}
}

// put creates the event, or changes how often it happened.
func (r *Recorder) put(ctx context.Context, event *eventsv1.Event) error {
	events := r.events(event.Namespace)
	if event.Series != nil {
		patch, err := json.Marshal(map[string]any{"series": event.Series})
		if err != nil {
			return fmt.Errorf("encode how often an event happened: %w", err)
		}
		if _, err = events.Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		// It has expired.
	}
	_, err := events.Create(ctx, event, metav1.CreateOptions{})
	return err
}
