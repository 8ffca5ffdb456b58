// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// neighbours finds claims of one namespace as they were seen last.
type neighbours interface {
	// claim returns nil where there is none.
	claim(namespace, name string) *v1alpha1.IPClaim
	// takers returns the claims whose takeOver names a claim, in any order.
	takers(namespace, name string) []*v1alpha1.IPClaim
}

// relation is how a claim stands to others of its namespace.
type relation struct {
	// source is the claim whose addresses it may move; empty: none.
	source string
	// conflict says why it may not move those that it asks for; empty: it may, or
	// asks for none.
	conflict string
	// taker is the claim that takes this one over; empty: none.
	taker string
}

// relate says how a claim stands to others.
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

// first is the claim that may take over another: the oldest of those that want
// to.
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

// conflict says why a claim may not take over the one that it names; empty if it
// may, or names none.
func conflict(claim *v1alpha1.IPClaim, n neighbours) string {
	source := claim.Spec.TakeOver
	if source == "" {
		return ""
	}
	if source == claim.Name {
		return "spec.takeOver names the claim itself: name another one, or leave it out"
	}
	if circle := circle(claim, n); circle != nil {
		return fmt.Sprintf("the IPClaims %s take over each other in a circle: remove spec.takeOver from one of them", strings.Join(circle, ", "))
	}
	if rival := firstOf(n.takers(claim.Namespace, source)); rival != nil && rival.Name != claim.Name {
		return fmt.Sprintf("IPClaim %q, which is older, takes over %q: remove spec.takeOver from one of them", rival.Name, source)
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
