// SPDX-License-Identifier: Apache-2.0

// Package event records the controller's events about Berth's and Kubernetes' objects.
// Its callers choose the text and the time of events.
package event

import (
	"fmt"
	"hash/fnv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/reference"
)

// Recorder writes events, such as events.EventRecorder. It does not block and is safe
// for concurrent use.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Event is an event about an object.
type Event struct {
	// Type is v1.EventTypeNormal or v1.EventTypeWarning.
	Type         string
	Reason, Note string
}

// Normal returns an event that needs no action.
func Normal(reason, note string) Event { return Event{v1.EventTypeNormal, reason, note} }

// Warning returns an event on which a user or administrator should act.
func Warning(reason, note string) Event { return Event{v1.EventTypeWarning, reason, note} }

// Record makes a Recorder write an event about regarding. related is a second object, or
// nil. action is the controller's action.
func (e Event) Record(to Recorder, regarding, related runtime.Object, action string) {
	const most = 1000 // The API server accepts 1024.
	if len(e.Note) > most {
		e.Note = strings.ToValidUTF8(e.Note[:most], "") + "…" // The cut may split a character.
	}
	to.Eventf(regarding, related, e.Type, e.Reason, action, "%s", e.Note)
}

// ByNote returns a recorder that writes an event for each note. client-go joins events about the
// same objects for the same reason and action, so for six minutes a changed note would count as a
// repetition of the old one. to belongs to client-go's package events; scheme has the objects'
// kinds.
func ByNote(to Recorder, scheme *runtime.Scheme) Recorder { return byNote{to, scheme} }

type byNote struct {
	to     Recorder
	scheme *runtime.Scheme
}

// Eventf tells notes apart by the version of the reference, which nobody looks objects up by.
func (b byNote) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	if ref, err := reference.GetReference(b.scheme, regarding); err == nil {
		hash := fnv.New64a()
		_, _ = fmt.Fprintf(hash, note, args...)
		about := *ref
		about.ResourceVersion = fmt.Sprintf("%x", hash.Sum64())
		regarding = &about
	}
	b.to.Eventf(regarding, related, eventtype, reason, action, note, args...)
}
