// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// model is a naive book: maps of all addresses, without an index.
type model struct {
	pools    []Pool
	stored   map[netip.Addr]Record
	reserved map[netip.Addr]string
	// owners with reservations.
	owners map[netip.Addr]Owner
	turns  map[string]*turns
	// before are the addresses that were in use at the last call of settle.
	before map[netip.Addr]bool
}

// turns is the order in which a pool gives its addresses.
type turns struct {
	ranges iprange.Set
	// fresh addresses were neither given, skipped nor freed since the pool is known. resting
	// addresses are free: the address that was freed first is in front.
	fresh, resting []netip.Addr
	// begun: fresh begins behind the address that was created last when the pool first gave one.
	begun bool
}

// rest puts an address at the end of the queue.
func (turn *turns) rest(addr netip.Addr) {
	turn.fresh = slices.DeleteFunc(turn.fresh, func(other netip.Addr) bool { return other == addr })
	turn.resting = append(turn.resting, addr)
}

func (m *model) setPools(pools []Pool) {
	previous := maps.Clone(m.turns)
	m.pools, m.turns = pools, map[string]*turns{}
	for _, pool := range pools {
		if old := previous[pool.Name]; old != nil && slices.Equal(old.ranges, pool.Ranges) {
			m.turns[pool.Name] = old
			delete(previous, pool.Name)
			continue
		}
		turn := &turns{ranges: pool.Ranges}
		for _, r := range pool.Ranges {
			for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
				turn.fresh = append(turn.fresh, addr)
			}
		}
		m.turns[pool.Name] = turn
	}
	for _, name := range slices.Sorted(maps.Keys(previous)) {
		for _, addr := range previous[name].resting {
			if home := m.turns[m.poolOf(addr)]; home != nil {
				home.rest(addr)
			}
		}
	}
}

// take returns the address whose turn it is in a pool that has one.
func (m *model) take(pool string) netip.Addr {
	turn := m.turns[pool]
	if !turn.begun {
		turn.begun = true
		var newest Record
		for addr, record := range m.stored {
			if m.poolOf(addr) == pool && cmp.Or(record.Created.Compare(newest.Created), addr.Compare(newest.Addr)) > 0 {
				newest = record
			}
		}
		// The ranges of pools ascend.
		if at := slices.IndexFunc(turn.fresh, newest.Addr.Less); at >= 0 && newest.Addr.IsValid() {
			turn.fresh = append(slices.Clone(turn.fresh[at:]), turn.fresh[:at]...)
		}
	}
	for len(turn.fresh) > 0 {
		addr := turn.fresh[0]
		turn.fresh = turn.fresh[1:]
		if !m.inUse(addr) {
			return addr
		}
	}
	return turn.resting[0]
}

// settle updates turns with the addresses that came into use or were freed.
func (m *model) settle() {
	for _, pool := range m.pools {
		turn := m.turns[pool.Name]
		for _, r := range pool.Ranges {
			for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
				switch now := m.inUse(addr); {
				case now:
					turn.resting = slices.DeleteFunc(turn.resting, func(other netip.Addr) bool { return other == addr })
				case m.before[addr]:
					turn.rest(addr)
				}
			}
		}
	}
	m.before = map[netip.Addr]bool{}
	for addr := range m.stored {
		m.before[addr] = true
	}
	for addr := range m.reserved {
		m.before[addr] = true
	}
}

// reserve notes that an address is promised to a pod of an owner.
func (m *model) reserve(addr netip.Addr, pod string, owner Owner) {
	m.reserved[addr], m.owners[addr] = pod, owner
}

// isPromised says whether the address is promised to a pod which the given one of an owner does not
// replace.
func (m *model) isPromised(addr netip.Addr, owner Owner, podUID string) bool {
	by := m.reserved[addr]
	return by != "" && by != podUID && (owner.PodName == "" || !m.owners[addr].SameWorkload(owner))
}

// ownerOf returns the owner whose address it is: the recorded one, or the one of the pod to which
// it is promised while nobody has it or it rests for pods of a namespace.
func (m *model) ownerOf(addr netip.Addr) (Owner, bool) {
	record, stored := m.stored[addr]
	switch {
	case stored && !record.Reserved && !record.Cooling:
		return record.Owner, true
	case m.reserved[addr] != "" && (!stored || record.Cooling && record.NamespaceUID != ""):
		return m.owners[addr], true
	}
	return Owner{}, false
}

// retained says whether the owner of an address has no pod with it.
func (m *model) retained(addr netip.Addr) bool {
	record, stored := m.stored[addr]
	return stored && record.PodUID == "" && m.reserved[addr] == ""
}

// resting returns the addresses at rest that pods of a namespace may have.
func (m *model) resting(namespaceUID string) (addrs []netip.Addr) {
	for addr, record := range m.stored {
		if record.Cooling && record.NamespaceUID == namespaceUID && m.reserved[addr] == "" {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// share returns a namespace's share of a pool, whether the pool has a cap or not.
func (m *model) share(pool Pool, namespace string) (share Share) {
	for _, r := range pool.Ranges {
		for addr := r.First; addr.IsValid() && !r.Last.Less(addr); addr = addr.Next() {
			switch owner, owned := m.ownerOf(addr); {
			case !owned || owner.Namespace != namespace:
			case m.retained(addr):
				share.Retained++
			default:
				share.Allocated++
			}
		}
	}
	return share
}

// inNamespace returns how many addresses owners in a namespace have.
func (m *model) inNamespace(namespace string) (n uint64) {
	all := slices.AppendSeq(slices.Collect(maps.Keys(m.stored)), maps.Keys(m.reserved))
	slices.SortFunc(all, netip.Addr.Compare)
	for _, addr := range slices.Compact(all) {
		if owner, owned := m.ownerOf(addr); owned && owner.Namespace == namespace {
			n++
		}
	}
	return n
}

// room returns how many addresses a pool can give to a namespace.
func (m *model) room(name, namespace string) uint64 {
	for _, pool := range m.pools {
		if pool.Name != name {
			continue
		}
		free := m.counts(pool).Free
		if has := m.share(pool, namespace).Total(); pool.MaxPerNamespace > 0 {
			return min(free, pool.MaxPerNamespace-min(pool.MaxPerNamespace, has))
		}
		return free
	}
	return 0
}

// admits says whether an address is of a pool, and the namespace may have one more of that pool.
func (m *model) admits(addr netip.Addr, namespace string) bool {
	for _, pool := range m.pools {
		if pool.Name == m.poolOf(addr) {
			return pool.MaxPerNamespace == 0 || m.share(pool, namespace).Total() < pool.MaxPerNamespace
		}
	}
	return false
}

// roomiest returns, of the pools that may give an address to a namespace, the first one
// with most free addresses; empty if none may.
func (m *model) roomiest(names []string, namespace string) string {
	best, most := "", uint64(0)
	for _, name := range names {
		for _, pool := range m.pools {
			if free := m.counts(pool).Free; pool.Name == name && free > most && m.room(name, namespace) > 0 {
				best, most = name, free
			}
		}
	}
	return best
}

// free returns the addresses of a range that are free in some pools and that a namespace
// may have. Pools with more free addresses come first; the addresses of a pool ascend.
func (m *model) free(names []string, in iprange.Range, namespace string) []netip.Addr {
	var found []netip.Addr
	for len(names) > 0 {
		best := m.roomiest(names, namespace)
		if best == "" {
			break
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == best })
		for addr := in.First; addr.IsValid() && !in.Last.Less(addr); addr = addr.Next() {
			if m.poolOf(addr) == best && !m.inUse(addr) {
				found = append(found, addr)
			}
		}
	}
	return found
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
			_, owned := m.ownerOf(addr)
			switch record := m.stored[addr]; {
			case !owned && record.Cooling:
				c.Cooling++
			case !owned && record.Reserved:
				c.Reserved++
			case owned && m.retained(addr):
				c.Retained++
			case owned:
				c.Allocated++
			}
		}
	}
	if !pool.Disabled {
		c.Free = c.Capacity - c.Allocated - c.Retained - c.Reserved - c.Cooling
	}
	return c
}

// held returns the first most addresses of each class that an owner's pod may have.
func (m *model) held(owner Owner, podUID, podName string, most int, class func(*Record) (uint64, bool), gone func(*entry) bool) []netip.Addr {
	var held []Record
	for addr, record := range m.stored {
		if m.isPromised(addr, owner, podUID) {
			continue
		}
		if record.Owner.SameWorkload(owner) && entryOf(record).heldBy(owner, podUID, gone) {
			held = append(held, record)
		}
	}
	preference := func(r Record) (rank int) {
		if r.PodUID != podUID {
			rank = 2
		}
		if podName == "" || r.LastPod != podName {
			rank++
		}
		return rank
	}
	slices.SortFunc(held, func(a, b Record) int {
		return cmp.Or(cmp.Compare(preference(a), preference(b)), a.Created.Compare(b.Created), a.Addr.Compare(b.Addr))
	})
	var addrs []netip.Addr
	of := map[uint64]int{}
	for _, record := range held {
		if number, ok := class(&record); ok && of[number] < most {
			of[number]++
			addrs = append(addrs, record.Addr)
		}
	}
	return addrs
}

func ranges(texts ...string) []iprange.Range {
	var result []iprange.Range
	for i := 0; i+1 < len(texts); i += 2 {
		result = append(result, iprange.Range{First: netip.MustParseAddr(texts[i]), Last: netip.MustParseAddr(texts[i+1])})
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

// simulation drives the book and the model with the same random operations. It uses the
// book as the API server's watch and the scheduler do: an address has one object at most,
// updates and deletions arrive late, and writes conflict.
type simulation struct {
	t       *testing.T
	random  *rand.Rand
	book    *Allocator
	view    *View
	model   model
	version uint64
	layouts [][]Pool
	owners  []Owner
	// draining: more addresses come free than into use.
	draining bool
	// ended are the UIDs of pods that are gone.
	ended map[string]bool
}

func (s *simulation) Gone(record *Record) bool {
	return s.ended[record.PodUID] && (record.TwinUID == "" || s.ended[record.TwinUID])
}

func (s *simulation) Lost(*Record) bool { return false }

func (s *simulation) gone(e *entry) bool {
	record := e.record()
	return s.Gone(&record)
}

var testNamespaces = []string{"n", "m"}

// newSimulation returns one in which an owner with that many addresses has a holding.
func newSimulation(t *testing.T, seed uint64, many int) *simulation {
	s := &simulation{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), ended: map[string]bool{},
		model: model{stored: map[netip.Addr]Record{}, reserved: map[netip.Addr]string{}, owners: map[netip.Addr]Owner{}},
		layouts: [][]Pool{
			{testPool("a", "10.0.0.1", "10.0.0.6", "10.0.0.9", "10.0.0.9"), testPool("b", "10.0.1.1", "10.0.1.4"), testPool("six", "2001:db8::1", "2001:db8::3")},
			{testPool("a", "10.0.0.1", "10.0.0.9"), testPool("b", "10.0.1.1", "10.0.1.4")},
			{testPool("a", "10.0.0.3", "10.0.0.4"), testPool("b", "10.0.0.5", "10.0.1.2"), testPool("six", "2001:db8::1", "2001:db8::3")},
		},
	}
	for i := range 4 {
		namespace := testNamespaces[i/2]
		stateful := Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: namespace, Name: "web", UID: "web", PodName: fmt.Sprintf("web-%d", i%2)}
		s.owners = append(s.owners, stateful,
			Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: "shop", UID: fmt.Sprintf("shop-%d", i%2)})
	}
	s.book = New(s)
	s.book.many = many
	s.setPools(s.layouts[0])
	return s
}

func (s *simulation) setPools(pools []Pool) {
	s.model.setPools(pools)
	s.view = s.book.SetPools(pools)
}

// any returns an address near the start of a range, where most addresses are in use.
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

// claimant returns a pod of an owner that has no stored address.
func (s *simulation) claimant() Claimant {
	return Claimant{PodUID: s.pod(), Owner: Owner{Kind: "New", Namespace: testNamespaces[s.random.IntN(2)]}}
}

func (s *simulation) names() []string {
	return []string{"a", "b", "six", "unknown"}[s.random.IntN(3):]
}

func (s *simulation) pod() string { return fmt.Sprintf("pod-%d", s.random.IntN(6)) }

// name returns the name of a pod, or none.
func (s *simulation) name() string { return []string{"", "web-0", "web-1", "web-2"}[s.random.IntN(4)] }

func (s *simulation) record(addr netip.Addr) Record {
	s.version++
	record := Record{
		Addr: addr, Pool: s.model.poolOf(addr), Owner: s.owner(), Policy: Policy(s.random.IntN(3)),
		UID: fmt.Sprintf("object-%d", s.version), Version: s.version,
		Created: time.Unix(int64(s.version/3), 0), LastPod: s.name(),
	}
	switch s.random.IntN(5) {
	case 0:
	case 1:
		record.Reserved = true
	case 2:
		record.Cooling, record.NamespaceUID = true, append(testNamespaces, "")[s.random.IntN(3)]
	default:
		record.PodUID = s.pod()
		if twin := s.pod(); s.random.IntN(4) == 0 && twin != record.PodUID {
			record.TwinName, record.TwinUID = twin, twin
		}
	}
	return record
}

func (s *simulation) step() string {
	if s.random.IntN(100) == 0 {
		s.draining = !s.draining
	}
	choice := s.random.IntN(14)
	if s.draining && s.random.IntN(2) == 0 {
		choice = []int{5, 8}[s.random.IntN(2)]
	}
	switch choice {
	case 0, 1, 2: // schedule a pod on a free address
		names, c := s.names(), s.claimant()
		taken, err := s.book.Reserve(c, []Want{from(s.book, names...)})
		best := s.model.roomiest(names, c.Owner.Namespace)
		if (best != "") != (err == nil) || err != nil && !errors.Is(err, ErrExhausted) {
			s.t.Fatalf("Reserve(%v of %v): %v, but the model has pool %q", c, names, err, best)
		}
		if err != nil {
			return "nothing free"
		}
		if want := s.model.take(best); taken[0].Addr != want || taken[0].Pool != best {
			s.t.Fatalf("Reserve(%v of %v) gave %v, want %s of pool %s", c, names, taken[0], want, best)
		}
		s.model.reserve(taken[0].Addr, c.PodUID, c.Owner)
		return fmt.Sprintf("reserve free %s for %s", taken[0].Addr, c.PodUID)
	case 3: // schedule a pod on an address its owner holds
		owner, pod := s.owner(), s.pod()
		held := s.book.Held(owner, pod, "", math.MaxInt, false, anyClass)
		if len(held) == 0 {
			return "nothing held"
		}
		if _, err := reserveHeld(s.book, held[0].Addr, owner, pod); err != nil {
			s.t.Fatalf("Reserve of the held %s: %v", held[0].Addr, err)
		}
		s.model.reserve(held[0].Addr, pod, owner)
		return fmt.Sprintf("reserve held %s for %s", held[0].Addr, pod)
	case 4: // schedule a pod on any address, which its owner may not have
		addr, owner, pod := s.any(), s.owner(), s.pod()
		record, stored := s.model.stored[addr]
		may := stored && record.Owner.SameWorkload(owner) && entryOf(record).heldBy(owner, pod, s.gone) && !s.model.isPromised(addr, owner, pod)
		if !stored || !record.Owner.SameWorkload(owner) {
			return "not of this owner"
		}
		_, err := reserveHeld(s.book, addr, owner, pod)
		if may != (err == nil) {
			s.t.Fatalf("Reserve(%s, %v, %s): %v, want allowed %v", addr, owner, pod, err, may)
		}
		if err == nil {
			s.model.reserve(addr, pod, owner)
		}
		return fmt.Sprintf("reserve %s for %s", addr, pod)
	case 5: // release a reservation, also twice or for another pod
		addr, pod := s.any(), s.pod()
		if by := s.model.reserved[addr]; by != "" && s.random.IntN(2) == 0 {
			pod = by
		}
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
	case 6: // commit: the API server has stored the object; the watch may show it first
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
			if s.random.IntN(2) == 0 { // the object is deleted before the answer arrives
				s.book.Forget(addr, record.UID, false)
				delete(s.model.stored, addr)
				s.book.Confirm(record, pod)
				return fmt.Sprintf("commit %s, gone already", addr)
			}
		}
		s.book.Confirm(record, pod)
		s.model.stored[addr] = record
		return fmt.Sprintf("commit %s", addr)
	case 7: // the watch shows a new or changed object, or an old state of it
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
	case 8: // the watch shows a deletion, perhaps of an earlier object
		addr := s.any()
		record, ok := s.model.stored[addr]
		if (!ok || record.UID == "") && s.random.IntN(2) == 0 { // the cooldown of an address without an object is over
			delete(s.model.stored, addr)
			freed := s.book.Rested(addr)
			if want := ok && !s.model.inUse(addr); freed != want {
				s.t.Fatalf("Rested(%s) freed %v, want %v", addr, freed, want)
			}
			return fmt.Sprintf("rested %s", addr)
		}
		uid, rests := "another", s.random.IntN(3) == 0
		if ok && record.UID != "" && s.random.IntN(4) > 0 {
			uid = record.UID
			delete(s.model.stored, addr)
			if rests {
				s.model.stored[addr] = Record{Addr: addr, Cooling: true, Version: record.Version}
			}
		}
		freed := s.book.Forget(addr, uid, rests)
		if want := uid != "another" && !s.model.inUse(addr); freed != want {
			s.t.Fatalf("Forget(%s, %s, %v) freed %v, want %v", addr, uid, rests, freed, want)
		}
		return fmt.Sprintf("forget %s", addr)
	case 9: // schedule a pod on a free address of a range
		names, c, first := s.names(), s.claimant(), s.any()
		in := iprange.Single(first)
		for range s.random.IntN(5) {
			in.Last = in.Last.Next()
		}
		taken, err := s.book.Reserve(c, []Want{from(s.book, names...).in([]iprange.Range{in})})
		free := s.model.free(names, in, c.Owner.Namespace)
		if (len(free) > 0) != (err == nil) || err == nil && taken[0].Addr != free[0] {
			s.t.Fatalf("Reserve(%v of %v) gave %v, %v; free are %v", in, names, taken, err, free)
		}
		if err == nil {
			s.model.reserve(free[0], c.PodUID, c.Owner)
		}
		return fmt.Sprintf("reserve one of %v for %s", in, c.PodUID)
	case 10: // schedule a pod on any address and a certain one
		names, c, addr := s.names(), s.claimant(), s.any()
		namespace := c.Owner.Namespace
		exact := []iprange.Range{iprange.Single(addr)}
		best := s.model.roomiest(names, namespace)
		if best == s.model.poolOf(addr) && len(s.model.free([]string{best}, exact[0], namespace)) > 0 && s.model.room(best, namespace) == 1 {
			// The certain address is the last of its pool: any is from another.
			best = s.model.roomiest(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == best }), namespace)
		}
		taken, err := s.book.Reserve(c, []Want{from(s.book, names...), from(s.book, names...).in(exact)})
		if err != nil {
			all := uint64(0)
			for _, name := range names {
				all += s.model.room(name, namespace)
			}
			if all > 1 && len(s.model.free(names, exact[0], namespace)) > 0 {
				s.t.Fatalf("Reserve(any and %s of %v): %v", addr, names, err)
			}
			return "too few addresses"
		}
		if free := s.model.free(names, exact[0], namespace); len(free) == 0 || taken[1].Addr != addr {
			s.t.Fatalf("Reserve(%s) gave %v", addr, taken)
		}
		s.model.reserve(addr, c.PodUID, c.Owner)
		s.model.settle()
		if want := s.model.take(best); taken[0].Addr != want || taken[0].Pool != best {
			s.t.Fatalf("Reserve(any of %v) gave %v, want %s of pool %s", names, taken[0], want, best)
		}
		s.model.reserve(taken[0].Addr, c.PodUID, c.Owner)
		return fmt.Sprintf("reserve %s and %s for %s", taken[0].Addr, addr, c.PodUID)
	case 11: // a pod ends, or turns out to be alive: its record was seen before the pod
		pod := s.pod()
		if s.ended[pod] = s.random.IntN(2) == 0; s.ended[pod] {
			for _, namespace := range testNamespaces {
				s.book.Ended(namespace, pod)
			}
			for addr, record := range s.model.stored {
				if record.TwinUID == pod { // the controller writes
					s.version++
					record.Version = s.version
					s.model.stored[addr] = record
					s.book.Observe(record)
				}
			}
		}
		return fmt.Sprintf("%s is gone: %t", pod, s.ended[pod])
	case 12: // schedule a pod on an address at rest
		addr, c := s.any(), s.claimant()
		may := slices.Contains(s.model.resting(c.Owner.Namespace), addr) && s.model.admits(addr, c.Owner.Namespace)
		taken, err := s.book.Reserve(c, []Want{{View: s.view, Resting: []netip.Addr{addr}, RestsFor: c.Owner.Namespace}})
		if may != (err == nil) || err != nil && !errors.Is(err, ErrExhausted) {
			s.t.Fatalf("Reserve(the resting %s) by a pod of %s: %v, want allowed %t", addr, c.Owner.Namespace, err, may)
		}
		if err != nil {
			return "no address at rest"
		}
		if taken[0].Addr != addr || *taken[0].Stored != s.model.stored[addr] {
			s.t.Fatalf("Reserve(the resting %s) gave %+v, want its record %+v", addr, taken[0], s.model.stored[addr])
		}
		s.model.reserve(addr, c.PodUID, c.Owner)
		return fmt.Sprintf("reserve %s from its rest for %s", addr, c.PodUID)
	default:
		if s.random.IntN(20) > 0 {
			return "no change of pools"
		}
		layout := slices.Clone(s.layouts[s.random.IntN(len(s.layouts))])
		i := s.random.IntN(len(layout))
		layout[i].Disabled = s.random.IntN(2) == 0
		for i := range layout {
			layout[i].MaxPerNamespace = s.random.Uint64N(4)
		}
		s.setPools(layout)
		return "pools"
	}
}

func (s *simulation) checkOfPod(after string) {
	for _, namespace := range testNamespaces {
		for i := range 6 {
			pod, want := fmt.Sprintf("pod-%d", i), []Record{}
			for addr, record := range s.model.stored {
				promised := s.model.reserved[addr]
				if record.PodUID == pod && record.Owner.Namespace == namespace && !record.Reserved && !record.Cooling && (promised == "" || promised == pod) {
					want = append(want, record)
				}
			}
			got := s.book.OfPod(namespace, pod)
			for _, records := range [][]Record{got, want} {
				slices.SortFunc(records, func(x, y Record) int { return x.Addr.Compare(y.Addr) })
			}
			if !slices.Equal(got, want) {
				s.t.Fatalf("after %q: pod %s of namespace %s has %+v, want %+v", after, pod, namespace, got, want)
			}
		}
	}
}

func (s *simulation) check(after string) {
	s.model.settle()
	for i, pool := range s.model.pools {
		want := s.model.counts(pool)
		if got := s.book.Counts(pool.Name); got != want {
			s.t.Fatalf("after %q: counts of pool %s are %+v, want %+v", after, pool.Name, got, want)
		}
		if free := s.view.Free(i); free != want.Free {
			s.t.Fatalf("after %q: Free of pool %s is %d, want %d", after, pool.Name, free, want.Free)
		}
	}
	for _, namespace := range testNamespaces {
		want := map[string]Share{}
		for _, pool := range s.model.pools {
			if share := s.model.share(pool, namespace); pool.MaxPerNamespace > 0 && share.Total() > 0 {
				want[pool.Name] = share
			}
			if got := s.book.Share(pool.Name, namespace); got != want[pool.Name] {
				s.t.Fatalf("after %q: namespace %s has %+v of pool %s, want %+v", after, namespace, got, pool.Name, want[pool.Name])
			}
		}
		if got, want := s.book.InNamespace(namespace), s.model.inNamespace(namespace); got != want {
			s.t.Fatalf("after %q: namespace %s has %d addresses, want %d", after, namespace, got, want)
		}
		if got := s.book.Shares(namespace); !maps.Equal(got, want) {
			s.t.Fatalf("after %q: namespace %s has %+v, want %+v", after, namespace, got, want)
		}
		if got, want := restingAddrs(s.book, namespace), s.model.resting(namespace); !slices.Equal(got, want) {
			s.t.Fatalf("after %q: %v rest for namespace %s, want %v", after, got, namespace, want)
		}
	}
	s.checkHeld(after)
	s.checkOfPod(after)
	for key, h := range s.book.large {
		v4, v6 := 0, 0
		for e := range s.book.ownedBy(key) {
			if e.addr.Is4() {
				v4++
			} else {
				v6++
			}
		}
		if h.v4 != v4 || h.v6 != v6 {
			s.t.Fatalf("after %q: %v has %d and %d addresses, want %d and %d", after, key, h.v4, h.v6, v4, v6)
		}
	}
	s.checkRoom(after)
}

// checkRoom compares whether a fixed set has room for a pod.
func (s *simulation) checkRoom(after string) {
	c := Claimant{Owner: s.owner(), PodUID: s.pod(), FixedSet: true, MaxPods: s.random.IntN(4)}
	others := map[string]bool{}
	for e := range s.book.ownedBy(c.Owner.key()) {
		if t, ok := e.taker(); ok && t.ownerUID == c.Owner.UID && t.podUID != c.PodUID && (e.promised != nil || !s.book.hasEnded(e)) {
			others[t.podUID+t.detachedFrom] = true
		}
	}
	if got := s.book.SetHasRoom(c); got != (len(others) < c.MaxPods) {
		s.t.Fatalf("after %q: %+v has room: %v, with %v", after, c, got, others)
	}
}

// checkHeld compares the addresses that some pod of an owner may have.
func (s *simulation) checkHeld(after string) {
	owner, pod, name, most := s.owner(), s.pod(), s.name(), []int{1, 2, math.MaxInt}[s.random.IntN(3)]
	class, byAddress := anyClass, s.random.IntN(2) == 0
	switch s.random.IntN(3) {
	case 0:
		class = func(r *Record) (uint64, bool) { return uint64(r.Policy), r.Policy != Retain }
	case 1:
		byAddress = true
		class = func(r *Record) (uint64, bool) {
			last := uint64(r.Addr.AsSlice()[r.Addr.BitLen()/8-1])
			return last % 2, last%3 > 0
		}
	}
	var held []netip.Addr
	for _, record := range s.book.Held(owner, pod, name, most, byAddress, class) {
		held = append(held, record.Addr)
	}
	if want := s.model.held(owner, pod, name, most, class, s.gone); !slices.Equal(held, want) {
		s.t.Fatalf("after %q: %v has %v, at most %d of each class, for %s with the name %q, want %v", after, owner, held, most, pod, name, want)
	}
}

// The book agrees with the model, operation by operation.
func TestModel(t *testing.T) {
	for name, many := range map[string]int{"small owners": math.MaxInt, "large owners": 2} {
		t.Run(name, func(t *testing.T) { testModel(t, many) })
	}
}

func testModel(t *testing.T, many int) {
	s := newSimulation(t, seedtest.Seed(t), many)
	used := 0
	for range seedtest.Draws(t, 5000, 20_000) {
		s.check(s.step())
		used = max(used, len(s.book.large))
	}
	if (used > 0) != (many == 2) {
		t.Errorf("%d owners had a holding", used)
	}
	for addr, pod := range s.model.reserved {
		s.book.Release(addr, pod)
	}
	for addr, record := range s.model.stored {
		s.book.Forget(addr, record.UID, false)
	}
	if holdings, pods, rests := len(s.book.large), len(s.book.byPod)+len(s.book.byLastPod), len(s.book.rests); holdings != 0 || pods != 0 || rests != 0 {
		t.Errorf("when all is free, the book keeps %d holdings, addresses of %d pods, and rests for %d namespaces", holdings, pods, rests)
	}
	s.book.SetPools(nil)
	if words, owners, shares, owned := size(&s.book.index), len(s.book.owners), len(s.book.shares), len(s.book.inNamespace); words != 0 || owners != 0 || shares != 0 || owned != 0 {
		t.Errorf("when all is free and no pool is left, the book keeps %d words, %d owners, shares of %d namespaces and counts of %d", words, owners, shares, owned)
	}
}

// Pods that are scheduled concurrently never share an address, and all addresses come
// free again.
func TestConcurrent(t *testing.T) {
	book := New(nil)
	pool := testPool("a", "10.0.0.1", "10.0.0.250")
	book.SetPools([]Pool{pool})
	first := seedtest.Seed(t)
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
