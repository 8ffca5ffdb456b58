// SPDX-License-Identifier: Apache-2.0

package claims

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Reasons of events on claims.
const (
	EventPreallocated        = "Preallocated"
	EventPreallocationFailed = "PreallocationFailed"
	EventUnserved            = "Unserved"
	EventTookOver            = "TookOver"
	EventTakeOverFailed      = "TakeOverFailed"
	EventOversized           = "Oversized"
)

// Recorder writes events. Not blocking, safe in parallel; events.EventRecorder is
// one.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// event on a claim.
type event struct {
	warning         bool
	reason, message string
}

func (c *Controller) tell(claim *v1alpha1.IPClaim, e event) {
	kind := v1.EventTypeNormal
	if e.warning {
		kind = v1.EventTypeWarning
	}
	const most = 1000 // The API server takes 1024.
	if len(e.message) > most {
		e.message = e.message[:most] + "…"
	}
	c.recorder.Eventf(&v1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "IPClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}, nil, kind, e.reason, "KeepClaim", "%s", e.message)
}
