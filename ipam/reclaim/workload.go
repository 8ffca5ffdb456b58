// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// workload is the state of an address's owner that decisions need, for any kind.
type workload struct {
	// exists: it may create pods. It has the recorded UID, is not being deleted and, if
	// it is a Job, has not ended.
	exists bool
	// unbounded: the number of pods that it wants is unknown (a custom kind without a
	// scale subresource, a pod). It wants all its addresses.
	unbounded bool
	// replicas is the number of pods that it wants at once; for an IPClaim, the number
	// of addresses of each family.
	replicas int64
	// spare is the number of further pods that it keeps addresses for. oldestFirst: it
	// keeps the oldest addresses instead of those with pods ([fixedset.Size]).
	spare       int64
	oldestFirst bool
	// start is the first ordinal of its pods, reserved are ordinals without a pod.
	start    int64
	reserved []customkind.Span
	// offNode: the node that the address is kept for is gone, or the workload's pods do
	// not belong on it.
	offNode bool
	// each is the demand of one pod.
	each podrequest.Demand
	// updating: pods may still be created from an older template.
	updating bool
	// addressless: its pods request no addresses, nor will recreated pods.
	addressless bool
	// claim: the owner is an IPClaim.
	claim bool
	// preallocates are the families that the claim preallocates. ahead: the workload
	// preallocates its fixed set.
	preallocates []v1alpha1.IPFamily
	ahead        bool
}

// standing is the rank of an address among the addresses that its owner has for the same
// purpose: for one pod name, for one node, or for all pods.
type standing struct {
	family v1alpha1.IPFamily
	// rank is the number of addresses of its family before it in the order of before,
	// age the number of older ones.
	rank, age int64
	// families is the number of families that these addresses have.
	families int64
}

// before orders the addresses of a purpose: an owner gives up the last ones first. If
// pods share the addresses, those with a pod come first; older ones come before younger
// ones. The order depends on the records only.
func before(a, b *v1alpha1.FloatingIP) bool {
	if isShared(a.Spec.Owner) && (a.Spec.Pod == nil) != (b.Spec.Pod == nil) {
		return a.Spec.Pod != nil
	}
	return older(a, b)
}

// older reports whether a was created before b.
func older(a, b *v1alpha1.FloatingIP) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	// The scheduler's order is by number, not by text.
	x, _ := v1alpha1.AddrOf(a.Name)
	y, _ := v1alpha1.AddrOf(b.Name)
	return x.Less(y)
}

func isPod(owner *v1alpha1.Owner) bool { return owner.Kind == "Pod" && owner.APIVersion == "v1" }

// wants reports whether a workload wants an address that has no pod.
func (w *workload) wants(spec *v1alpha1.FloatingIPSpec, at standing) bool {
	owner := spec.Owner
	// unscaled: the number of replicas does not matter.
	unscaled := w.unbounded || spec.KeepOnScaleDown
	switch {
	case !w.exists:
		return false
	case isPod(owner):
		return true
	case w.claim:
		return at.rank < w.replicas
	case w.addressless:
		return false
	case owner.PodName != "":
		// Ignore the families of the template: a pod that is recreated from an older
		// template may want others.
		if at.rank >= (podrequest.Demand{Total: w.each.Total}).Of(at.family, at.families) {
			return false
		}
		ordinal, ok := v1alpha1.OrdinalOf(owner.Name, owner.PodName)
		return unscaled || !ok || w.hasOrdinal(ordinal)
	case owner.NodeName != "":
		return !w.offNode && at.rank < w.each.Of(at.family, at.families)
	case unscaled && !(w.ahead && isUnused(spec)):
		return true
	}
	return w.inSet(at)
}

// inSet reports whether a shared address is within the workload's fixed set: the
// addresses for its replicas and the spare addresses.
func (w *workload) inSet(at standing) bool {
	each, rank := w.each.OfShared(at.family), at.rank
	if w.oldestFirst {
		rank = at.age
	}
	return each > 0 && rank/each < w.replicas+w.spare
}

// preallocated reports whether the owner asks for the address although no pod does.
func (w *workload) preallocated(at standing) bool {
	switch {
	case !w.exists:
		return false
	case w.claim:
		return at.rank < w.replicas && slices.Contains(w.preallocates, at.family)
	}
	return w.ahead && w.inSet(at)
}

// mayPreallocate reports whether an owner of this kind may preallocate addresses.
func mayPreallocate(owner *v1alpha1.Owner) bool {
	return owner.IsClaim() || isShared(owner) && strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") &&
		(owner.Kind == "Deployment" || owner.Kind == "ReplicaSet")
}

// isUnused reports whether an address was preallocated and no pod has had it yet.
func isUnused(spec *v1alpha1.FloatingIPSpec) bool { return spec.Pod == nil && spec.LastPod == "" }

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
