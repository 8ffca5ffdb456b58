// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Snapshot is all pools at one moment. Immutable, safe for concurrent use.
type Snapshot struct {
	pools    []*Pool
	byName   map[string]int
	byRange  []homedRange
	invalid  map[string]error
	overlaps map[string][]Overlap
	subnets  subnetIndex
}

// Overlap is addresses that a pool lists and an older pool keeps.
type Overlap struct {
	Range Range
	// With is the older pool.
	With string
}

type homedRange struct {
	Range
	pool int
}

// Compile makes a snapshot of pools, which it does not modify. Where pools
// overlap the older one (creation time, then name) keeps the addresses.
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
	for _, object := range objects {
		pool, err := compile(object)
		if err != nil {
			s.invalid[object.Name] = err
			continue
		}
		index := len(s.pools)
		s.pools = append(s.pools, pool)
		s.byName[pool.Name] = index
		s.home(pool, index)
		s.subnets.add(pool, index)
	}
	return s
}

// home gives pool the addresses no older pool has.
func (s *Snapshot) home(pool *Pool, index int) {
	var taken []Range
	for _, r := range pool.Ranges {
		for i := s.search(r.First); i < len(s.byRange) && !r.Last.Less(s.byRange[i].First); i++ {
			older := s.byRange[i]
			taken = append(taken, older.Range)
			s.overlaps[pool.Name] = append(s.overlaps[pool.Name], Overlap{
				Range: Range{First: later(r.First, older.First), Last: earlier(r.Last, older.Last)},
				With:  s.pools[older.pool].Name,
			})
		}
	}
	if len(taken) > 0 {
		pool.Ranges = subtract(pool.Ranges, merge(taken))
	}
	for _, r := range pool.Ranges {
		s.byRange = slices.Insert(s.byRange, s.search(r.First), homedRange{Range: r, pool: index})
	}
}

// search returns the first homed range that ends at or after addr.
func (s *Snapshot) search(addr netip.Addr) int {
	i, _ := slices.BinarySearchFunc(s.byRange, addr, func(r homedRange, addr netip.Addr) int { return r.Last.Compare(addr) })
	return i
}

func later(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func earlier(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return a
	}
	return b
}

// Pools in a fixed order: oldest first. Callers must not modify the slice.
func (s *Snapshot) Pools() []*Pool { return s.pools }

// Index returns the position of a pool in Pools.
func (s *Snapshot) Index(name string) (int, bool) {
	i, ok := s.byName[name]
	return i, ok
}

// Home returns the position in Pools of the pool that addr belongs to.
func (s *Snapshot) Home(addr netip.Addr) (int, bool) {
	if i := s.search(addr); i < len(s.byRange) && s.byRange[i].Contains(addr) {
		return s.byRange[i].pool, true
	}
	return 0, false
}

// Invalid says why a pool was left out; nil if it was not.
func (s *Snapshot) Invalid(name string) error { return s.invalid[name] }

// Overlaps are the addresses that a pool lists but an older pool keeps.
func (s *Snapshot) Overlaps(name string) []Overlap { return s.overlaps[name] }
