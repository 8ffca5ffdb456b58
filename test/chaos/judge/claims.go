// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var families = []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}

func familyOf(a *Address) v1alpha1.IPFamily {
	if is6(a) {
		return v1alpha1.IPv6
	}
	return v1alpha1.IPv4
}

// recordedFor returns the addresses under a claim's name, whichever claim of the
// name had them.
func (s *State) recordedFor(namespace, name string) []*tenure {
	var all []*tenure
	for t := range s.index.names[ownerName{namespace, name}] {
		if t.Spec.Owner.Kind == "IPClaim" && !t.Spec.Reserved {
			all = append(all, t)
		}
	}
	return all
}

func countOf(all []*tenure, family v1alpha1.IPFamily) int {
	n := 0
	for _, t := range all {
		if familyOf(&t.Address) == family {
			n++
		}
	}
	return n
}

// claimNamed returns the claim that has a name; nil if none does.
func (s *State) claimNamed(namespace, name string) *Claim {
	for _, claim := range s.claims {
		if claim.Namespace == namespace && claim.Name == name {
			return claim
		}
	}
	return nil
}

// judgeClaim says what a claim at rest lacks, has too much, or says wrongly.
func (s *State) judgeClaim(claim *Claim) []string {
	var wrong []string
	complain := func(format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("IPClaim %s/%s ", claim.Namespace, claim.Name)+fmt.Sprintf(format, args...))
	}
	recorded := s.recordedFor(claim.Namespace, claim.Name)
	want := v1alpha1.IPClaimStatus{ObservedGeneration: claim.Generation, Addresses: int64(len(recorded))}
	own := map[v1alpha1.IPFamily]int{}
	for _, t := range recorded {
		if t.Spec.Pod != nil {
			want.Allocated++
		} else {
			want.Retained++
		}
		if string(t.Spec.Owner.UID) == claim.UID {
			own[familyOf(&t.Address)]++
		}
	}
	is := claim.Status
	if is.Addresses != want.Addresses || is.Allocated != want.Allocated || is.Retained != want.Retained || is.ObservedGeneration != want.ObservedGeneration {
		complain("has the status %d addresses, %d allocated, %d retained, generation %d; there are %d, %d, %d, %d",
			is.Addresses, is.Allocated, is.Retained, is.ObservedGeneration, want.Addresses, want.Allocated, want.Retained, want.ObservedGeneration)
	}
	size := int(claim.Spec.Size)
	for _, t := range recorded {
		if string(t.Spec.Owner.UID) != claim.UID && own[familyOf(&t.Address)] < size {
			complain("has room for %s, which an earlier claim of its name left: %s", t.Name, t)
		} else if string(t.Spec.Owner.UID) == claim.UID && !follows(t, claim) {
			complain("does not say how %s is released: %s, for %v", t.Name, t, t.Spec.RetainFor)
		}
	}
	if claim.Spec.Preallocate {
		for _, family := range familiesOf(claim) {
			if n := countOf(recorded, family); n < size {
				complain("preallocates %d %s addresses and has %d", size, family, n)
			}
		}
	}
	for _, condition := range claim.Status.Conditions {
		if condition.Type == v1alpha1.ClaimReady && condition.Status != "True" {
			complain("is not rightly ready: %s %s, %s", condition.Status, condition.Reason, condition.Message)
		}
	}
	return wrong
}

// follows says whether an address is released as its claim says.
func follows(t *tenure, claim *Claim) bool {
	has, want := t.Spec.RetainFor, claim.Spec.RetainFor
	same := (has == nil) == (want == nil) && (has == nil || has.Duration == want.Duration)
	return same && t.Spec.ReleasePolicy == cmp.Or(claim.Spec.ReleasePolicy, v1alpha1.ReleaseRetain)
}

// familiesOf a claim that are preallocated.
func familiesOf(claim *Claim) []v1alpha1.IPFamily {
	if len(claim.Spec.Families) == 0 {
		return families[:1]
	}
	return claim.Spec.Families
}

// preallocates says whether the address belongs to a claim that asks for it though
// no pod does.
func (s *State) preallocates(a *Address) bool {
	if a.Spec.Owner == nil || a.Spec.Owner.Kind != "IPClaim" {
		return false
	}
	claim := s.claims[string(a.Spec.Owner.UID)]
	return claim != nil && !claim.Deleting && claim.Spec.Preallocate && slices.Contains(familiesOf(claim), familyOf(a))
}
