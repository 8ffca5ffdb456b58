// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"slices"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// wants reports whether a workload wants an address that has no pod.
func (w *workload) wants(spec *v1alpha1.FloatingIPSpec, at standing) bool {
	owner := spec.Owner
	// unscaled says that the number of replicas does not matter.
	unscaled := w.unbounded || spec.KeepOnScaleDown
	switch {
	case !w.exists:
		return false
	case isPod(owner):
		return true
	case w.claim:
		return at.rank < w.replicas
	}
	if leader, worker := v1alpha1.LeaderOf(owner.Name, owner.PodName); worker && owner.Kind == "StatefulSet" {
		return unscaled || w.hasOrdinal(leader) // The template is for the leader, not for the worker.
	}
	switch {
	case w.addressless:
		return false
	case owner.PodName != "":
		// Ignore the families of the template: a pod that is recreated from an older
		// template may want others.
		if at.rank >= (podrequest.Demand{Total: w.each.Total}).Of(at.family, at.families) {
			return false
		}
		ordinal, ok := v1alpha1.OrdinalOf(owner.Name, owner.PodName)
		if w.ordinals || !numbersItself(owner) {
			return unscaled || !ok || w.hasOrdinal(ordinal)
		}
		return unscaled || at.name < w.replicas
	case owner.NodeName != "":
		each := w.each.Of(at.family, at.families)
		return !w.offNode && each > 0 && at.rank/each <= w.spare
	case unscaled || w.partial:
		return true
	}
	// The address is wanted if it is within the fixed set: the addresses for the replicas and the
	// spare addresses.
	each, rank := w.each.OfShared(at.family), at.rank
	if w.oldestFirst {
		rank = at.age
	}
	return each > 0 && rank/each < w.replicas+w.spare
}

// preallocates reports whether an IPClaim wants the address even without a pod.
func (w *workload) preallocates(at standing) bool {
	return w.exists && at.rank < w.replicas && slices.Contains(w.ahead, at.family)
}

// hasOrdinal reports whether the workload wants a pod with this ordinal: it wants the
// first w.replicas ordinals from start on, without the reserved ones.
func (w *workload) hasOrdinal(ordinal int64) bool {
	if ordinal < w.start {
		return false
	}
	position := ordinal - w.start
	next := w.start // the first ordinal that no span has counted yet
	for _, s := range slices.SortedFunc(slices.Values(w.reserved), func(a, b customkind.Span) int { return cmp.Compare(a.First, b.First) }) {
		if s.First <= ordinal && ordinal <= s.Last {
			return false
		}
		first, last := max(s.First, next), min(s.Last, ordinal)
		if first <= last {
			position -= last - first + 1
			next = last + 1
		}
	}
	return position < w.replicas
}
