// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// why says why an address leaves its pod or its owner, for the log: the reason of decide.
func why(spec *v1alpha1.FloatingIPSpec, s situation, a action) string {
	if spec.Owner == nil {
		return "its cooldown is over"
	}
	owner := spec.Owner.Kind + " " + spec.Owner.Name
	if spec.Owner.IsNode() {
		if a == retain {
			return fmt.Sprintf("%s is gone or not of IPPool %s any more, which keeps it for a node of that name", owner, spec.Pool)
		}
		return fmt.Sprintf("%s is gone, has another address of IPPool %s, or gets none of it any more", owner, spec.Pool)
	}
	switch {
	case a == retain:
		return fmt.Sprintf("the pod is gone; release policy %s keeps it for %s", spec.ReleasePolicy, owner)
	case s.unused:
		return "no pod ever ran with it"
	case s.namespaceGone:
		return fmt.Sprintf("namespace %s was deleted", spec.Owner.Namespace)
	case expired(spec, s):
		return fmt.Sprintf("its retainFor of %s is over", spec.RetainFor.Duration)
	case spec.ReleasePolicy != v1alpha1.ReleaseRetain && spec.ReleasePolicy != v1alpha1.ReleaseNever && spec.Owner.IsService():
		return owner + " gave it up"
	case spec.ReleasePolicy != v1alpha1.ReleaseRetain && spec.ReleasePolicy != v1alpha1.ReleaseNever:
		return "the pod is gone"
	case s.superseded:
		return fmt.Sprintf("pod %s runs with another address", spec.Owner.PodName)
	case !s.owner.exists && needsOwner(spec):
		return owner + " is gone"
	}
	return owner + " does not want it any more"
}
