// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// unserved says why a claim can have no address of a family (empty: of either)
// whatever comes free, nil if it can. Pure.
func unserved(claim *v1alpha1.IPClaim, snapshot *pools.Snapshot, namespaceLabels labels.Set, family v1alpha1.IPFamily) *problem {
	selector := labels.Everything()
	if claim.Spec.PoolSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(claim.Spec.PoolSelector); err != nil {
			return &problem{ReasonInvalid, fmt.Sprintf("spec.poolSelector: %v", err)}
		}
	}
	for i, text := range claim.Spec.Ranges {
		if _, err := pools.ParseRange(text); err != nil {
			return &problem{ReasonInvalid, fmt.Sprintf("spec.ranges[%d]: %v", i, err)}
		}
	}
	var missing, unfit []string
	note := func(format string, args ...any) {
		const most = 4
		switch len(unfit) {
		case most:
			unfit = append(unfit, "and others")
		case most + 1:
		default:
			unfit = append(unfit, fmt.Sprintf(format, args...))
		}
	}
	// fits says whether a pool, if it is the claim's, can serve it.
	fits := func(pool *pools.Pool) bool {
		switch {
		case !selector.Matches(pool.Labels):
			return false
		case !pool.AdmitsNamespace(namespaceLabels):
			note("%s does not admit namespace %q", pool, claim.Namespace)
		case family != "" && pool.Family() != family:
			note("%s has no %s addresses", pool, family)
		case pool.Disabled:
			note("%s is disabled", pool)
		default:
			return true
		}
		return false
	}
	if len(claim.Spec.Pools) == 0 {
		for _, pool := range snapshot.Pools() {
			if fits(pool) {
				return nil
			}
		}
	}
	for _, name := range claim.Spec.Pools {
		index, ok := snapshot.Index(name)
		switch err := snapshot.Invalid(name); {
		case err != nil:
			note("pool %q is invalid: %v", name, err)
		case !ok:
			missing = append(missing, fmt.Sprintf("there is no IPPool %q", name))
		case fits(snapshot.Pools()[index]):
			return nil
		}
	}
	switch texts := append(missing, unfit...); {
	case len(unfit) > 0:
		return &problem{ReasonNoPoolFits, strings.Join(texts, ", ")}
	case len(missing) > 0:
		return &problem{ReasonNoSuchPool, strings.Join(texts, ", ")}
	case claim.Spec.PoolSelector != nil:
		return &problem{ReasonNoSuchPool, fmt.Sprintf("no IPPool has labels that match spec.poolSelector (%s)", selector)}
	}
	return &problem{ReasonNoSuchPool, "there is no valid IPPool"}
}
