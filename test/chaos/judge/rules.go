// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// slack allows for times that are rounded to whole seconds, and for the difference between the
// clocks of the program that wrote a time and of the one that compares it.
func (s *State) slack() time.Duration { return 1500*time.Millisecond + 2*s.ClockError }

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
		if spec.ReleasedAt != nil && at.Add(s.slack()).Before(spec.ReleasedAt.Add(t.rest)) {
			return fmt.Sprintf("its cooldown of %s is not over", t.rest)
		}
		return ""
	case !t.used:
		return "" // it was claimed for a pod that never ran with it
	case !t.unasked && !t.unwanted && t.worst < t.least:
		return "its claim preallocates it"
	case spec.Pod == nil && spec.RetainFor != nil && spec.Since != nil && !at.Add(s.slack()).Before(spec.Since.Add(spec.RetainFor.Duration)):
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
	if t.unwanted || t.superseded || t.worst >= t.least {
		return ""
	}
	return fmt.Sprintf("its owner, which wants %d, had no more than %d that come before it", t.least, t.worst)
}

// isSuperseded says whether a live pod of the name that the address stands for runs
// with others.
func (s *State) isSuperseded(t *tenure) bool {
	if t.Spec.Owner == nil {
		return false
	}
	return slices.ContainsFunc(s.index.ofPod(t.Spec.Owner), func(other *tenure) bool {
		runner := s.runners[other.Name]
		return runner != nil && !slices.Contains(runner.Addresses, t.Name)
	})
}

func is6(a *Address) bool { return strings.Contains(a.Spec.Address, ":") }

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
		return s.nodes[owner.NodeName] != nil, (1 + w.Spare) * each
	case a.Spec.KeepOnScaleDown:
		return true, unlimited
	}
	return true, (w.Replicas + w.Spare) * each
}

// wanted is how many addresses like this one its owner wants now.
func (s *State) wanted(a *Address) int {
	wanted, most := s.wants(a)
	if !wanted {
		return 0
	}
	return most
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
	same := a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name && a.PodName == b.PodName && a.NodeName == b.NodeName
	return same && (a.UID == b.UID || t.Spec.ReleasePolicy == v1alpha1.ReleaseNever)
}

// cooldown of an address: of the pool that it was drawn from. Where another pool
// contains it too, the shorter one counts: which is meant is for the status of
// pools to say.
func (s *State) cooldown(t *tenure) time.Duration {
	pool := s.pools[t.Spec.Pool]
	if pool == nil {
		return 0
	}
	rest := cooldownOf(pool)
	for name, other := range s.pools {
		if its := cooldownOf(other); its < rest && slices.ContainsFunc(s.spans[name], func(span span) bool { return span.has(t.addr) }) {
			rest = its
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
