// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"errors"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/sorted"
)

var (
	// ErrExhausted is returned when no pool that may serve the request has a free
	// address.
	ErrExhausted = errors.New("no free address")
	// ErrLost is returned when an address of the owner is no longer available: another pod of the
	// owner has the address, or the address has another owner now.
	ErrLost = errors.New("the address was given to somebody else")
	// ErrLimit is returned when the owner has as many addresses as it may have.
	ErrLimit = errors.New("the owner has all the addresses it may have")
	// ErrSetInUse is returned when the owner has a fixed set, and the set's maximum number of pods
	// already have addresses.
	ErrSetInUse = errors.New("the addresses of the owner's fixed set are with other pods")
)

// entry is one address, in use or freed and queued in its pool. If it is in use, stored
// or promised is set.
type entry struct {
	addr     netip.Addr
	stored   *stored
	promised *promise
	// gone is the UID of the last stored object that was deleted while the address was promised. It is
	// needed because Confirm may come after Forget.
	gone *string
	// prev and next link the addresses of an owner, or a pool's freed addresses.
	prev, next *entry
}

// promise is a reservation of an address for a pod.
type promise struct {
	podUID   string
	owner    ownerKey
	ownerUID string
}

// use is the state of an address, as pools count it.
type use uint8

const (
	unused use = iota
	allocated
	retained
	reserved
	cooling
	uses
)

func (e *entry) use() use {
	switch {
	case e.stored == nil && e.promised == nil:
		return unused
	case e.stored != nil && e.stored.cooling && !e.promisedFromRest():
		return cooling
	case e.stored != nil && e.stored.reserved:
		return reserved
	case e.stored != nil && e.stored.podUID == "" && e.promised == nil:
		return retained
	}
	return allocated
}

// inUse says whether the address has an entry and is not just queued in its pool.
func (e *entry) inUse() bool { return e != nil && e.use() != unused }

// owner returns the owner key under which the address is listed.
func (e *entry) owner() (ownerKey, bool) {
	switch {
	case e.stored != nil && e.stored.owned():
		return e.stored.owner().key(), true
	case e.stored == nil && e.promised != nil, e.promisedFromRest():
		return e.promised.owner, true
	}
	return ownerKey{}, false
}

// isOf says whether owner returns this key. It compares names first, which differ most.
func (e *entry) isOf(key ownerKey) bool {
	if e.stored == nil || !e.stored.owned() {
		owner, ok := e.owner()
		return ok && owner == key
	}
	s := e.stored
	if s.ownerName != key.name || s.ownerPod != key.podName {
		return false
	}
	owner, _ := e.owner()
	return owner == key
}

// promisedFromRest says whether the address is in cooldown for the pods of a namespace and is
// promised to one of them.
func (e *entry) promisedFromRest() bool { return e.promised != nil && e.restsFor() != "" }

func (e *entry) promisedTo(podUID string) bool {
	return e.promised != nil && e.promised.podUID == podUID
}

// usable says whether the owner may use the stored address for a pod now.
func (e *entry) usable(owner Owner, podUID string, gone func(*entry) bool) bool {
	return e.stored != nil && e.heldBy(owner, podUID, gone) && (e.promised == nil || e.promised.podUID == podUID || e.promised.passesTo(owner))
}

// passesTo says whether the promise passes to the next pod of the owner. The API server has one pod
// of a name at a time, and refuses to bind a deleted pod. So a pod that is replaced while its
// address is being committed never runs with this address.
func (p *promise) passesTo(owner Owner) bool { return owner.PodName != "" && p.owner == owner.key() }

// Allocator is the book. Safe for concurrent use; methods wait only for the mutex.
type Allocator struct {
	mu     sync.Mutex
	pools  []*freeSpace
	view   *View // of pools
	byName map[string]*freeSpace
	homes  iprange.Table[*freeSpace]
	index  index
	pods   Pods
	// gone asks pods about the pod of an entry; nil without pods. It reuses one Record, because
	// an owner may have thousands of addresses.
	gone func(*entry) bool
	// owners lists the addresses that are stored for an owner or promised to it, by
	// the hash of its key. Owners whose keys have the same hash share a list.
	owners map[uint64]ring
	seed   maphash.Seed
	shares shares
	// byPod lists addresses by the UID of the pod that has them or is promised them. Addresses that
	// must be detached are listed by the name of the last pod.
	byPod byPod
	// large has the holdings of owners that had at least largeOwner addresses when somebody asked.
	// byLastPod lists the ready addresses of these owners by the name of the last pod.
	large     map[ownerKey]*holding
	many      int
	byLastPod byPod
	// rests has the addresses in cooldown that pods of a namespace may have, by the namespace's UID.
	rests map[string]map[*entry]bool
	// inNamespace counts the addresses that are stored for an owner or promised to it, by the
	// namespace of the owner.
	inNamespace map[string]uint64
}

// Pods answers questions about the pods that records name. It is called under the
// book's lock and must not block.
type Pods interface {
	// Gone says whether the pod has ended, and its twin, if it has one: its owner may use the address
	// before the record says so. When the answer becomes true, [Allocator.Ended] must be called,
	// unless a new record follows.
	Gone(record *Record) bool
	// Lost says whether the pod is being deleted and its node is lost, so that the deletion may never
	// end. The pod keeps its address. Its owner may have another address in its place.
	Lost(record *Record) bool
}

// New returns an empty book without pools. pods may be nil: then no pod counts as gone
// or lost.
func New(pods Pods) *Allocator {
	a := &Allocator{
		pods:        pods,
		byName:      map[string]*freeSpace{},
		owners:      map[uint64]ring{},
		seed:        maphash.MakeSeed(),
		shares:      shares{},
		large:       map[ownerKey]*holding{},
		many:        largeOwner,
		byPod:       byPod{},
		byLastPod:   byPod{},
		rests:       map[string]map[*entry]bool{},
		inNamespace: map[string]uint64{},
	}
	if pods != nil {
		var record Record
		a.gone = func(e *entry) bool {
			record = e.record()
			return pods.Gone(&record)
		}
	}
	return a
}

// SetPools replaces the pools and returns a View of them. Addresses in use stay in use,
// even if no pool contains them any more.
func (a *Allocator) SetPools(pools []Pool) *View {
	a.mu.Lock()
	defer a.mu.Unlock()

	previous := a.byName
	a.pools = make([]*freeSpace, 0, len(pools))
	a.byName = make(map[string]*freeSpace, len(pools))
	// changed pools are new or have new ranges; capped pools had no cap before.
	var changed, capped []*freeSpace
	for _, pool := range pools {
		space := previous[pool.Name]
		if space == nil || !slices.Equal(space.Ranges, pool.Ranges) {
			space = &freeSpace{Pool: pool}
			changed = append(changed, space)
		} else {
			// The same addresses: keep the queue of freed ones.
			if space.MaxPerNamespace == 0 && pool.MaxPerNamespace > 0 {
				capped = append(capped, space)
			}
			space.Pool = pool
			delete(previous, pool.Name)
		}
		a.pools = append(a.pools, space)
		a.byName[pool.Name] = space
	}
	a.homes = iprange.Table[*freeSpace]{}
	a.forgetHoldings()
	// In ascending order, because the table grows fastest at its end.
	for _, space := range slices.SortedFunc(slices.Values(a.pools), func(x, y *freeSpace) int { return first(x.Ranges).Compare(first(y.Ranges)) }) {
		a.homes.Add(space.Ranges, space)
	}
	// The queues of removed and changed pools continue in the pools that contain their addresses now.
	for _, name := range slices.Sorted(maps.Keys(previous)) {
		for space := previous[name]; space.resting.first != nil; {
			e := space.resting.first
			space.resting.remove(e)
			if home := a.home(e.addr); home != nil && home.queues() {
				home.resting.push(e)
			} else {
				a.index.vacate(e, false)
			}
		}
	}
	a.shares.drop(func(space *freeSpace) bool {
		return a.byName[space.Name] != space || space.MaxPerNamespace == 0
	})
	a.visit(changed, func(space *freeSpace, e *entry) {
		space.count[e.use()]++
		if space.MaxPerNamespace > 0 {
			a.shares.count(space, e)
		}
	})
	a.visit(capped, a.shares.count)
	a.view = &View{free: make([]atomic.Uint64, len(a.pools)), names: make([]string, len(a.pools))}
	for i, space := range a.pools {
		a.view.names[i] = space.Name
		space.published = &a.view.free[i]
		space.publish()
	}
	return a.view
}

// visit calls look with each entry of some pools. It goes through the words of their ranges, or
// through all entries if the book has fewer pages than these ranges have words.
func (a *Allocator) visit(spaces []*freeSpace, look func(*freeSpace, *entry)) {
	if len(spaces) == 0 {
		return
	}
	var words uint64
	visited := make(map[*freeSpace]bool, len(spaces))
	for _, space := range spaces {
		visited[space] = true
		for _, r := range space.Ranges {
			words = min(words+words64(r), math.MaxUint32) // no overflow
		}
	}
	if words > uint64(len(a.index.pages)) {
		for e := range a.index.all() {
			if home := a.home(e.addr); visited[home] {
				look(home, e)
			}
		}
		return
	}
	for _, space := range spaces {
		for _, r := range space.Ranges {
			for e := range a.index.within(r) {
				look(space, e)
			}
		}
	}
}

// take returns an unused address of a pool. The caller must mark the address as in use. The first
// address that a pool gives follows the address whose object was created last: an earlier process
// may have given and freed the addresses before it just now.
func (a *Allocator) take(space *freeSpace) (netip.Addr, bool) {
	if !space.begun {
		var newest *entry
		a.visit([]*freeSpace{space}, func(_ *freeSpace, e *entry) {
			if e.stored != nil && (newest == nil || cmp.Or(e.stored.created.Compare(newest.stored.created), e.addr.Compare(newest.addr)) > 0) {
				newest = e
			}
		})
		var behind netip.Addr
		if newest != nil {
			behind = newest.addr
		}
		space.begin(behind)
	}
	return space.take(&a.index)
}

func (a *Allocator) home(addr netip.Addr) *freeSpace {
	home, _ := a.homes.Lookup(addr)
	return home
}

// change applies mutate to the entry of addr. It creates and removes the entry as needed, and
// updates the counts of its pool, the shares of namespaces and the lists of owners. It returns
// whether the address became free.
func (a *Allocator) change(addr netip.Addr, mutate func(*entry)) (freed bool) {
	e := a.index.entry(addr)
	listed := e != nil
	if !listed {
		e = &entry{addr: addr}
	}
	before := e.use()
	ownerBefore, ownedBefore := e.owner()
	restedFor := e.restsFor()
	if ownedBefore {
		a.byPod.remove(ownerBefore.holder(e), e)
		a.unlist(ownerBefore, e)
	}
	mutate(e)
	a.restFor(restedFor, e)
	after := e.use()
	ownerAfter, ownedAfter := e.owner()
	moved := ownedBefore != ownedAfter || ownerBefore != ownerAfter
	if moved && ownedBefore {
		a.disown(ownerBefore, e)
	}
	var home *freeSpace
	if before != after || moved {
		home = a.home(addr)
	}
	if home != nil && home.MaxPerNamespace > 0 {
		if ownedBefore {
			a.shares.add(home, ownerBefore.namespace, before, -1)
		}
		if ownedAfter {
			a.shares.add(home, ownerAfter.namespace, after, 1)
		}
	}
	if before != after {
		a.recount(home, e, listed, before, after)
	}
	// This comes last: prev and next link only one ring, and the entry may just have left its pool's
	// queue.
	if moved && ownedAfter {
		a.own(ownerAfter, e)
	}
	if ownedAfter {
		a.byPod.add(ownerAfter.holder(e), e)
		a.list(ownerAfter, e)
	}
	return before != unused && after == unused
}

// recount moves the entry from one use to another in the index, and in the queue and the counts of
// its pool. home is the pool and may be nil. listed says whether the index had the entry before.
func (a *Allocator) recount(home *freeSpace, e *entry, listed bool, before, after use) {
	switch {
	case before == unused:
		if listed {
			home.resting.remove(e)
		}
		a.index.occupy(e)
	case after == unused:
		e.gone = nil
		rests := home != nil && home.queues()
		a.index.vacate(e, rests)
		if rests {
			home.resting.push(e)
		}
	}
	if home != nil {
		home.count[before]--
		home.count[after]++
		home.publish()
	}
}

// restsFor returns the UID of the namespace whose pods may have the address although it is in
// cooldown; empty if there is none.
func (e *entry) restsFor() string {
	if e.stored == nil || !e.stored.cooling {
		return ""
	}
	return e.stored.of.Value().namespaceUID
}

// restFor lists the address under the namespace that restsFor returns now. before is the namespace
// that it returned before.
func (a *Allocator) restFor(before string, e *entry) {
	after := e.restsFor()
	if before == after {
		return
	}
	if before != "" {
		delete(a.rests[before], e)
		if len(a.rests[before]) == 0 {
			delete(a.rests, before)
		}
	}
	if after != "" {
		if a.rests[after] == nil {
			a.rests[after] = map[*entry]bool{}
		}
		a.rests[after][e] = true
	}
}

// Resting returns the records of addresses in cooldown that pods of a namespace may have, in the
// order of the addresses. It leaves out addresses that are promised to a pod.
func (a *Allocator) Resting(namespaceUID string) (records []Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if namespaceUID == "" {
		return nil
	}
	for e := range a.rests[namespaceUID] {
		if e.promised == nil {
			records = append(records, e.record())
		}
	}
	slices.SortFunc(records, func(x, y Record) int { return x.Addr.Compare(y.Addr) })
	return records
}

func (a *Allocator) own(key ownerKey, e *entry) {
	hash := maphash.Comparable(a.seed, key)
	list := a.owners[hash]
	list.push(e)
	a.owners[hash] = list
	a.inNamespace[key.namespace]++
	a.countLarge(key, e.addr, 1)
}

func (a *Allocator) disown(key ownerKey, e *entry) {
	if a.inNamespace[key.namespace]--; a.inNamespace[key.namespace] == 0 {
		delete(a.inNamespace, key.namespace)
	}
	a.countLarge(key, e.addr, -1)
	hash := maphash.Comparable(a.seed, key)
	list := a.owners[hash]
	list.remove(e)
	if list.first == nil {
		delete(a.owners, hash)
	} else {
		a.owners[hash] = list
	}
}

func (a *Allocator) ownedBy(key ownerKey) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		list := a.owners[maphash.Comparable(a.seed, key)]
		// An owner may have thousands, nearly all of one group.
		var group unique.Handle[ownerGroup]
		for e := range list.all() {
			switch s := e.stored; {
			case s != nil && s.owned() && s.of == group && s.ownerName == key.name && s.ownerPod == key.podName:
			case !e.isOf(key):
				continue
			case s != nil && s.owned():
				group = s.of
			}
			if !yield(e) {
				return
			}
		}
	}
}

// Held returns stored addresses that owner may use for the pod podUID, in order of preference: the
// pod's own, addresses that a pod with the name podName had, the oldest. It leaves out addresses
// promised to another pod, except to an earlier pod of the same name if the owner has one pod only.
//
// class returns the class of an address, and whether the pod may have the address at all. Held
// returns at most the given number (most) of addresses of each class, because an owner may have
// thousands. byAddress must be set if the class depends on the address itself; Held then looks at
// all addresses of the owner. class is called under the lock and must not keep its argument.
func (a *Allocator) Held(owner Owner, podUID, podName string, most int, byAddress bool, class func(*Record) (number uint64, ok bool)) []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	order := func(x, y *entry) int {
		return cmp.Or(
			sorted.TrueFirst(x.stored.podUID == podUID, y.stored.podUID == podUID),
			sorted.TrueFirst(podName != "" && x.stored.lastPod == podName, podName != "" && y.stored.lastPod == podName),
			older(x, y))
	}
	classes := map[uint64][]*entry{}
	var record Record
	offer := func(e *entry) (accepted bool) {
		record = e.record()
		number, ok := class(&record)
		if !ok {
			return false
		}
		best := classes[number]
		if len(best) == most && order(best[most-1], e) < 0 {
			return true
		}
		if at, known := slices.BinarySearchFunc(best, e, order); !known {
			classes[number] = slices.Insert(best[:min(len(best), most-1)], at, e)
		}
		return true
	}
	// An owner with one pod has few addresses.
	if h := a.holding(owner.key()); h == nil || owner.PodName != "" {
		for e := range a.ownedBy(owner.key()) {
			if e.usable(owner, podUID, a.gone) {
				offer(e)
			}
		}
	} else {
		enough := most
		if byAddress {
			enough = 0
		}
		a.each(h, owner, podUID, podName, enough, offer)
	}
	var chosen []*entry
	for _, best := range classes {
		chosen = append(chosen, best...)
	}
	slices.SortFunc(chosen, order)
	held := make([]Record, len(chosen))
	for i, e := range chosen {
		held[i] = e.record()
	}
	return held
}

// Stored returns the book's record of an address; ok is false if there is none.
func (a *Allocator) Stored(addr netip.Addr) (Record, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.index.entry(addr); e != nil && e.stored != nil {
		return e.record(), true
	}
	return Record{}, false
}

// Without returns the records, in no order, of objects that a list made at this version does not
// have. It leaves out objects that the API server stored later.
func (a *Allocator) Without(listed map[string]bool, version uint64) (records []Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := range a.index.all() {
		if e.stored != nil && e.stored.uid != "" && e.stored.version <= version && !listed[e.stored.uid] {
			records = append(records, e.record())
		}
	}
	return records
}

// HeldBy returns the matching records, in no order, among two kinds: records that name a pod, and
// records of addresses that must be detached from the node of a pod. It calls matches under the
// lock, and matches must not keep its argument.
func (a *Allocator) HeldBy(matches func(*Record) bool) (records []Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := range a.index.all() {
		if e.stored == nil || e.stored.podUID == "" && !e.stored.attached {
			continue
		}
		if record := e.record(); matches(&record) {
			records = append(records, record)
		}
	}
	return records
}

// RecordsOf returns the records of an owner's addresses, regardless of the owner's UID,
// in no order.
func (a *Allocator) RecordsOf(owner Owner) []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	var records []Record
	for e := range a.ownedBy(owner.key()) {
		if e.stored != nil {
			records = append(records, e.record())
		}
	}
	return records
}

// IsFree says whether the address is free in its pool.
func (a *Allocator) IsFree(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.index.entry(addr).inUse() && a.gives(addr)
}

// gives says whether a pool may give the address when it is free.
func (a *Allocator) gives(addr netip.Addr) bool {
	home := a.home(addr)
	return home != nil && !home.Disabled
}

// IsIdle says whether a pod could take the address: it is free in its pool, stored for an owner
// that may use it for its next pod, or in cooldown for the pods of a namespace.
func (a *Allocator) IsIdle(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.index.entry(addr)
	if !e.inUse() {
		return a.gives(addr)
	}
	if e.promised != nil || !e.stored.owned() {
		return e.promised == nil && e.restsFor() != ""
	}
	if e.stored.podUID == "" || a.pods == nil {
		return e.stored.available()
	}
	record := e.record()
	return record.Policy != PodDeleted && a.pods.Gone(&record)
}

// Owned counts the addresses of each family that are stored for an owner or promised to
// it, regardless of its UID.
func (a *Allocator) Owned(owner Owner) (v4, v6 int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owned(owner)
}

func (a *Allocator) owned(owner Owner) (v4, v6 int) {
	if known := a.holding(owner.key()); known != nil {
		return known.v4, known.v6
	}
	for e := range a.ownedBy(owner.key()) {
		if e.addr.Is4() {
			v4++
		} else {
			v6++
		}
	}
	return v4, v6
}

// Shared says of which families the pods of an owner have addresses or may have some. Promised
// addresses count, and stored addresses that match the owner's UID and that mayKeep accepts. An
// IPClaim also takes addresses of an earlier claim of its name. Under policy Never the UID does not
// matter. mayKeep is called under the lock.
func (a *Allocator) Shared(owner Owner, mayKeep func(*Record) bool) (v4, v6 bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := func(e *entry) bool {
		if e.promised != nil {
			return true
		}
		if owner.Kind != "IPClaim" && !e.stored.isFor(owner) && e.stored.policy != Never {
			return false
		}
		record := e.record()
		return mayKeep(&record)
	}
	n4, n6 := a.owned(owner)
	for e := range a.ownedBy(owner.key()) {
		family := &v6
		if e.addr.Is4() {
			family = &v4
		}
		// One of each family that the owner has is enough: it may have thousands.
		*family = *family || counts(e)
		if (v4 || n4 == 0) && (v6 || n6 == 0) {
			break
		}
	}
	return v4, v6
}

// Counts are the numbers of a pool's addresses by state. Allocated includes addresses promised to
// pods that are being scheduled. Reserved counts addresses that an administrator took out of
// circulation, Cooling the addresses in cooldown.
type Counts struct {
	Capacity, Allocated, Retained, Reserved, Cooling, Free uint64
}

// Counts returns the counts of a pool, all zero for an unknown pool.
func (a *Allocator) Counts(pool string) Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.byName[pool]
	if f == nil {
		return Counts{}
	}
	return Counts{
		Capacity:  f.Capacity,
		Allocated: uint64(f.count[allocated]),
		Retained:  uint64(f.count[retained]),
		Reserved:  uint64(f.count[reserved]),
		Cooling:   uint64(f.count[cooling]),
		Free:      f.free(),
	}
}

// Release ends the reservation of an address by the pod podUID and returns whether the address
// became free. It is idempotent.
func (a *Allocator) Release(addr netip.Addr, podUID string) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.index.entry(addr)
	if e == nil || !e.promisedTo(podUID) {
		return false
	}
	return a.change(addr, func(e *entry) { e.promised = nil })
}

// Confirm replaces the reservation of the pod podUID with the record that the API server now
// stores. It returns whether the address became free: the object may have been deleted before
// Confirm was called.
func (a *Allocator) Confirm(record Record, podUID string) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.change(record.Addr, func(e *entry) {
		if e.promisedTo(podUID) {
			e.promised = nil
		}
		if (e.gone == nil || *e.gone != record.UID) && (e.stored == nil || e.stored.version <= record.Version) {
			e.store(&record)
		}
		e.gone = nil
	})
}

// Observe updates the book with a record that was read from the API server. It ignores a record
// that is older than the book's. It also ignores a record of an object whose deletion the book saw
// while the address was promised: the caller may have read the record before the deletion. It
// returns whether the address is newly retained for the owner, so that a pod may wait for it.
func (a *Allocator) Observe(record Record) (retainedNow bool) {
	return a.observe(record, func(e *entry) bool {
		return e.stored != nil && record.Version < e.stored.version || e.gone != nil && *e.gone == record.UID
	})
}

// ObserveAt is Observe of a record that the API server certainly had at a version, which may be
// later than the record's own version. It ignores the record only if the book's record was stored
// after that version. So the book also follows an API server that was restored from a backup:
// there, objects have their former versions again, and deleted objects exist again.
func (a *Allocator) ObserveAt(version uint64, record Record) (retainedNow bool) {
	return a.observe(record, func(e *entry) bool { return e.stored != nil && version < e.stored.version })
}

func (a *Allocator) observe(record Record, outdated func(e *entry) bool) (retainedNow bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change(record.Addr, func(e *entry) {
		if outdated(e) {
			return
		}
		known := e.stored != nil && e.stored.available()
		var owner Owner
		if known {
			owner = e.stored.owner()
		}
		e.store(&record)
		retainedNow = e.stored.available() && (!known || owner != record.Owner)
	})
	return retainedNow
}

// Forget notes that the object uid of an address was deleted, and returns whether the address
// became free. With rests the address goes into cooldown instead. This cooldown ends when Rested is
// called, or when another object of the address was seen and deleted.
func (a *Allocator) Forget(addr netip.Addr, uid string, rests bool) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.index.entry(addr)
	if e == nil || e.stored == nil || e.stored.uid != uid {
		return false
	}
	return a.change(addr, func(e *entry) {
		if rests {
			e.store(&Record{Addr: addr, Cooling: true, Version: e.stored.version})
		} else {
			e.stored = nil
		}
		if e.promised != nil {
			e.gone = &uid
		}
	})
}

// Rested ends the cooldown that Forget began, and returns whether the address became free. It does
// nothing if the address has an object again.
func (a *Allocator) Rested(addr netip.Addr) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.index.entry(addr); e == nil || e.stored == nil || e.stored.uid != "" {
		return false
	}
	return a.change(addr, func(e *entry) { e.stored = nil })
}

// PoolOf returns the name of the pool that contains addr.
func (a *Allocator) PoolOf(addr netip.Addr) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if home := a.home(addr); home != nil {
		return home.Name, true
	}
	return "", false
}
