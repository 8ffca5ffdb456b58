// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
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

func (c *Controller) tell(claim *v1alpha1.IPClaim, e event.Event) {
	e.Record(c.recorder, claim, nil, "KeepClaim")
}
