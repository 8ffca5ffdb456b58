// SPDX-License-Identifier: Apache-2.0

// Package event records the controller's events about objects, Berth's and
// Kubernetes' own. What they say, and when, is with those who record them.
package event

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Recorder writes events. Not blocking, safe in parallel; events.EventRecorder is
// one.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Scheme knows the kinds of the objects that events are about, for a Recorder: the
// objects in caches do not say theirs.
func Scheme() (*runtime.Scheme, error) {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Event about an object.
type Event struct {
	// Type is v1.EventTypeNormal or v1.EventTypeWarning.
	Type         string
	Reason, Note string
}

// Normal is an event that nobody need act on.
func Normal(reason, note string) Event { return Event{v1.EventTypeNormal, reason, note} }

// Warning is an event that somebody should act on.
func Warning(reason, note string) Event { return Event{v1.EventTypeWarning, reason, note} }

// Record has a Recorder write an event about one object and, where related is not
// nil, another. action is what its author was at.
func (e Event) Record(to Recorder, regarding, related runtime.Object, action string) {
	const most = 1000 // The API server takes 1024.
	if len(e.Note) > most {
		e.Note = e.Note[:most] + "…"
	}
	to.Eventf(regarding, related, e.Type, e.Reason, action, "%s", e.Note)
}
