// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Snapshot holds all pools at one moment. Immutable, safe for concurrent use.
type Snapshot struct {
	pools    []*Pool
	byName   map[string]int
	homes    iprange.Table[int]
	invalid  map[string]error
	overlaps map[string][]Overlap
	subnets  subnetIndex
	// requireSession says that some pool requires a session.
	requireSession bool
}

// Overlap is a range of addresses that a pool lists and an older pool keeps.
type Overlap struct {
	Range iprange.Range
	// With is the older pool.
	With string
}

// Compile returns a snapshot of the pools. It does not modify them. Where pools
// overlap, the older one (creation time, then name) keeps the addresses.
func Compile(objects []*v1alpha1.IPPool) *Snapshot {
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *v1alpha1.IPPool) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	s := &Snapshot{
		byName:   map[string]int{},
		invalid:  map[string]error{},
		overlaps: map[string][]Overlap{},
		subnets:  subnetIndex{pools: map[netip.Prefix][]int{}, lengths: map[int][]int{}},
	}
	var gateways []iprange.Range
	for _, object := range objects {
		pool, err := compile(object)
		if err != nil {
			s.invalid[object.Name] = err
			continue
		}
		s.pools = append(s.pools, pool)
		if pool.Gateway.IsValid() {
			gateways = append(gateways, iprange.Single(pool.Gateway))
		}
	}
	routers := iprange.SetOf(gateways...)
	for index, pool := range s.pools {
		s.byName[pool.Name] = index
		// A gateway outside of its own pool's subnet may be in the subnet of another pool.
		pool.Ranges = pool.Ranges.Without(routers.Without(pool.single))
		s.home(pool, index)
		s.subnets.add(pool, index)
		s.requireSession = s.requireSession || pool.RequireSession
	}
	return s
}

// home gives the pool its addresses that no older pool has.
func (s *Snapshot) home(pool *Pool, index int) {
	for _, r := range pool.Ranges {
		for both, older := range s.homes.Common(r) {
			s.overlaps[pool.Name] = append(s.overlaps[pool.Name], Overlap{Range: both, With: s.pools[older].Name})
		}
	}
	pool.Ranges = s.homes.Add(pool.Ranges, index)
}

// Pools returns the valid pools, oldest first. Callers must not modify the slice.
func (s *Snapshot) Pools() []*Pool { return s.pools }

// Index returns the position of a pool in Pools.
func (s *Snapshot) Index(name string) (int, bool) {
	i, ok := s.byName[name]
	return i, ok
}

// Home returns the position in Pools of the pool that addr belongs to.
func (s *Snapshot) Home(addr netip.Addr) (int, bool) { return s.homes.Lookup(addr) }

// PoolOf returns the pool that addr belongs to, nil if it belongs to none.
func (s *Snapshot) PoolOf(addr netip.Addr) *Pool { return s.at(s.Home(addr)) }

// Named returns a pool by its name, nil if there is no valid one.
func (s *Snapshot) Named(name string) *Pool { return s.at(s.Index(name)) }

func (s *Snapshot) at(position int, ok bool) *Pool {
	if !ok {
		return nil
	}
	return s.pools[position]
}

// Invalid returns the reason why a pool was left out, or nil.
func (s *Snapshot) Invalid(name string) error { return s.invalid[name] }

// Overlaps returns the addresses that a pool lists but an older pool keeps.
func (s *Snapshot) Overlaps(name string) []Overlap { return s.overlaps[name] }

// OverlapText says which addresses of a pool older pools keep. It is bounded: pools may overlap in
// thousands of ranges.
func (s *Snapshot) OverlapText(name string) string {
	const most = 16
	overlaps := s.overlaps[name]
	var texts []string
	for _, overlap := range overlaps[:min(len(overlaps), most)] {
		texts = append(texts, fmt.Sprintf("%s (pool %q)", overlap.Range, overlap.With))
	}
	if len(overlaps) > most {
		texts = append(texts, fmt.Sprintf("and %d more ranges", len(overlaps)-most))
	}
	return "older pools keep " + strings.Join(texts, ", ")
}
