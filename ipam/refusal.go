// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// NoPool says why a request of one part can get no address of any pool, even if addresses become
// free; nil if it can. A disabled pool gives no addresses. Safe for concurrent use.
func NoPool(request *Request, snapshot *pools.Snapshot) *ShortageError {
	return request.noPool(0, snapshot, func(pool *pools.Pool) bool { return !pool.Disabled })
}

// noPool is NoPool for one part. enabled says which pools count as enabled.
func (r *Request) noPool(number int, snapshot *pools.Snapshot, enabled func(*pools.Pool) bool) *ShortageError {
	part := &r.Parts[number]
	all := snapshot.Pools()
	for _, pool := range all {
		if enabled(pool) && r.mayUse(pool) && fitsPool(part, pool) {
			return nil
		}
	}
	if len(all) == 0 && len(r.Pools) == 0 {
		return &ShortageError{Reasons: []string{"there is no valid IPPool"}, Remedy: "create one: kubectl explain ippool.spec", Cause: NoSuchPool}
	}
	shortage := &ShortageError{Cause: NoSuchPool}
	add := func(format string, args ...any) {
		shortage.Reasons = append(shortage.Reasons, fmt.Sprintf(format, args...))
	}
	for _, name := range r.Pools {
		if _, ok := snapshot.Index(name); ok {
			continue
		}
		if err := snapshot.Invalid(name); err != nil {
			add("pool %q is invalid: %v", name, err)
			shortage.Cause = NoPoolFits
			continue
		}
		add("there is no IPPool %q", name)
		shortage.Remedy = "kubectl get ippools lists them"
	}
	for _, pool := range all {
		if !r.Names(pool) {
			continue
		}
		shortage.Cause = NoPoolFits
		if reason := r.refusal(part, pool); reason != "" {
			add("%s", reason)
		} else {
			add("%s is disabled", pool)
		}
	}
	if len(shortage.Reasons) == 0 {
		add("no IPPool has labels that match %q", r.PoolSelector)
		shortage.Remedy = "kubectl get ippools --show-labels lists them"
	}
	return shortage
}

// refusal says why a part can get no address of a pool that the request names, even if addresses
// become free; empty if it can.
func (r *Request) refusal(part *Part, pool *pools.Pool) string {
	switch {
	case r.Owner.IsNode():
		return ""
	case r.OfService && pool.ExternalAssigner:
		return fmt.Sprintf("%s has addresses for pods only (spec.externalAssigner)", pool)
	case !pool.AdmitsNamespace(r.namespaceLabels()):
		return fmt.Sprintf("%s does not admit namespace %q", pool, r.Namespace)
	case part.Family != "" && part.Family != pool.Family():
		return fmt.Sprintf("%s has no %s addresses", pool, part.Family)
	case !part.Ranges.IsEmpty() && !pool.Ranges.Overlaps(part.Ranges.Ranges()):
		return fmt.Sprintf("%s has none of %s", pool, rangesText(part.Ranges))
	case !fitsPool(part, pool):
		return fmt.Sprintf("%s lets nobody choose an address (spec.exactAddresses): remove %s", pool, r.saysAddresses())
	}
	return r.RefusedTerms(pool)
}

// RefusedTerms says which of the request's terms a pool does not allow, and what to write
// instead; empty if it allows them.
func (r *Request) RefusedTerms(pool *pools.Pool) string {
	terms := r.terms()
	switch {
	case !pool.AllowsPolicy(terms.Policy):
		var allowed []string
		for _, policy := range pool.ReleasePolicies {
			allowed = append(allowed, string(policy))
		}
		return fmt.Sprintf("%s does not allow release policy %s: set %s to %s", pool, terms.Policy, r.said(v1alpha1.AnnotationReleasePolicy, "releasePolicy"), strings.Join(allowed, " or "))
	case !pool.KeepsTooLong(terms):
		return ""
	case terms.Preallocate:
		return fmt.Sprintf("%s preallocates no addresses, because it keeps them without a pod for at most %s: remove %s", pool, pool.MaxRetainFor, r.said("", "preallocate"))
	}
	return fmt.Sprintf("%s keeps addresses without a pod for at most %s: set %s to that or less", pool, pool.MaxRetainFor, r.said(v1alpha1.AnnotationRetainFor, "retainFor"))
}

// saysAddresses returns where the request lists addresses.
func (r *Request) saysAddresses() string {
	annotation := "annotation " + v1alpha1.AnnotationAddresses
	if r.Claim == "" {
		return annotation
	}
	return fmt.Sprintf("%s of the pod, or %s", annotation, r.said("", "ranges"))
}

// said returns the place of one of the request's terms: an annotation of the pod, or a field of its
// claim.
func (r *Request) said(annotation, field string) string {
	if r.Claim == "" {
		return "annotation " + annotation
	}
	return fmt.Sprintf("spec.%s of IPClaim %q", field, r.Claim)
}
