// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"slices"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/sorted"
	"k8s.io/utils/ptr"
)

// both families, in the order of messages.
var both = []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}

// tally has the addresses that are recorded under a claim's name.
type tally struct {
	// own have the claim's UID, left have the UID of an earlier claim of the name.
	own, left []*v1alpha1.FloatingIP
	// allocated counts the addresses with a pod or a Service, retained the others; both count own and
	// left.
	allocated, retained preallocation.Count
}

// count tallies the addresses recorded under the name of a claim. It ignores reserved
// addresses.
func count(claim *v1alpha1.IPClaim, ips []*v1alpha1.FloatingIP) tally {
	t := tally{allocated: preallocation.Count{}, retained: preallocation.Count{}}
	for _, ip := range ips {
		if ip.Spec.Reserved {
			continue
		}
		if ip.Spec.Owner.UID == claim.UID {
			t.own = append(t.own, ip)
		} else {
			t.left = append(t.left, ip)
		}
		if ip.Spec.IsHeld() {
			t.allocated[ip.Family()]++
		} else {
			t.retained[ip.Family()]++
		}
	}
	return t
}

// of returns the number of addresses of a family.
func (t *tally) of(family v1alpha1.IPFamily) int { return t.allocated[family] + t.retained[family] }

// Pick returns the addresses, without reserved ones, that a claim with room for so many of each
// family gets: addresses with a pod or a Service first, then the oldest. Pure.
func Pick(ips []*v1alpha1.FloatingIP, room map[v1alpha1.IPFamily]int) []*v1alpha1.FloatingIP {
	ips = slices.DeleteFunc(slices.Clone(ips), func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Reserved })
	slices.SortFunc(ips, func(a, b *v1alpha1.FloatingIP) int {
		return cmp.Or(sorted.TrueFirst(a.Spec.IsHeld(), b.Spec.IsHeld()), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	left := map[v1alpha1.IPFamily]int{v1alpha1.IPv4: room[v1alpha1.IPv4], v1alpha1.IPv6: room[v1alpha1.IPv6]}
	return slices.DeleteFunc(ips, func(ip *v1alpha1.FloatingIP) bool {
		family := ip.Family()
		left[family]--
		return left[family] < 0
	})
}

// families returns the families that a claim preallocates.
func families(claim *v1alpha1.IPClaim) []v1alpha1.IPFamily {
	if len(claim.Spec.Families) == 0 {
		return both[:1]
	}
	return claim.Spec.Families
}

// releasePolicy of a claim.
func releasePolicy(claim *v1alpha1.IPClaim) v1alpha1.ReleasePolicy {
	return cmp.Or(claim.Spec.ReleasePolicy, v1alpha1.ReleaseRetain)
}

// released reports whether an address has the claim's release policy and retainFor.
func released(ip *v1alpha1.FloatingIP, claim *v1alpha1.IPClaim) bool {
	return ip.Spec.ReleasePolicy == releasePolicy(claim) && ptr.Equal(ip.Spec.RetainFor, claim.Spec.RetainFor)
}
