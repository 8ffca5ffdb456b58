// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// neighbours finds claims of one namespace in the cache.
type neighbours interface {
	// claim returns nil if there is no such claim.
	claim(namespace, name string) *v1alpha1.IPClaim
	// takers returns the claims with a takeOver that names a claim, in any order.
	takers(namespace, name string) []*v1alpha1.IPClaim
}

// relation is the takeOver relation of a claim to others of its namespace.
type relation struct {
	// source is the claim that it may take over; empty if none.
	source string
	// conflict is the reason why it may not take over the claim that it names; empty if it
	// may, or names none.
	conflict string
	// taker is the claim that takes this one over; empty if none.
	taker string
}

// relate returns the relation of a claim to others.
func relate(claim *v1alpha1.IPClaim, n neighbours) relation {
	r := relation{}
	if r.conflict = conflict(claim, n); r.conflict == "" {
		r.source = claim.Spec.TakeOver
	}
	if taker := first(claim, n); taker != nil && conflict(taker, n) == "" {
		r.taker = taker.Name
	}
	return r
}

// first returns the claim that may take over another: its oldest taker.
func first(claim *v1alpha1.IPClaim, n neighbours) *v1alpha1.IPClaim {
	return firstOf(n.takers(claim.Namespace, claim.Name))
}

func firstOf(takers []*v1alpha1.IPClaim) *v1alpha1.IPClaim {
	var oldest *v1alpha1.IPClaim
	for _, taker := range takers {
		if taker.DeletionTimestamp != nil {
			continue
		}
		if oldest == nil || cmp.Or(taker.CreationTimestamp.Compare(oldest.CreationTimestamp.Time), cmp.Compare(taker.Name, oldest.Name)) < 0 {
			oldest = taker
		}
	}
	return oldest
}

// conflict returns the reason why a claim may not take over the claim that it names;
// empty if it may, or names none.
func conflict(claim *v1alpha1.IPClaim, n neighbours) string {
	source := claim.Spec.TakeOver
	if source == "" {
		return ""
	}
	if source == claim.Name {
		return "spec.takeOver names the claim itself: name another claim, or remove it"
	}
	if circle := circle(claim, n); circle != nil {
		return fmt.Sprintf("the IPClaims %s take over each other in a circle: remove spec.takeOver from one of them", strings.Join(circle, ", "))
	}
	if rival := firstOf(n.takers(claim.Namespace, source)); rival != nil && rival.Name != claim.Name {
		return fmt.Sprintf("the older IPClaim %q already takes over %q: remove spec.takeOver from one of them", rival.Name, source)
	}
	return ""
}

// circle returns the names of the claims that take over each other in a circle
// with a claim, sorted; nil if there are none.
func circle(claim *v1alpha1.IPClaim, n neighbours) []string {
	names := []string{claim.Name}
	for next := claim.Spec.TakeOver; ; {
		if next == claim.Name {
			slices.Sort(names)
			return names
		}
		other := n.claim(claim.Namespace, next)
		if slices.Contains(names, next) || other == nil || other.Spec.TakeOver == "" || other.DeletionTimestamp != nil {
			return nil
		}
		names = append(names, next)
		next = other.Spec.TakeOver
	}
}
