// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// Unserved says why a request of one part can have no address of its family (empty:
// of either) whatever comes free, nil if it can. Pure.
func Unserved(request *ipam.Request, snapshot *pools.Snapshot) *Problem {
	selector, family := request.PoolSelector, request.Parts[0].Family
	if selector == nil {
		selector = labels.Everything()
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
	// fits says whether a pool, if it has the right name, can serve the request.
	fits := func(pool *pools.Pool) bool {
		switch {
		case !selector.Matches(pool.Labels):
			return false
		case !pool.AdmitsNamespace(request.NamespaceLabels()):
			note("%s does not admit namespace %q", pool, request.Namespace)
		case family != "" && pool.Family() != family:
			note("%s has no %s addresses", pool, family)
		case pool.Disabled:
			note("%s is disabled", pool)
		default:
			return true
		}
		return false
	}
	if len(request.Pools) == 0 && slices.ContainsFunc(snapshot.Pools(), fits) {
		return nil
	}
	for _, name := range request.Pools {
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
		return &Problem{ReasonNoPoolFits, strings.Join(texts, ", ")}
	case len(missing) > 0:
		return &Problem{ReasonNoSuchPool, strings.Join(texts, ", ")}
	case request.PoolSelector != nil:
		return &Problem{ReasonNoSuchPool, fmt.Sprintf("no IPPool has labels that match the pool selector (%s)", selector)}
	}
	return &Problem{ReasonNoSuchPool, "there is no valid IPPool"}
}
