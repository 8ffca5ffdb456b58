// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// action is what to do with an address.
type action int

const (
	keep action = iota
	// retain: the pod is gone, the address stays with its owner.
	retain
	// cool: it is nobody's any more, and given to nobody until its cooldown is over.
	cool
	// free: delete the FloatingIP.
	free
)

// situation is all, besides the address's own record, that a decision rests on.
type situation struct {
	now time.Time
	// created is when the object was made.
	created time.Time
	// unused: the pod that the address was claimed for runs with others or was
	// never bound, and no pod ever had it.
	unused bool
	// namespaceGone: nobody can use the address any more, the namespace that it was
	// recorded for is deleted.
	namespaceGone bool
	// superseded: a live pod of the name that the address stands for is bound with
	// others.
	superseded bool
	// unknown: what the owner wants could not be found out. Never of an IPClaim.
	unknown bool
	// owner and at are looked at only if needsOwner.
	owner workload
	at    standing
	// cooldown of the pool.
	cooldown time.Duration
}

// verdict is what to do, and for keep, when to look again; 0: when something
// changes.
type verdict struct {
	action action
	again  time.Duration
}

// expired says whether an address had no pod for as long as it is retained at most.
// Then it is freed whatever its workload wants, unless that preallocates it.
func expired(spec *v1alpha1.FloatingIPSpec, s situation) bool {
	return spec.Pod == nil && spec.RetainFor != nil && leftOf(spec, s) <= 0
}

// leftOf is how long an address with retainFor is still retained.
func leftOf(spec *v1alpha1.FloatingIPSpec, s situation) time.Duration {
	since := s.created
	if spec.Since != nil {
		since = spec.Since.Time
	}
	return since.Add(spec.RetainFor.Duration).Sub(s.now)
}

// needsOwner says whether the decision about an address whose pod is gone depends
// on its workload.
func needsOwner(spec *v1alpha1.FloatingIPSpec) bool {
	if spec.ReleasePolicy == v1alpha1.ReleaseNever && spec.Pod == nil && mayPreallocate(spec.Owner) && (spec.RetainFor != nil || isUnused(spec)) {
		return true
	}
	return spec.ReleasePolicy == v1alpha1.ReleaseRetain || spec.Owner.IsClaim()
}

// outlivesPod says whether an address may be kept when its pod is gone.
func outlivesPod(spec *v1alpha1.FloatingIPSpec) bool {
	return spec.ReleasePolicy == v1alpha1.ReleaseNever || needsOwner(spec)
}

// keptFor is how much longer an address without a pod is kept whatever becomes of
// its owner.
func keptFor(spec *v1alpha1.FloatingIPSpec, now time.Time) time.Duration {
	if spec.KeepUntil == nil || spec.Pod != nil {
		return 0
	}
	return max(0, spec.KeepUntil.Sub(now))
}

// decide applies the rules of the package documentation to an address that no live pod
// has. Pure.
func decide(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	switch {
	case spec.Reserved:
		return verdict{}
	case spec.Owner == nil:
		return endCooldown(spec, s)
	case s.unused:
		return verdict{action: free}
	case s.namespaceGone:
		return giveBack(spec, s)
	}
	if left := keptFor(spec, s.now); left > 0 {
		return verdict{again: left}
	}
	preallocated := s.owner.preallocated(s.at)
	if expired(spec, s) && !preallocated {
		return giveBack(spec, s)
	}
	switch spec.ReleasePolicy {
	case v1alpha1.ReleaseNever:
		// One that was taken ahead is kept as one of the set; more may have been taken
		// while pods took some too.
		if s.owner.exists && s.owner.ahead && isUnused(spec) && !preallocated {
			return giveBack(spec, s)
		}
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
	if spec.RetainFor == nil || preallocated {
		return verdict{}
	}
	return verdict{again: leftOf(spec, s)}
}

// giveBack frees an address, by way of the pool's cooldown if a pod ran with it.
func giveBack(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	if s.cooldown > 0 && (spec.Pod != nil || spec.LastPod != "") {
		return verdict{action: cool}
	}
	return verdict{action: free}
}

// endCooldown decides about an address without an owner. One that does not cool
// down was made by somebody else, and is theirs.
func endCooldown(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	if spec.ReleasedAt == nil || spec.Pod != nil {
		return verdict{}
	}
	// Of one that was restored the pool may yet be missing.
	if left := max(spec.ReleasedAt.Add(s.cooldown).Sub(s.now), keptFor(spec, s.now)); left > 0 {
		return verdict{again: left}
	}
	return verdict{action: free}
}
