// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/sorted"
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
	// spare is the number of further pods, of a DaemonSet on each node, that it keeps addresses for.
	// oldestFirst: it keeps the oldest addresses instead of the ones with pods ([fixedset.Size]).
	spare       int64
	oldestFirst bool
	// partial: replicas counts only some of its pods, so that it wants all addresses that its pods
	// share.
	partial bool
	// ordinals: it says which ordinals its pods have, as a StatefulSet does without saying so: from
	// start on, without the reserved ones. Another operator may number them in any way: the names that
	// have or had pods count.
	ordinals bool
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
	// ahead are the families that the claim preallocates.
	ahead []v1alpha1.IPFamily
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
	// name is the number of the owner's pod names before the address's, which are the ones with pods
	// and older ones; 0 for a StatefulSet.
	name int64
}

// before orders the addresses of a purpose: an owner gives up the last ones first. If
// pods share the addresses, the ones with a pod come first; older ones come before younger
// ones. The order depends on the records only.
func before(a, b *v1alpha1.FloatingIP) int {
	if !isShared(a.Spec.Owner) {
		return older(a, b)
	}
	return cmp.Or(sorted.TrueFirst(hasUser(a), hasUser(b)), older(a, b))
}

// hasUser reports whether a pod or a Service has the address.
func hasUser(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Pod != nil || ip.Spec.Service != nil }

// older puts the address first that was created first.
func older(a, b *v1alpha1.FloatingIP) int { return a.CompareAge(b) }

func isPod(owner *v1alpha1.Owner) bool { return owner.Kind == "Pod" && owner.APIVersion == "v1" }
