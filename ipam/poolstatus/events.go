// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
)

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventExhausted (Warning on IPPool): the last free address was taken; pods that may use no other
	// pool wait. Do: see docs/how-to/troubleshooting.md#berthpoolfull.
	EventExhausted = "Exhausted"
	// EventAddressesFree (Normal on IPPool): there are free addresses again.
	EventAddressesFree = "AddressesFree"
	// EventInvalid (Warning on IPPool): the pool cannot be used. Do: correct it as the note says.
	EventInvalid = "Invalid"
	// EventOverlap (Warning on IPPool): an older pool keeps some of its addresses. Do: remove them
	// from one of the two.
	EventOverlap = "Overlap"
	// EventNoNode (Warning on IPPool): no node of the cluster is one of the pool's, so that no pod
	// gets an address of it. Do: correct spec.nodeSubnets or spec.nodeSelector, or label nodes.
	EventNoNode = "NoNode"
	// EventAddressesOutside (Warning on IPPool): addresses in use are no longer in its ranges. Do: see
	// docs/how-to/operate.md#shrink-or-delete-a-pool.
	EventAddressesOutside = "AddressesOutside"

	// EventPoolGone (Warning on FloatingIP): its pool was deleted, and no other pool contains it.
	// Reported once per start of the controller. Do: put the address into a pool, or see
	// docs/how-to/operate.md#shrink-or-delete-a-pool.
	EventPoolGone = "PoolGone"
)

// orphansAtOnce limits the events of a round about addresses of deleted pools: a pool may
// have had thousands.
const orphansAtOnce = 20

// changes returns the events for a change of status. Pure.
func changes(before, after *v1alpha1.IPPoolStatus) []event.Event {
	was := func(kind string) metav1.Condition {
		if c := meta.FindStatusCondition(before.Conditions, kind); c != nil {
			return *c
		}
		return metav1.Condition{Type: kind}
	}
	is := func(kind string) *metav1.Condition { return meta.FindStatusCondition(after.Conditions, kind) }
	var events []event.Event

	old, ready := was(v1alpha1.PoolReady), is(v1alpha1.PoolReady)
	if ready.Reason != old.Reason || ready.Message != old.Message {
		switch ready.Reason {
		case EventInvalid, EventOverlap, EventNoNode: // As the conditions' reasons.
			events = append(events, event.Warning(ready.Reason, ready.Message))
		}
	}
	old, exhausted := was(v1alpha1.PoolExhausted), is(v1alpha1.PoolExhausted)
	switch {
	case exhausted.Status == old.Status || after.Capacity == 0:
	case exhausted.Status == metav1.ConditionTrue:
		events = append(events, event.Warning(EventExhausted, exhausted.Message))
	case old.Status == metav1.ConditionTrue:
		events = append(events, event.Normal(EventAddressesFree, exhausted.Message))
	}
	if before.Outside == 0 && after.Outside > 0 {
		events = append(events, event.Warning(EventAddressesOutside,
			fmt.Sprintf("%d addresses in use are not in the pool's ranges. Their owners keep them; status.outside counts them.", after.Outside)))
	}
	return events
}

// tellOrphans emits one event for each address of a deleted pool. The pool must be missing
// for two rounds, because the watch of addresses may be ahead of the watch of pools.
func (w *Writer) tellOrphans(ips map[string]*v1alpha1.FloatingIP) {
	seen := make(map[types.UID]bool, len(ips))
	now := 0
	for _, name := range slices.Sorted(maps.Keys(ips)) {
		ip := ips[name]
		told, before := w.orphans[ip.UID]
		if before && !told && now < orphansAtOnce {
			now++
			told = true
			w.tell(ip, event.Warning(EventPoolGone,
				fmt.Sprintf("IPPool %q is gone and no other pool contains the address. Its owner keeps it, but no pod can be scheduled with it until a pool contains it again.", ip.Spec.Pool)))
		}
		if !told {
			w.dirty.Send()
		}
		seen[ip.UID] = told
	}
	w.orphans = seen
}

func (w *Writer) tell(object runtime.Object, e event.Event) {
	e.Record(w.recorder, object, nil, "CountAddresses")
}
