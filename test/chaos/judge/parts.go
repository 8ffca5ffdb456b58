// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// fits says whether an address can be the part.
func (p *Part) fits(addr netip.Addr) bool {
	if p.Family != "" && (p.Family == v1alpha1.IPv6) != addr.Is6() {
		return false
	}
	return len(p.Ranges) == 0 || slices.ContainsFunc(p.Ranges, func(text string) bool {
		span, err := spanOf(text)
		return err == nil && span.has(addr)
	})
}

// isOfEither says whether nothing says of which family the address is to be.
func (p *Part) isOfEither() bool { return p.Family == "" && len(p.Ranges) == 0 }

// Is6 says whether the address must be IPv6.
func (p *Part) Is6() bool {
	return p.Family == v1alpha1.IPv6 || len(p.Ranges) > 0 && strings.Contains(p.Ranges[0], ":")
}

// familySettles is how long a scheduler may go by what it knew before a claim got an
// address of another family.
const familySettles = time.Minute

// wrongFamily returns an address of IPv6 that a pod got though nothing asks for one, and
// though its claim has IPv4 addresses, and not only since a moment ago: pools without
// IPv4 are for pods that ask for IPv6. Empty: there is none.
func (s *State) wrongFamily(pod *Pod, at time.Time) string {
	sixes := 0
	for i := range pod.Parts {
		if pod.Parts[i].Is6() {
			sixes++
		}
	}
	for _, name := range pod.Addresses {
		if !strings.Contains(name, "-") {
			continue
		}
		if sixes--; sixes >= 0 {
			continue
		}
		if pod.Claim == "" {
			return name
		}
		for _, t := range s.recordedFor(pod.Namespace, pod.Claim) {
			if !is6(&t.Address) && !slices.Contains(pod.Addresses, t.Name) && at.Sub(t.owned) > familySettles {
				return name
			}
		}
	}
	return ""
}

// suits returns whether a pod has the addresses that it asks for, in any order.
func (p *Pod) suits() bool {
	var addrs []netip.Addr
	for _, name := range p.Addresses {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil {
			return false
		}
		addrs = append(addrs, addr)
	}
	return deal(p.Parts, func(part *Part) []choice {
		var choices []choice
		for _, addr := range addrs {
			if part.fits(addr) {
				choices = append(choices, choice{addr: addr})
			}
		}
		return choices
	}, nil)
}

// choice is an address that a part can have; new for the pod's owner, if it is.
type choice struct {
	addr netip.Addr // invalid: any that is free
	new  bool
	six  bool
}

// deal says whether every part can have a choice of its own. room is how many new
// ones of each family there may be; nil: any number.
func deal(parts []Part, choices func(*Part) []choice, room map[bool]int) bool {
	taken := map[netip.Addr]bool{}
	var from func(i int) bool
	from = func(i int) bool {
		if i == len(parts) {
			return true
		}
		for _, c := range choices(&parts[i]) {
			if taken[c.addr] || c.new && room != nil && room[c.six] <= 0 {
				continue
			}
			if c.addr.IsValid() {
				taken[c.addr] = true
			}
			if c.new && room != nil {
				room[c.six]--
			}
			if from(i + 1) {
				return true
			}
			delete(taken, c.addr)
			if c.new && room != nil {
				room[c.six]++
			}
		}
		return false
	}
	return from(0)
}

// mustWait says whether there is nothing that a pod without a node could be bound
// with: the addresses that it lists are others', or its claim has as many as it may
// have and none for this pod. Every pool has room, and is reachable from a node that
// all addresses of the pod have in common.
func (s *State) mustWait(pod *Pod, homes map[netip.Addr]*Pool) bool {
	var room map[bool]int
	if pod.Claim != "" {
		claim := s.claimNamed(pod.Namespace, pod.Claim)
		if claim == nil || claim.Deleting {
			return true
		}
		recorded := s.recordedFor(pod.Namespace, pod.Claim)
		room = map[bool]int{
			false: int(claim.Spec.Size) - countOf(recorded, v1alpha1.IPv4),
			true:  int(claim.Spec.Size) - countOf(recorded, v1alpha1.IPv6),
		}
	}
	var kept []netip.Addr
	for t := range s.index.names[ownerName{pod.Namespace, cmp.Or(pod.Claim, pod.App)}] {
		if s.keptFor(t, pod) {
			kept = append(kept, t.addr)
		}
	}
	most := len(pod.Parts) // of each kind: the other parts cannot have taken all
	return !deal(pod.Parts, func(part *Part) []choice {
		var choices []choice
		want := *part
		if want.isOfEither() {
			want.Family = v1alpha1.IPv4
		}
		for _, addr := range kept {
			if want.fits(addr) && len(choices) < most {
				choices = append(choices, choice{addr: addr})
			}
		}
		if len(part.Ranges) == 0 {
			return append(choices, choice{new: true, six: part.Family == v1alpha1.IPv6})
		}
		most := len(choices) + most
		for _, text := range part.Ranges {
			_ = each(text, func(addr netip.Addr) { // the test wrote it
				if pool := homes[addr]; len(choices) < most && pool != nil && !pool.Spec.Disabled && s.addresses[v1alpha1.NameOf(addr)] == nil {
					choices = append(choices, choice{addr: addr, new: true, six: addr.Is6()})
				}
			})
		}
		return choices
	}, room)
}

// keptFor says whether an address without a pod is kept for this one.
func (s *State) keptFor(t *tenure, pod *Pod) bool {
	spec := &t.Spec
	if spec.Owner == nil || spec.Pod != nil || spec.Reserved || spec.ExternallyAssigned || spec.Owner.Namespace != pod.Namespace {
		return false
	}
	if pod.Claim != "" || spec.Owner.Kind == "IPClaim" {
		claim := s.claims[string(spec.Owner.UID)]
		return claim != nil && spec.Owner.Kind == "IPClaim" && spec.Owner.Name == pod.Claim
	}
	if spec.Owner.Name != pod.App || spec.Owner.NodeName != "" || spec.Owner.PodName != "" && spec.Owner.PodName != pod.Name {
		return false
	}
	return spec.ReleasePolicy == v1alpha1.ReleaseNever || s.pods[string(spec.Owner.UID)] == pod || s.workloads[string(spec.Owner.UID)] != nil
}
