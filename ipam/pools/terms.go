// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Terms say how long the addresses of a request are kept.
type Terms struct {
	// Policy is PodDeleted if it is empty.
	Policy v1alpha1.ReleasePolicy
	// RetainFor limits how long the policy keeps an address without a pod. 0 means no limit.
	RetainFor time.Duration
	// Preallocate keeps addresses for pods that do not exist yet, regardless of RetainFor.
	Preallocate bool
}

// Allows reports whether the pool gives addresses on these terms.
func (p *Pool) Allows(t Terms) bool { return p.AllowsPolicy(t.Policy) && !p.KeepsTooLong(t) }

// AllowsPolicy reports whether the pool allows a release policy.
func (p *Pool) AllowsPolicy(policy v1alpha1.ReleasePolicy) bool {
	return len(p.ReleasePolicies) == 0 || slices.Contains(p.ReleasePolicies, cmp.Or(policy, v1alpha1.ReleasePodDeleted))
}

// KeepsTooLong reports whether an address on these terms may be without a pod for longer
// than the pool allows.
func (p *Pool) KeepsTooLong(t Terms) bool {
	switch {
	case p.MaxRetainFor == 0:
		return false
	case t.Preallocate:
		return true
	case cmp.Or(t.Policy, v1alpha1.ReleasePodDeleted) == v1alpha1.ReleasePodDeleted:
		return false
	}
	return t.RetainFor == 0 || t.RetainFor > p.MaxRetainFor
}
