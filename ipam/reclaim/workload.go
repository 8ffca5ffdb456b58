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
	// exists says that the workload may create pods: it has the recorded UID, is not being deleted
	// and, if it is a Job, has not ended.
	exists bool
	// unbounded says that the number of pods that it wants is unknown (a custom kind without a scale
	// subresource, a pod). It wants all its addresses.
	unbounded bool
	// replicas is the number of pods that it wants at once; for an IPClaim, the number
	// of addresses of each family.
	replicas int64
	// spare is the number of further pods (for a DaemonSet: on each node) for which it keeps
	// addresses. oldestFirst says that it keeps the oldest addresses instead of those with pods
	// ([fixedset.Size]).
	spare       int64
	oldestFirst bool
	// partial says that replicas counts only some of its pods, so it wants all addresses that its pods
	// share.
	partial bool
	// ordinals says that the ordinals of its pods are known, as for a StatefulSet: from start on,
	// without the reserved ones. Other operators may number pods in any way: then the names that have
	// or had pods count.
	ordinals bool
	start    int64
	reserved []customkind.Span
	// offNode says that the node that the address is kept for is gone, or that the workload's pods do
	// not belong on it.
	offNode bool
	// each is the demand of one pod.
	each podrequest.Demand
	// updating says that pods may still be created from an older template.
	updating bool
	// addressless says that its pods, also recreated ones, request no addresses.
	addressless bool
	// claim says that the owner is an IPClaim.
	claim bool
	// ahead are the families that the claim preallocates.
	ahead []v1alpha1.IPFamily
}

// standing is the rank of an address among the addresses that its owner has for the same
// purpose: for one pod name, for one node, or for all pods.
type standing struct {
	family v1alpha1.IPFamily
	// rank is the number of addresses of its family that come before it in the order of [before], age
	// the number of older addresses.
	rank, age int64
	// families is the number of families that these addresses have.
	families int64
	// name is the number of the owner's pod names that come before the address's pod name: names with
	// pods, and older names. It is 0 for a StatefulSet.
	name int64
}

// before orders the addresses of a purpose: an owner gives up the last ones first. If pods share
// the addresses, addresses with a pod come first. Older addresses come before younger ones. The
// order depends only on the records.
func before(a, b *v1alpha1.FloatingIP) int {
	if !isShared(a.Spec.Owner) {
		return older(a, b)
	}
	return cmp.Or(sorted.TrueFirst(hasUser(a), hasUser(b)), older(a, b))
}

// hasUser reports whether a pod or a Service has the address, or pods leave by it.
func hasUser(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Pod != nil || ip.Spec.Carrier() != nil }

// older orders addresses by their creation, the oldest first.
func older(a, b *v1alpha1.FloatingIP) int { return a.CompareAge(b) }

func isPod(owner *v1alpha1.Owner) bool { return owner.Kind == "Pod" && owner.APIVersion == "v1" }
