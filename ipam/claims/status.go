// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/preallocation"
)

// Reasons of the condition Ready, besides package preallocation's.
const (
	// ReasonOnDemand: addresses are taken as pods ask for them.
	ReasonOnDemand = "OnDemand"
	// ReasonPreallocated: all addresses are taken.
	ReasonPreallocated = "Preallocated"
	// ReasonOtherPools: the claim has addresses in pools that it does not name any more.
	ReasonOtherPools = "OtherPools"
	// ReasonDeleting: the claim is being deleted.
	ReasonDeleting = "Deleting"
)

// Reasons of the condition Oversized.
const (
	ReasonMoreThanSize = "MoreThanSize"
	ReasonWithinSize   = "WithinSize"
)

// statusOf computes the status of a claim. wrong is the reason why it does not have all that it
// asks for, nil if it has. elsewhere are its addresses in pools that it does not name. Pure.
func statusOf(claim *v1alpha1.IPClaim, before v1alpha1.IPClaimStatus, t *tally, wrong *preallocation.Problem, elsewhere []*v1alpha1.FloatingIP, now metav1.Time) v1alpha1.IPClaimStatus {
	status := v1alpha1.IPClaimStatus{
		ObservedGeneration: claim.Generation,
		Allocated:          int64(t.allocated.Total()),
		Retained:           int64(t.retained.Total()),
		Conditions:         slices.Clone(before.Conditions),
	}
	status.Addresses = status.Allocated + status.Retained

	ready := metav1.Condition{Type: v1alpha1.ClaimReady, Status: metav1.ConditionTrue}
	switch {
	case wrong != nil:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, wrong.Reason, wrong.Message
	case len(elsewhere) > 0:
		first := elsewhere[0]
		ready.Reason, ready.Message = ReasonOtherPools, fmt.Sprintf("%d addresses, such as %s of pool %s, are in pools that the claim does not name: delete its pods one by one, and each gets an address of a pool that it names.",
			len(elsewhere), first.Spec.Address, first.Spec.Pool)
	case claim.Spec.Preallocate:
		ready.Reason, ready.Message = ReasonPreallocated, fmt.Sprintf("All %d %s addresses are there.", claim.Spec.Size, names(families(claim)))
	default:
		ready.Reason, ready.Message = ReasonOnDemand, fmt.Sprintf("Pods get addresses as they ask for them, up to %d of each family.", claim.Spec.Size)
	}
	oversized := metav1.Condition{Type: v1alpha1.ClaimOversized, Status: metav1.ConditionFalse, Reason: ReasonWithinSize, Message: "The claim has no more addresses than its size."}
	var over []string
	for _, family := range both {
		if n := t.of(family); n > int(claim.Spec.Size) {
			over = append(over, fmt.Sprintf("%d %s addresses (%d with a pod)", n, family, t.allocated[family]))
		}
	}
	if len(over) > 0 {
		oversized.Status, oversized.Reason = metav1.ConditionTrue, ReasonMoreThanSize
		oversized.Message = fmt.Sprintf("The claim has %s, but its size is %d: addresses without a pod are freed first, the others when their pods end.", strings.Join(over, " and "), claim.Spec.Size)
	}
	for _, condition := range []metav1.Condition{ready, oversized} {
		condition.ObservedGeneration = claim.Generation
		condition.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	return status
}

// names joins families for a message.
func names(families []v1alpha1.IPFamily) string {
	var texts []string
	for _, family := range families {
		texts = append(texts, string(family))
	}
	return strings.Join(texts, " and ")
}

// changes returns the events for a change of status.
func changes(claim *v1alpha1.IPClaim, before, after []metav1.Condition) []event.Event {
	reasonOf := func(conditions []metav1.Condition, kind string) (reason, message string) {
		if c := meta.FindStatusCondition(conditions, kind); c != nil {
			return c.Reason, c.Message
		}
		return "", ""
	}
	var events []event.Event
	was, _ := reasonOf(before, v1alpha1.ClaimReady)
	is, message := reasonOf(after, v1alpha1.ClaimReady)
	switch {
	case was == is:
	case is == ReasonOtherPools:
		events = append(events, event.Normal(EventOtherPools, message))
	case is == ReasonPreallocated:
		events = append(events, event.Normal(EventPreallocated, message))
	case preallocation.Failed(is) && !claim.Spec.Preallocate:
		events = append(events, event.Warning(EventUnserved, is+": "+message))
	case preallocation.Failed(is):
		events = append(events, event.Warning(EventPreallocationFailed, is+": "+message))
	}
	was, _ = reasonOf(before, v1alpha1.ClaimOversized)
	if is, message = reasonOf(after, v1alpha1.ClaimOversized); is == ReasonMoreThanSize && was != is {
		events = append(events, event.Warning(EventOversized, message))
	}
	return events
}
