// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
)

// action is a decision on an address.
type action int

const (
	keep action = iota
	// retain: the pod is gone, the owner keeps the address.
	retain
	// cool: remove the owner and begin the cooldown.
	cool
	// free: delete the FloatingIP.
	free
)

// situation is the input of a decision, besides the address's record.
type situation struct {
	now time.Time
	// created is the creation time of the object.
	created time.Time
	// unused says that no pod ever had the address: the pod that it was created for runs with other
	// addresses or was never bound.
	unused bool
	// namespaceGone says that the namespace of the address's owner was deleted, so no pod can use the
	// address any more.
	namespaceGone bool
	// superseded says that the address is kept for a pod name, and a live pod of that name is bound
	// with other addresses.
	superseded bool
	// unknown says that the owner could not be read. It is never set for an IPClaim.
	unknown bool
	// owner and at are set only if needsOwner.
	owner workload
	at    standing
	// node is set if the owner is a Node.
	node nodeClaim
	// cooldown of the pool.
	cooldown time.Duration
	// rejected says that a kubelet rejected the pod before starting it. Nobody has seen the pod's
	// address, so it needs no cooldown.
	rejected bool
	// lastNode is the lastNode of the address after it has left its pod; nil: no node may still carry
	// it.
	lastNode *v1alpha1.NodeReference
	// carried says that the last node of an address in cooldown may still carry it. It is set only if
	// the cooldown of the pool is over.
	carried bool
	// limited says that the pool limits how long addresses are kept without a pod.
	limited bool
	// conflict says that a host outside of the cluster has the address, or had it when a pod last had
	// the address.
	conflict bool
}

// verdict is a decision. If the action is keep, again says when to look again; 0 means at the next
// event.
type verdict struct {
	action action
	again  time.Duration
}

// expired reports whether an address has had no pod for its whole retainFor. Then it is
// freed even if its owner wants it, unless an IPClaim preallocates it in a pool without
// maxRetainFor.
func expired(spec *v1alpha1.FloatingIPSpec, s situation) bool {
	return spec.Pod == nil && spec.RetainFor != nil && leftOf(spec, s) <= 0
}

// leftOf returns how long an address with retainFor is still retained.
func leftOf(spec *v1alpha1.FloatingIPSpec, s situation) time.Duration {
	since := s.created
	if spec.Since != nil {
		since = spec.Since.Time
	}
	return since.Add(spec.RetainFor.Duration).Sub(s.now)
}

// needsOwner reports whether the decision about an address without a live pod depends on
// its workload.
func needsOwner(spec *v1alpha1.FloatingIPSpec) bool {
	return spec.ReleasePolicy == v1alpha1.ReleaseRetain || spec.Owner.IsClaim()
}

// outlivesPod reports whether an address may be kept when its pod is gone.
func outlivesPod(spec *v1alpha1.FloatingIPSpec) bool {
	return spec.ReleasePolicy == v1alpha1.ReleaseNever || needsOwner(spec)
}

// keptFor returns how much longer an address without a pod is kept regardless of its
// owner (spec.keepUntil).
func keptFor(spec *v1alpha1.FloatingIPSpec, now time.Time) time.Duration {
	if spec.KeepUntil == nil || spec.Pod != nil || spec.Carrier() != nil {
		return 0
	}
	return max(0, spec.KeepUntil.Sub(now))
}

// conflictRest is the shortest cooldown of an address that a host outside of the cluster had.
// Meanwhile nobody asks the network about the address. The node of the next pod asks, and refuses
// the address if the host still has it. Then that pod does not start, so this time is long.
const conflictRest = 24 * time.Hour

// decide applies the rules of the package documentation to an address without a live
// pod. Pure.
func decide(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	v := byRules(spec, s)
	if v.action != free || !s.conflict {
		return v
	}
	if spec.Owner == nil {
		if left := spec.ReleasedAt.Add(conflictRest).Sub(s.now); left > 0 {
			return verdict{again: left}
		}
		return v
	}
	// The address loses its owner, and no pod gets it.
	return verdict{action: cool}
}

func byRules(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	switch {
	case spec.Reserved:
		return verdict{}
	case spec.Owner == nil:
		return endCooldown(spec, s)
	case spec.Owner.IsNode():
		return decideNode(spec, s)
	case s.unused:
		return verdict{action: free}
	case s.namespaceGone:
		return giveBack(spec, s)
	}
	if left := keptFor(spec, s.now); left > 0 {
		return verdict{again: left}
	}
	preallocated := s.owner.preallocates(s.at)
	exempt := preallocated && !s.limited
	if expired(spec, s) && !exempt {
		return giveBack(spec, s)
	}
	switch spec.ReleasePolicy {
	case v1alpha1.ReleaseNever:
	case v1alpha1.ReleaseRetain:
		if s.superseded || !s.unknown && !s.owner.wants(spec, s.at) {
			return giveBack(spec, s)
		}
	default:
		if !preallocated {
			return giveBack(spec, s)
		}
	}
	if spec.Pod != nil {
		return verdict{action: retain}
	}
	if spec.RetainFor == nil || exempt {
		return verdict{}
	}
	return verdict{again: leftOf(spec, s)}
}

// giveBack frees an address. If a pod or a node had the address, it goes into cooldown first: for
// the pool's cooldown, and until its last node has stopped.
func giveBack(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	if (s.cooldown > 0 && !s.rejected || s.lastNode != nil) && (spec.Pod != nil || spec.LastPod != "" || spec.Owner.IsNode()) {
		return verdict{action: cool}
	}
	return verdict{action: free}
}

// endCooldown decides about an address without an owner. If the address is not in cooldown, another
// client created its FloatingIP, so it stays.
func endCooldown(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	if spec.ReleasedAt == nil || spec.Pod != nil {
		return verdict{}
	}
	var left time.Duration
	switch {
	case s.carried:
		left = lastnode.Until(spec.ReleasedAt.Time, s.cooldown).Sub(s.now)
	case !lastnode.IsRested(spec.ReleasedAt.Time, s.cooldown, s.now):
		left = spec.ReleasedAt.Add(s.cooldown).Sub(s.now)
	}
	// The pool of a restored address may not exist yet: then keepUntil keeps the address.
	if left = max(left, keptFor(spec, s.now)); left > 0 {
		return verdict{again: left}
	}
	return verdict{action: free}
}
