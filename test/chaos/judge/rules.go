// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// slack is how much the clocks of those who write and of the one who watches may
// differ, and what a time in whole seconds loses.
const slack = 1500 * time.Millisecond

// unlimited is the number of pods of an owner that has no number.
const unlimited = math.MaxInt32

// keeps says why policy keeps an address; "" if it may be freed.
func (s *State) keeps(t *tenure, at time.Time) string {
	spec := &t.Spec
	switch {
	case s.pardoned[t.UID]:
		return ""
	case spec.Reserved:
		return "only an administrator frees what is reserved"
	case spec.Owner == nil:
		if spec.ReleasedAt != nil && at.Add(slack).Before(spec.ReleasedAt.Add(t.rest)) {
			return fmt.Sprintf("its cooldown of %s is not over", t.rest)
		}
		return ""
	case !t.used:
		return "" // it was claimed for a pod that never ran with it
	case s.preallocates(&t.Address) && !t.unwanted && s.siblings(&t.Address) <= t.least:
		return "its claim preallocates it"
	case spec.Pod == nil && spec.RetainFor != nil && spec.Since != nil && !at.Add(slack).Before(spec.Since.Add(spec.RetainFor.Duration)):
		return ""
	}
	switch spec.ReleasePolicy {
	case v1alpha1.ReleaseNever:
		return "policy Never keeps it"
	case v1alpha1.ReleaseRetain:
		return s.retains(t)
	}
	return ""
}

// retains says why Retain keeps an address.
func (s *State) retains(t *tenure) string {
	if t.unwanted {
		return ""
	}
	if siblings, most := s.siblings(&t.Address), t.least; siblings <= most {
		return fmt.Sprintf("its owner, which wants %d, has %d like it", most, siblings)
	}
	return ""
}

// alike says whether addresses stand for the same: they are of one owner and one
// family, and of one pod name or node if they stand for one.
func alike(a, b *Address) bool {
	x, y := a.Spec.Owner, b.Spec.Owner
	return x.UID == y.UID && x.PodName == y.PodName && x.NodeName == y.NodeName && is6(a) == is6(b)
}

func is6(a *Address) bool { return strings.Contains(a.Spec.Address, ":") }

// siblings counts the addresses that are alike, this one included.
func (s *State) siblings(a *Address) int {
	n := 0
	for name := range s.byOwner[string(a.Spec.Owner.UID)] {
		if alike(&s.addresses[name].Address, a) {
			n++
		}
	}
	return n
}

// rank is how many alike come before the address: the older ones, and where an
// IPClaim has them, first of all those with pods.
func (s *State) rank(a *Address) int {
	n := 0
	for name := range s.byOwner[string(a.Spec.Owner.UID)] {
		other := &s.addresses[name].Address
		older := cmp.Or(other.Created.Compare(a.Created), cmp.Compare(other.Name, a.Name)) < 0
		if a.Spec.Owner.Kind == "IPClaim" && (other.Spec.Pod == nil) != (a.Spec.Pod == nil) {
			older = other.Spec.Pod != nil
		}
		if alike(other, a) && older {
			n++
		}
	}
	return n
}

// wants says whether Retain keeps an address of this owner now, and how many like
// it.
func (s *State) wants(a *Address) (wanted bool, most int) {
	owner := a.Spec.Owner
	if owner == nil {
		return false, 0
	}
	uid := string(owner.UID)
	switch owner.Kind {
	case "Pod":
		return s.pods[uid] != nil, unlimited
	case "IPClaim":
		claim := s.claims[uid]
		if claim == nil || claim.Deleting {
			return false, 0
		}
		return true, int(claim.Spec.Size)
	}
	w := s.workloads[uid]
	if w == nil || w.Deleting {
		return false, 0
	}
	each := w.Four
	if is6(a) {
		each = w.Six
	}
	switch {
	case owner.PodName != "":
		ordinal, ok := ordinalOf(owner.PodName, owner.Name)
		inside := !ok || ordinal >= w.Start && ordinal < w.Start+w.Replicas
		return inside || a.Spec.KeepOnScaleDown, each
	case owner.NodeName != "":
		return s.nodes[owner.NodeName] != nil, each
	case a.Spec.KeepOnScaleDown:
		return true, unlimited
	}
	return true, w.Replicas * each
}

// wanted is how many addresses like this one its owner wants now.
func (s *State) wanted(a *Address) int {
	wanted, most := s.wants(a)
	if !wanted {
		return 0
	}
	return most
}

// preallocates says whether the address belongs to a claim that asks for it though
// no pod does.
func (s *State) preallocates(a *Address) bool {
	if a.Spec.Owner == nil || a.Spec.Owner.Kind != "IPClaim" {
		return false
	}
	claim := s.claims[string(a.Spec.Owner.UID)]
	if claim == nil || claim.Deleting || !claim.Spec.Preallocate {
		return false
	}
	if len(claim.Spec.Families) == 0 {
		return !is6(a)
	}
	family := v1alpha1.IPv4
	if is6(a) {
		family = v1alpha1.IPv6
	}
	return slices.Contains(claim.Spec.Families, family)
}

func ordinalOf(pod, owner string) (int, bool) {
	text, ok := strings.CutPrefix(pod, owner+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// sameOwner says whether an address stays with its owner. Policy Never keeps it
// for the owner's name, whoever has it.
func (s *State) sameOwner(t *tenure, next *Address) bool {
	a, b := t.Spec.Owner, next.Spec.Owner
	if b.Kind == "IPClaim" && a.Kind == "IPClaim" && a.Name != b.Name {
		claim := s.claims[string(b.UID)]
		return claim != nil && a.Namespace == b.Namespace && claim.Spec.TakeOver == a.Name
	}
	same := a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name && a.PodName == b.PodName && a.NodeName == b.NodeName
	return same && (a.UID == b.UID || t.Spec.ReleasePolicy == v1alpha1.ReleaseNever)
}

// cooldown of an address: of the pool that it was drawn from. Where another pool
// contains it too, the shorter one counts: which is meant is for the status of
// pools to say.
func (s *State) cooldown(a *Address) time.Duration {
	pool := s.pools[a.Spec.Pool]
	if pool == nil {
		return 0
	}
	rest := cooldownOf(pool)
	addr, err := netip.ParseAddr(a.Spec.Address)
	if err != nil || rest == 0 {
		return rest
	}
	for _, other := range s.pools {
		for _, text := range other.Spec.Ranges {
			if first, last, err := bounds(text); err == nil && first.Compare(addr) <= 0 && addr.Compare(last) <= 0 {
				rest = min(rest, cooldownOf(other))
			}
		}
	}
	return rest
}

func cooldownOf(pool *Pool) time.Duration {
	if pool.Spec.Cooldown == nil {
		return 0
	}
	return pool.Spec.Cooldown.Duration
}
