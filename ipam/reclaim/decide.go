// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"strconv"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// action is what to do with an address.
type action int

const (
	keep action = iota
	// retain: the pod is gone, the address stays with its owner.
	retain
	// free: delete the FloatingIP.
	free
)

// workload is what matters of an address's owner.
type workload struct {
	// exists under the UID that is recorded.
	exists bool
	// known is false for a kind whose rules are not known: it wants all it has.
	known bool
	// replicas and start are the ordinals' range of a StatefulSet; replicas alone
	// that of a Deployment.
	replicas, start int32
}

// decide applies the rules of the package documentation. Pure.
//
// rank is the position of the address among those of its owner, and of the pod
// name where it stands for one, oldest first.
func decide(spec *v1alpha1.FloatingIPSpec, podAlive bool, owner workload, rank int) action {
	if spec.Reserved || spec.Owner == nil || podAlive {
		return keep
	}
	switch spec.ReleasePolicy {
	case v1alpha1.ReleaseNever:
	case v1alpha1.ReleaseRetain:
		if !wants(spec.Owner, owner, rank) {
			return free
		}
	default:
		return free
	}
	if spec.Pod != nil {
		return retain
	}
	return keep
}

func wants(owner *v1alpha1.Owner, w workload, rank int) bool {
	switch {
	case !w.exists:
		return false
	case !w.known:
		return true
	case owner.Kind == "StatefulSet":
		ordinal, ok := ordinalOf(owner)
		// Compared in 64 bits: start and replicas may each be near the limit.
		inRange := !ok || ordinal >= int64(w.start) && ordinal < int64(w.start)+int64(w.replicas)
		return inRange && rank == 0
	case owner.Kind == "Deployment":
		return int64(rank) < int64(w.replicas)
	}
	return rank == 0
}

// ordinalOf reads the ordinal off a StatefulSet pod's name, which is the set's
// name, a dash and the ordinal.
func ordinalOf(owner *v1alpha1.Owner) (int64, bool) {
	text, ok := strings.CutPrefix(owner.PodName, owner.Name+"-")
	if !ok {
		return 0, false
	}
	ordinal, err := strconv.ParseInt(text, 10, 32)
	return ordinal, err == nil
}
