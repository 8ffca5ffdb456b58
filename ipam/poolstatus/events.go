// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
)

// Reasons of events on pools, and of the one on FloatingIPs.
const (
	// EventExhausted: the last free address was taken.
	EventExhausted = "Exhausted"
	// EventAddressesFree: there are free addresses again.
	EventAddressesFree = "AddressesFree"
	// EventInvalid: the pool cannot be used.
	EventInvalid = "Invalid"
	// EventOverlap: an older pool keeps some of the addresses.
	EventOverlap = "Overlap"
	// EventAddressesOutside: addresses in use are no longer in the pool's ranges.
	EventAddressesOutside = "AddressesOutside"

	// EventPoolGone: no pool contains the FloatingIP's address any longer.
	EventPoolGone = "PoolGone"
)

// orphansAtOnce is how many addresses a round tells of: a pool may have had
// thousands.
const orphansAtOnce = 20

// changes are the events that a change of status is worth. Pure.
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
		case ReasonInvalid:
			events = append(events, event.Warning(EventInvalid, ready.Message))
		case ReasonOverlap:
			events = append(events, event.Warning(EventOverlap, ready.Message))
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
			fmt.Sprintf("%d addresses in use are not in the pool's ranges. They stay where they are; status.outside counts them.", after.Outside)))
	}
	return events
}

func (w *Writer) tellChanges(object *v1alpha1.IPPool, before, after *v1alpha1.IPPoolStatus) {
	for _, e := range changes(before, after) {
		w.tell(object, e)
	}
}

// tellOrphans tells of each address whose pool is gone once. It has to be so for
// two rounds: the watch of addresses may be ahead of that of pools.
func (w *Writer) tellOrphans(ips []*v1alpha1.FloatingIP) {
	seen := make(map[types.UID]bool, len(ips))
	now := 0
	for _, ip := range ips {
		told, before := w.orphans[ip.UID]
		if before && !told && now < orphansAtOnce {
			now++
			told = true
			w.tell(ip, event.Warning(EventPoolGone,
				fmt.Sprintf("IPPool %q is gone and no other contains the address. Who has it keeps it, but no pod can be placed with it until a pool contains it again.", ip.Spec.Pool)))
		}
		if !told {
			w.mark()
		}
		seen[ip.UID] = told
	}
	w.orphans = seen
}

func (w *Writer) tell(object runtime.Object, e event.Event) {
	e.Record(w.recorder, object, nil, "CountAddresses")
}
