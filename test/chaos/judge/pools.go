// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// poolAddresses writes out all addresses that a pool may give. The pools of a test
// are small.
func poolAddresses(spec *v1alpha1.IPPoolSpec) (map[netip.Addr]bool, error) {
	subnet, err := netip.ParsePrefix(spec.Subnet)
	if err != nil {
		return nil, err
	}
	all, listed := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, text := range spec.Ranges {
		if addr, err := netip.ParseAddr(text); err == nil {
			listed[addr] = true
		}
		if err := each(text, func(a netip.Addr) { all[a] = true }); err != nil {
			return nil, err
		}
	}
	for _, text := range spec.Exclude {
		if err := each(text, func(a netip.Addr) { delete(all, a) }); err != nil {
			return nil, err
		}
	}
	var special []netip.Addr
	if gateway, err := netip.ParseAddr(spec.Gateway); err == nil {
		special = append(special, gateway)
	}
	if subnet.Addr().Is4() && subnet.Bits() < 31 {
		special = append(special, subnet.Addr(), lastOf(subnet))
	}
	for _, addr := range special {
		if !listed[addr] {
			delete(all, addr)
		}
	}
	return all, nil
}

// each calls a function with every address of a range.
func each(text string, do func(netip.Addr)) error {
	span, err := spanOf(text)
	if err != nil {
		return err
	}
	for addr := span.first; addr.IsValid() && addr.Compare(span.last) <= 0; addr = addr.Next() {
		do(addr)
	}
	return nil
}

// span is a range of addresses, as a user writes it.
type span struct{ first, last netip.Addr }

func spanOf(text string) (s span, err error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return span{prefix.Addr(), lastOf(prefix)}, nil
	}
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		to = from
	}
	if s.first, err = netip.ParseAddr(from); err != nil {
		return s, err
	}
	s.last, err = netip.ParseAddr(to)
	return s, err
}

func (s span) has(addr netip.Addr) bool {
	return s.first.Compare(addr) <= 0 && addr.Compare(s.last) <= 0
}

func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

// homes returns the pool that gives each address: the oldest pool that lists it.
func (s *State) homes() (home map[netip.Addr]*Pool, wrong []string) {
	home = map[netip.Addr]*Pool{}
	for _, pool := range s.oldest() {
		all, err := poolAddresses(&pool.Spec)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("pool %s: %v", pool.Name, err))
		}
		for addr := range all {
			if home[addr] == nil {
				home[addr] = pool
			}
		}
	}
	return home, wrong
}

func (s *State) oldest() []*Pool {
	return slices.SortedFunc(maps.Values(s.pools), func(a, b *Pool) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
}

// judgePools compares the status of every pool with what there is.
func (s *State) judgePools(home map[netip.Addr]*Pool) []string {
	var wrong []string
	oldest := s.oldest()
	want := map[*Pool]*v1alpha1.IPPoolStatus{}
	for _, pool := range oldest {
		want[pool] = &v1alpha1.IPPoolStatus{ObservedGeneration: pool.Generation}
	}
	for _, pool := range home {
		want[pool].Capacity++
	}
	for _, t := range s.addresses {
		if !t.addr.IsValid() {
			wrong = append(wrong, fmt.Sprintf("%s: %q is no address", t.Name, t.Spec.Address))
			continue
		}
		pool := home[t.addr]
		if pool == nil {
			if pool = s.pools[t.Spec.Pool]; pool != nil {
				want[pool].Outside++
			}
			continue
		}
		switch status := want[pool]; {
		case t.Spec.Reserved:
			status.Reserved++
		case t.Spec.ReleasedAt != nil:
			status.Cooling++
		case t.Spec.Pod != nil:
			status.Allocated++
		default:
			status.Retained++
		}
	}
	for _, pool := range oldest {
		w, is := want[pool], pool.Status
		if w.Free = w.Capacity - w.Allocated - w.Retained - w.Reserved - w.Cooling; pool.Spec.Disabled {
			w.Free = is.Free // a disabled pool's is nobody's business
		}
		is.Conditions = nil
		if text, wantText := counts(&is), counts(w); text != wantText {
			wrong = append(wrong, fmt.Sprintf("the status of pool %s says %s, there are %s", pool.Name, text, wantText))
		}
	}
	return wrong
}

func counts(s *v1alpha1.IPPoolStatus) string {
	return fmt.Sprintf("capacity %d, allocated %d, retained %d, reserved %d, cooling %d, free %d, outside %d, generation %d",
		s.Capacity, s.Allocated, s.Retained, s.Reserved, s.Cooling, s.Free, s.Outside, s.ObservedGeneration)
}
