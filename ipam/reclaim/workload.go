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

// workload is what matters of an address's owner, whatever its kind.
type workload struct {
	// exists under the UID that is recorded, is not being deleted and, if it is a
	// Job, is not done: it may start pods.
	exists bool
	// unbounded: nobody can say how many pods it wants (a custom kind without a
	// scale subresource, a pod). It wants all that it has.
	unbounded bool
	// replicas is how many pods it wants at once; of an IPClaim, how many
	// addresses of each family.
	replicas int64
	// spare is for how many more pods it keeps addresses; oldestFirst: it keeps the
	// oldest, and not those with pods first ([fixedset.Size]).
	spare       int64
	oldestFirst bool
	// start and reserved are the first ordinal of pods whose names last, and the
	// ordinals that are left out.
	start    int64
	reserved []customkind.Span
	// offNode: the node that the address stands for is gone, or the workload's
	// pods do not belong there.
	offNode bool
	// each is how many addresses one pod has.
	each podrequest.Demand
	// updating: pods may yet be made of an older pod template than the one that was
	// read.
	updating bool
	// addressless: its pods ask for no addresses, nor will those that are made again.
	addressless bool
	// claim: the owner is an IPClaim.
	claim bool
	// preallocates are the families of which the claim asks for all its addresses
	// before any pod does; ahead: the workload asks so for those of its fixed set.
	preallocates []v1alpha1.IPFamily
	ahead        bool
}

// standing is where an address stands among those that its owner has for the same
// purpose: for one pod name, for one node, or for all pods.
type standing struct {
	family v1alpha1.IPFamily
	// rank is how many of its family come before it in the order of before, and age
	// how many are older.
	rank, age int64
	// families is how many families they have.
	families int64
}

// before is the order in which an owner keeps its addresses: the last are given up
// first. Of those that pods share out that is those without a pod, and then the
// youngest. It orders all addresses of a purpose, by nothing but their records.
func before(a, b *v1alpha1.FloatingIP) bool {
	if isShared(a.Spec.Owner) && (a.Spec.Pod == nil) != (b.Spec.Pod == nil) {
		return a.Spec.Pod != nil
	}
	return older(a, b)
}

// older says which of two addresses its owner has had for longer.
func older(a, b *v1alpha1.FloatingIP) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	// In the scheduler's order: by number, not by text.
	x, _ := v1alpha1.AddrOf(a.Name)
	y, _ := v1alpha1.AddrOf(b.Name)
	return x.Less(y)
}

func isPod(owner *v1alpha1.Owner) bool { return owner.Kind == "Pod" && owner.APIVersion == "v1" }

// wants says whether a workload wants an address that has no pod.
func (w *workload) wants(spec *v1alpha1.FloatingIPSpec, at standing) bool {
	owner := spec.Owner
	// What keepOnScaleDown does not look at.
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
		// Not by the families the template names: a pod that is made again from an
		// older template may want others.
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

// inSet says whether an address that pods share out is one of as many as there are for
// the workload's replicas and the spare ones.
func (w *workload) inSet(at standing) bool {
	each, rank := w.each.OfShared(at.family), at.rank
	if w.oldestFirst {
		rank = at.age
	}
	return each > 0 && rank/each < w.replicas+w.spare
}

// preallocated says whether the owner asks for the address though no pod does.
func (w *workload) preallocated(at standing) bool {
	switch {
	case !w.exists:
		return false
	case w.claim:
		return at.rank < w.replicas && slices.Contains(w.preallocates, at.family)
	}
	return w.ahead && w.inSet(at)
}

// mayPreallocate says whether addresses of an owner may have been taken before any
// pod asked.
func mayPreallocate(owner *v1alpha1.Owner) bool {
	return owner.IsClaim() || isShared(owner) && strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") &&
		(owner.Kind == "Deployment" || owner.Kind == "ReplicaSet")
}

// isUnused says of an address that it was taken before any pod asked, and that none
// had it yet.
func isUnused(spec *v1alpha1.FloatingIPSpec) bool { return spec.Pod == nil && spec.LastPod == "" }

// hasOrdinal says whether a pod of this ordinal is wanted: there are replicas of
// them from start on, those that are reserved left out.
func (w *workload) hasOrdinal(ordinal int64) bool {
	if ordinal < w.start {
		return false
	}
	position := ordinal - w.start
	next := w.start // the first ordinal that no span counted yet
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
