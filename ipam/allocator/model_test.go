// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// model is a naive book: a map and walks over it.
type model struct {
	pools    []Pool
	stored   map[netip.Addr]Record
	reserved map[netip.Addr]string
}

func (m *model) poolOf(addr netip.Addr) string {
	for _, pool := range m.pools {
		for _, r := range pool.Ranges {
			if !addr.Less(r.First) && !r.Last.Less(addr) {
				return pool.Name
			}
		}
	}
	return ""
}

func (m *model) inUse(addr netip.Addr) bool {
	_, stored := m.stored[addr]
	return stored || m.reserved[addr] != ""
}

func (m *model) counts(pool Pool) Counts {
	c := Counts{Capacity: pool.Capacity}
	for _, r := range pool.Ranges {
		for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
			record, stored := m.stored[addr]
			switch {
			case stored && record.Cooling:
				c.Cooling++
			case stored && record.Reserved:
				c.Reserved++
			case stored && record.PodUID == "" && m.reserved[addr] == "":
				c.Retained++
			case stored || m.reserved[addr] != "":
				c.Allocated++
			}
		}
	}
	if !pool.Disabled {
		c.Free = c.Capacity - c.Allocated - c.Retained - c.Reserved - c.Cooling
	}
	return c
}

func (m *model) held(owner Owner, podUID string) []netip.Addr {
	var held []Record
	for addr, record := range m.stored {
		if by := m.reserved[addr]; by != "" && by != podUID {
			continue
		}
		if record.Owner.SameWorkload(owner) && record.heldBy(owner, podUID, nil) {
			held = append(held, record)
		}
	}
	slices.SortFunc(held, func(a, b Record) int {
		if (a.PodUID == podUID) != (b.PodUID == podUID) {
			if a.PodUID == podUID {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Created.Compare(b.Created), a.Addr.Compare(b.Addr))
	})
	var addrs []netip.Addr
	for _, record := range held {
		addrs = append(addrs, record.Addr)
	}
	return addrs
}

func seed(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BERTH_TEST_SEED: %v", err)
		}
	}
	t.Logf("BERTH_TEST_SEED=%d repeats this run", seed)
	return seed
}

func ranges(texts ...string) []Range {
	var result []Range
	for i := 0; i+1 < len(texts); i += 2 {
		result = append(result, Range{netip.MustParseAddr(texts[i]), netip.MustParseAddr(texts[i+1])})
	}
	return result
}

func testPool(name string, texts ...string) Pool {
	pool := Pool{Name: name, Ranges: ranges(texts...)}
	for _, r := range pool.Ranges {
		for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
			pool.Capacity++
		}
	}
	return pool
}

// simulation drives the book and the model with the same random operations, in
// the ways the API server and the scheduler use it: one API object per address,
// deletions and updates seen late, conflicts.
type simulation struct {
	t       *testing.T
	random  *rand.Rand
	book    *Allocator
	view    *View
	model   model
	version uint64
	layouts [][]Pool
	owners  []Owner
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), book: New(nil),
		model: model{stored: map[netip.Addr]Record{}, reserved: map[netip.Addr]string{}},
		layouts: [][]Pool{
			{testPool("a", "10.0.0.1", "10.0.0.6", "10.0.0.9", "10.0.0.9"), testPool("b", "10.0.1.1", "10.0.1.4"), testPool("six", "2001:db8::1", "2001:db8::3")},
			{testPool("a", "10.0.0.1", "10.0.0.9"), testPool("b", "10.0.1.1", "10.0.1.4")},
			{testPool("a", "10.0.0.3", "10.0.0.4"), testPool("b", "10.0.0.5", "10.0.1.2"), testPool("six", "2001:db8::1", "2001:db8::3")},
		},
	}
	for i := range 4 {
		stateful := Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "n", Name: "web", UID: "web", PodName: fmt.Sprintf("web-%d", i)}
		s.owners = append(s.owners, stateful,
			Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "shop", UID: fmt.Sprintf("shop-%d", i%2)})
	}
	s.setPools(s.layouts[0])
	return s
}

func (s *simulation) setPools(pools []Pool) {
	s.model.pools = pools
	s.view = s.book.SetPools(pools)
}

// any returns an address: one in use for sure where there is one, now and then.
func (s *simulation) any() netip.Addr {
	pool := s.layouts[0][s.random.IntN(3)]
	r := pool.Ranges[s.random.IntN(len(pool.Ranges))]
	addr := r.First
	for range s.random.IntN(6) {
		if addr != r.Last {
			addr = addr.Next()
		}
	}
	return addr
}

func (s *simulation) owner() Owner { return s.owners[s.random.IntN(len(s.owners))] }

func (s *simulation) pod() string { return fmt.Sprintf("pod-%d", s.random.IntN(6)) }

func (s *simulation) record(addr netip.Addr) Record {
	s.version++
	record := Record{
		Addr: addr, Pool: s.model.poolOf(addr), Owner: s.owner(), Policy: Policy(s.random.IntN(3)),
		UID: fmt.Sprintf("object-%d", s.version), Version: s.version,
		Created: time.Unix(int64(s.version/3), 0),
	}
	switch s.random.IntN(5) {
	case 0:
	case 1:
		record.Reserved = true
	case 2:
		record.Cooling = true
	default:
		record.PodUID = s.pod()
	}
	return record
}

func (s *simulation) step() string {
	switch s.random.IntN(10) {
	case 0, 1, 2: // schedule a pod on a free address
		names := []string{"a", "b", "six", "unknown"}[s.random.IntN(3):]
		pod := s.pod()
		addr, pool, err := reserveFree(s.book, names, pod)
		available := slices.ContainsFunc(s.model.pools, func(p Pool) bool {
			return slices.Contains(names, p.Name) && s.model.counts(p).Free > 0
		})
		if available != (err == nil) || err != nil && !errors.Is(err, ErrExhausted) {
			s.t.Fatalf("ReserveFree(%v): %v, but available is %v", names, err, available)
		}
		if err == nil {
			if s.model.inUse(addr) || s.model.poolOf(addr) != pool || !slices.Contains(names, pool) {
				s.t.Fatalf("ReserveFree(%v) gave %s of pool %s", names, addr, pool)
			}
			s.model.reserved[addr] = pod
		}
		return fmt.Sprintf("reserve free %s for %s", addr, pod)
	case 3: // schedule a pod on an address its owner holds
		owner, pod := s.owner(), s.pod()
		held := s.book.Held(owner, pod, "")
		if len(held) == 0 {
			return "nothing held"
		}
		if _, err := reserveHeld(s.book, held[0].Addr, owner, pod); err != nil {
			s.t.Fatalf("Reserve of the held %s: %v", held[0].Addr, err)
		}
		s.model.reserved[held[0].Addr] = pod
		return fmt.Sprintf("reserve held %s for %s", held[0].Addr, pod)
	case 4: // somebody else's address
		addr, owner, pod := s.any(), s.owner(), s.pod()
		record, stored := s.model.stored[addr]
		by := s.model.reserved[addr]
		may := stored && record.Owner.SameWorkload(owner) && record.heldBy(owner, pod, nil) && (by == "" || by == pod)
		if !stored || !record.Owner.SameWorkload(owner) {
			return "not of this owner"
		}
		_, err := reserveHeld(s.book, addr, owner, pod)
		if may != (err == nil) {
			s.t.Fatalf("Reserve(%s, %v, %s): %v, want allowed %v", addr, owner, pod, err, may)
		}
		if err == nil {
			s.model.reserved[addr] = pod
		}
		return fmt.Sprintf("reserve %s for %s", addr, pod)
	case 5: // unreserve, also twice or of another pod
		addr, pod := s.any(), s.pod()
		freed := s.book.Release(addr, pod)
		want := false
		if s.model.reserved[addr] == pod {
			delete(s.model.reserved, addr)
			want = !s.model.inUse(addr)
		}
		if freed != want {
			s.t.Fatalf("Release(%s, %s) freed %v, want %v", addr, pod, freed, want)
		}
		return fmt.Sprintf("release %s by %s", addr, pod)
	case 6: // commit: the API server took the object, the watch may show it first
		reserved := slices.SortedFunc(maps.Keys(s.model.reserved), netip.Addr.Compare)
		if len(reserved) == 0 {
			return "nothing to commit"
		}
		addr := reserved[s.random.IntN(len(reserved))]
		pod := s.model.reserved[addr]
		record := s.record(addr)
		record.PodUID, record.Reserved, record.Cooling = pod, false, false
		delete(s.model.reserved, addr)
		if s.random.IntN(2) == 0 {
			s.book.Observe(record)
			if s.random.IntN(2) == 0 { // and deleted again before we hear of it
				s.book.Forget(addr, record.UID)
				delete(s.model.stored, addr)
				s.book.Confirm(record, pod)
				return fmt.Sprintf("commit %s, gone already", addr)
			}
		}
		s.book.Confirm(record, pod)
		s.model.stored[addr] = record
		return fmt.Sprintf("commit %s", addr)
	case 7: // the watch shows a new or changed object, or an old one late
		addr := s.any()
		record := s.record(addr)
		if old, ok := s.model.stored[addr]; ok {
			record.UID = old.UID
			if s.random.IntN(3) == 0 {
				record.Version = old.Version - 1
				s.book.Observe(record)
				return fmt.Sprintf("observe %s, stale", addr)
			}
		}
		s.book.Observe(record)
		s.model.stored[addr] = record
		return fmt.Sprintf("observe %s", addr)
	case 8: // the watch shows a deletion, perhaps of an object before
		addr := s.any()
		record, ok := s.model.stored[addr]
		uid := "another"
		if ok && s.random.IntN(4) > 0 {
			uid = record.UID
			delete(s.model.stored, addr)
		}
		freed := s.book.Forget(addr, uid)
		if want := uid != "another" && !s.model.inUse(addr); freed != want {
			s.t.Fatalf("Forget(%s, %s) freed %v, want %v", addr, uid, freed, want)
		}
		return fmt.Sprintf("forget %s", addr)
	default:
		if s.random.IntN(20) > 0 {
			return "no change of pools"
		}
		layout := slices.Clone(s.layouts[s.random.IntN(len(s.layouts))])
		i := s.random.IntN(len(layout))
		layout[i].Disabled = s.random.IntN(2) == 0
		s.setPools(layout)
		return "pools"
	}
}

func (s *simulation) check(after string) {
	for i, pool := range s.model.pools {
		want := s.model.counts(pool)
		if got := s.book.Counts(pool.Name); got != want {
			s.t.Fatalf("after %q: counts of pool %s are %+v, want %+v", after, pool.Name, got, want)
		}
		if free := s.view.Free(i); free != want.Free {
			s.t.Fatalf("after %q: Free of pool %s is %d, want %d", after, pool.Name, free, want.Free)
		}
	}
	owner, pod := s.owner(), s.pod()
	var held []netip.Addr
	for _, record := range s.book.Held(owner, pod, "") {
		held = append(held, record.Addr)
	}
	if want := s.model.held(owner, pod); !slices.Equal(held, want) {
		s.t.Fatalf("after %q: %v holds %v for %s, want %v", after, owner, held, pod, want)
	}
}

// The book does what the model does, operation by operation.
func TestModel(t *testing.T) {
	s := newSimulation(t, seed(t))
	for range 60_000 {
		s.check(s.step())
	}
}

// Pods scheduled at once never share an address, and all come free again.
func TestConcurrent(t *testing.T) {
	book := New(nil)
	pool := testPool("a", "10.0.0.1", "10.0.0.250")
	book.SetPools([]Pool{pool})
	first := seed(t)
	var mu sync.Mutex
	holders := map[netip.Addr]string{}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(first, uint64(worker)))
			mine := map[netip.Addr]string{}
			for i := range 20_000 {
				if len(mine) < 30 && random.IntN(2) == 0 {
					pod := fmt.Sprintf("%d/%d", worker, i)
					addr, _, err := reserveFree(book, []string{"a"}, pod)
					if err != nil {
						t.Errorf("ReserveFree: %v", err)
						return
					}
					mu.Lock()
					if other := holders[addr]; other != "" {
						t.Errorf("%s was given to %s and %s", addr, other, pod)
					}
					holders[addr] = pod
					mu.Unlock()
					mine[addr] = pod
					continue
				}
				for addr, pod := range mine {
					mu.Lock()
					delete(holders, addr)
					mu.Unlock()
					book.Release(addr, pod)
					delete(mine, addr)
					break
				}
			}
			for addr, pod := range mine {
				mu.Lock()
				delete(holders, addr)
				mu.Unlock()
				book.Release(addr, pod)
			}
		})
	}
	group.Wait()
	if got := book.Counts("a"); got != (Counts{Capacity: pool.Capacity, Free: pool.Capacity}) {
		t.Errorf("after all was released: %+v", got)
	}
}
