// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Reasons of the condition Ready.
const (
	// ReasonOnDemand: addresses are taken as pods ask for them.
	ReasonOnDemand = "OnDemand"
	// ReasonPreallocated: all addresses are there.
	ReasonPreallocated = "Preallocated"

	// ReasonPreallocating: addresses are being taken.
	ReasonPreallocating = "Preallocating"
	// ReasonPoolsExhausted: the pools that the claim may use have no free address.
	ReasonPoolsExhausted = "PoolsExhausted"
	// ReasonNamespaceAtCap: the namespace has as many addresses as the pools that
	// the claim may use give to one.
	ReasonNamespaceAtCap = "NamespaceAtCap"
	// ReasonNoSuchPool: no IPPool has the names or labels that the claim says.
	ReasonNoSuchPool = "NoSuchPool"
	// ReasonNoPoolFits: there are such pools, but none that admits the namespace
	// and has addresses of the family.
	ReasonNoPoolFits = "NoPoolFits"
	// ReasonPreallocationFailed: something else failed, and is tried again.
	ReasonPreallocationFailed = "PreallocationFailed"
	// ReasonInvalid: the claim cannot be understood.
	ReasonInvalid = "Invalid"
	// ReasonTakingOver: addresses of another claim are being moved.
	ReasonTakingOver = "TakingOver"
	// ReasonTakeOverConflict: the claim may not take over the one that it names.
	ReasonTakeOverConflict = "TakeOverConflict"
	// ReasonTakenOver: another claim takes this one's addresses, so nothing is
	// preallocated.
	ReasonTakenOver = "TakenOver"
	// ReasonDeleting: the claim is being deleted.
	ReasonDeleting = "Deleting"
)

// Reasons of the condition Oversized.
const (
	ReasonMoreThanSize = "MoreThanSize"
	ReasonWithinSize   = "WithinSize"
)

// problem is why a claim has not what it asks for.
type problem struct {
	reason, message string
}

// problems by what they are about; the first one's reason counts.
func joined(problems []problem) problem {
	var messages []string
	for _, p := range problems {
		messages = append(messages, p.message)
	}
	return problem{problems[0].reason, strings.Join(messages, "; ")}
}

// failed says whether a problem is one that somebody should look at, rather than
// work in progress.
func failed(reason string) bool {
	return slices.Contains([]string{
		ReasonPoolsExhausted, ReasonNamespaceAtCap, ReasonNoSuchPool, ReasonNoPoolFits, ReasonPreallocationFailed, ReasonInvalid,
	}, reason)
}

// statusOf computes the status of a claim, given why it has not all that it asks
// for (nil: it has). Pure.
func statusOf(claim *v1alpha1.IPClaim, before v1alpha1.IPClaimStatus, t *tally, wrong *problem, now metav1.Time) v1alpha1.IPClaimStatus {
	status := v1alpha1.IPClaimStatus{
		ObservedGeneration: claim.Generation,
		Allocated:          int64(total(t.allocated)),
		Retained:           int64(total(t.retained)),
		Conditions:         slices.Clone(before.Conditions),
	}
	status.Addresses = status.Allocated + status.Retained

	ready := metav1.Condition{Type: v1alpha1.ClaimReady, Status: metav1.ConditionTrue}
	switch {
	case wrong != nil:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, wrong.reason, wrong.message
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
		oversized.Message = fmt.Sprintf("The claim has %s, its size is %d: those without a pod are freed first, the others as their pods end.", strings.Join(over, " and "), claim.Spec.Size)
	}
	for _, condition := range []metav1.Condition{ready, oversized} {
		condition.ObservedGeneration = claim.Generation
		condition.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	return status
}

// names of families for a sentence.
func names(families []v1alpha1.IPFamily) string {
	var texts []string
	for _, family := range families {
		texts = append(texts, string(family))
	}
	return strings.Join(texts, " and ")
}

// changes are the events that a change of status is worth.
func changes(claim *v1alpha1.IPClaim, before, after []metav1.Condition) []event {
	reasonOf := func(conditions []metav1.Condition, kind string) (reason, message string) {
		if c := meta.FindStatusCondition(conditions, kind); c != nil {
			return c.Reason, c.Message
		}
		return "", ""
	}
	var events []event
	was, _ := reasonOf(before, v1alpha1.ClaimReady)
	is, message := reasonOf(after, v1alpha1.ClaimReady)
	switch {
	case was == is:
	case is == ReasonPreallocated:
		events = append(events, event{reason: EventPreallocated, message: message})
	case is == ReasonTakeOverConflict:
		events = append(events, event{warning: true, reason: EventTakeOverFailed, message: message})
	case failed(is) && !claim.Spec.Preallocate:
		events = append(events, event{warning: true, reason: EventUnserved, message: is + ": " + message})
	case failed(is):
		events = append(events, event{warning: true, reason: EventPreallocationFailed, message: is + ": " + message})
	}
	was, _ = reasonOf(before, v1alpha1.ClaimOversized)
	if is, message = reasonOf(after, v1alpha1.ClaimOversized); is == ReasonMoreThanSize && was != is {
		events = append(events, event{warning: true, reason: EventOversized, message: message})
	}
	return events
}
