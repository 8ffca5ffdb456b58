// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

// A freed address stays unused as long as possible before another pod gets it.
func TestFreedAddressIsGivenLast(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.4")})
	take := func() netip.Addr {
		t.Helper()
		addr, _, err := reserveFree(book, []string{"a"}, "pod")
		if err != nil {
			t.Fatal(err)
		}
		return addr
	}
	first, second := take(), take()
	book.Release(first, "pod")
	book.Release(second, "pod")
	for _, want := range []string{"10.0.0.3", "10.0.0.4", "10.0.0.1", "10.0.0.2"} {
		if got := take(); got != netip.MustParseAddr(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A new process does not know when addresses were freed before it. It goes on behind the address
// that was created last, and addresses that it saw freed come after all others.
func TestOrderOutlivesRestart(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	for _, test := range []struct {
		name string
		pool Pool
		// created are addresses in use, and when they were created.
		created map[string]int
		// freed before the first pod.
		freed []string
		want  []string
	}{
		{"nothing in use", testPool("a", "10.0.0.1", "10.0.0.3"), nil, nil, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}},
		{
			"some were freed before", testPool("a", "10.0.0.1", "10.0.0.6"), map[string]int{"10.0.0.3": 1, "10.0.0.4": 2}, nil,
			[]string{"10.0.0.5", "10.0.0.6", "10.0.0.1", "10.0.0.2"},
		},
		{
			"the newest is not the highest", testPool("a", "10.0.0.1", "10.0.0.6"), map[string]int{"10.0.0.2": 3, "10.0.0.5": 2}, nil,
			[]string{"10.0.0.3", "10.0.0.4", "10.0.0.6", "10.0.0.1"},
		},
		{
			"created in the same second", testPool("a", "10.0.0.1", "10.0.0.6"), map[string]int{"10.0.0.2": 3, "10.0.0.3": 3}, nil,
			[]string{"10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.1"},
		},
		{
			"the newest is the last of its range", testPool("a", "10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.6"), map[string]int{"10.0.0.2": 1}, nil,
			[]string{"10.0.0.5", "10.0.0.6", "10.0.0.1"},
		},
		{
			"the newest is the last of all", testPool("a", "10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.6"), map[string]int{"10.0.0.6": 1}, nil,
			[]string{"10.0.0.1", "10.0.0.2", "10.0.0.5"},
		},
		{
			"some come free, first the newest", testPool("a", "10.0.0.1", "10.0.0.6"), map[string]int{"10.0.0.2": 1, "10.0.0.3": 3, "10.0.0.4": 2},
			[]string{"10.0.0.3", "10.0.0.2"},
			[]string{"10.0.0.5", "10.0.0.6", "10.0.0.1", "10.0.0.3", "10.0.0.2"},
		},
		{
			"a pool that is never used up", Pool{Name: "a", Ranges: ranges("2001:db8::1", "2001:db8::ffff:ffff:ffff"), Capacity: 1 << 48}, map[string]int{"2001:db8::7": 1}, nil,
			[]string{"2001:db8::8", "2001:db8::9"},
		},
		{
			"a pool that is never used up, whose last address is the newest", Pool{Name: "a", Ranges: ranges("2001:db8::1", "2001:db8::4"), Capacity: inexhaustible},
			map[string]int{"2001:db8::4": 1}, nil, []string{"2001:db8::1", "2001:db8::2", "2001:db8::3"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			book := New(nil)
			book.SetPools([]Pool{test.pool})
			for text, second := range test.created {
				book.Observe(Record{Addr: netip.MustParseAddr(text), PodUID: text, UID: text, Version: 1, Created: begin.Add(time.Duration(second) * time.Second)})
			}
			for _, text := range test.freed {
				book.Forget(netip.MustParseAddr(text), text, false)
			}
			var got []string
			for range test.want {
				addr, _, err := reserveFree(book, []string{"a"}, "pod")
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, addr.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// A pool whose ranges change goes on with the queue of its freed addresses.
func TestOrderOutlivesNewRanges(t *testing.T) {
	for _, test := range []struct {
		name  string
		pools []Pool
		want  []string
	}{
		{"one more", []Pool{testPool("a", "10.0.0.1", "10.0.0.5")}, []string{"10.0.0.4", "10.0.0.5", "10.0.0.2", "10.0.0.1"}},
		{"fewer", []Pool{testPool("a", "10.0.0.1", "10.0.0.2")}, []string{"10.0.0.2", "10.0.0.1"}},
		{"another pool has the addresses now", []Pool{testPool("b", "10.0.0.1", "10.0.0.4")}, []string{"10.0.0.4", "10.0.0.2", "10.0.0.1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			book := New(nil)
			book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.4")})
			for i := range 3 {
				if _, _, err := reserveFree(book, []string{"a"}, fmt.Sprint("pod-", i+1)); err != nil {
					t.Fatal(err)
				}
			}
			book.Release(netip.MustParseAddr("10.0.0.2"), "pod-2")
			book.Release(netip.MustParseAddr("10.0.0.1"), "pod-1")
			book.SetPools(test.pools)
			var got []string
			for range test.want {
				addr, _, err := reserveFree(book, []string{test.pools[0].Name}, "pod")
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, addr.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// A pool whose size does not fit 64 bits gives addresses, and its free count stays
// Unlimited.
func TestUnlimitedPool(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{{Name: "six", Ranges: ranges("2001:db8::1", "2001:db8:ffff::"), Capacity: Unlimited}})
	for range 1000 {
		if _, _, err := reserveFree(book, []string{"six"}, "pod"); err != nil {
			t.Fatal(err)
		}
	}
	if got := book.Counts("six"); got.Free != Unlimited || got.Allocated != 1000 {
		t.Errorf("counts are %+v", got)
	}
}

// An inexhaustible pool has no queue of freed addresses. After its last address it begins
// again with the first.
func TestInexhaustiblePool(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{{Name: "six", Ranges: ranges("2001:db8::1", "2001:db8::4"), Capacity: inexhaustible}})
	for i, want := range []string{"2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8::1", "2001:db8::3"} {
		addr, _, err := reserveFree(book, []string{"six"}, "pod")
		if err != nil {
			t.Fatal(err)
		}
		if addr != netip.MustParseAddr(want) {
			t.Errorf("got %s, want %s", addr, want)
		}
		if i == 0 || i == 2 {
			book.Release(addr, "pod")
		}
	}
	for _, addr := range addrs("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4") {
		book.Release(addr, "pod")
	}
	if left := size(&book.index); left != 0 {
		t.Errorf("%d words are kept for addresses that are free", left)
	}
}

// Held lists the pod's own address first, then the address of the last pod of its name,
// then the oldest.
func TestHeldOrder(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	book := New(nil)
	for i, record := range []Record{
		{LastPod: "w", Created: time.Unix(1, 0)},
		{Created: time.Unix(3, 0)},
		{Created: time.Unix(3, 0)},
		{PodUID: "me", Created: time.Unix(9, 0)},
		{LastPod: "x", Created: time.Unix(8, 0)},
	} {
		record.Addr, record.Owner, record.Policy, record.UID, record.Version = v4(i), owner, Retain, "object", 1
		book.Observe(record)
	}
	for name, want := range map[string][]netip.Addr{
		"x": {v4(3), v4(4), v4(0), v4(1), v4(2)},
		"":  {v4(3), v4(0), v4(1), v4(2), v4(4)},
	} {
		var got []netip.Addr
		for _, record := range book.Held(owner, "me", name, 9, false, anyClass) {
			got = append(got, record.Addr)
		}
		if !slices.Equal(got, want) {
			t.Errorf("a pod with the name %q has the choice of %v, want %v", name, got, want)
		}
	}
}

// anyClass puts all addresses into one class.
func anyClass(*Record) (uint64, bool) { return 0, true }

// Held returns the first addresses of each class, and none that the pod may not have.
func TestHeldOfEachClass(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	book := New(nil)
	for i := range 12 {
		record := Record{Addr: v4(i), Owner: owner, Policy: Retain, UID: "object", Version: 1, Created: time.Unix(int64(12-i), 0)}
		if i == 3 {
			record.PodUID = "me"
		}
		book.Observe(record)
	}
	var got []netip.Addr
	for _, record := range book.Held(owner, "me", "", 2, true, func(record *Record) (uint64, bool) {
		i := int(record.Addr.As4()[3])
		return uint64(i % 3), i%3 < 2
	}) {
		got = append(got, record.Addr)
	}
	// The pod's own, then the oldest: 0, 3, 6, 9 are one class, 1, 4, 7, 10 the other.
	if want := []netip.Addr{v4(3), v4(10), v4(9), v4(7)}; !slices.Equal(got, want) {
		t.Errorf("the pod has the choice of %v, want %v", got, want)
	}
}

// countedPods says of pods whether they are gone, and counts the questions.
type countedPods struct {
	gone  map[string]bool
	asked int
}

func (p *countedPods) Gone(r *Record) bool { p.asked++; return p.gone[r.PodUID] }
func (p *countedPods) Lost(*Record) bool   { return false }

// For a pod of an owner with many addresses, the book looks at as many of each pool as the pod
// needs, and asks about no pod that has the others.
func TestHeldByALargeOwner(t *testing.T) {
	owner := Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "n", Name: "c", UID: "1"}
	pods := &countedPods{gone: map[string]bool{"pod-350": true}}
	book := New(pods)
	book.SetPools([]Pool{testPool("a", "10.0.0.0", "10.0.0.199"), testPool("b", "10.0.0.200", "10.0.1.143")})
	record := func(i int, version uint64) Record {
		return Record{
			Addr: v4(i), Owner: owner, Policy: Retain, UID: fmt.Sprint("ip-", i), Version: version,
			Created: time.Unix(int64(400-i), 0), LastPod: fmt.Sprint("web-", i),
		}
	}
	// The first half of each pool is idle. Higher addresses are older.
	for i := range 400 {
		r := record(i, 1)
		if i%200 >= 100 {
			r.PodUID = fmt.Sprint("pod-", i)
		}
		book.Observe(r)
	}
	book.Observe(Record{Addr: v4(999), Owner: uid(owner, "0"), Policy: Retain, UID: "ip-999", Version: 1, LastPod: "web-5"})
	for at, step := range []struct {
		name         string
		do           func()
		uid, podName string
		want         []netip.Addr
	}{
		{"a pod was gone before anybody asked", func() {}, "new", "", []netip.Addr{v4(350), v4(299), v4(99), v4(98)}},
		{"a pod of the name had one", func() {}, "new", "web-5", []netip.Addr{v4(5), v4(350), v4(299), v4(99)}},
		{"it is with the pod itself", func() {}, "pod-360", "", []netip.Addr{v4(360), v4(350), v4(99), v4(98)}},
		{"another pod is gone", func() {
			pods.gone["pod-170"] = true
			book.Ended("n", "pod-170")
		}, "new", "", []netip.Addr{v4(350), v4(299), v4(170), v4(99)}},
		{"a pod is there after all", func() { pods.gone["pod-350"] = false }, "new", "", []netip.Addr{v4(299), v4(298), v4(170), v4(99)}},
		{"and it is gone", func() {
			pods.gone["pod-350"] = true
			book.Ended("n", "pod-350")
		}, "new", "", []netip.Addr{v4(350), v4(299), v4(170), v4(99)}},
		{"one is promised", func() {
			if _, err := reserveHeld(book, v4(350), owner, "other"); err != nil {
				t.Fatal(err)
			}
		}, "new", "", []netip.Addr{v4(299), v4(298), v4(170), v4(99)}},
		{"it is promised to the pod", func() {}, "other", "", []netip.Addr{v4(350), v4(299), v4(170), v4(99)}},
		{"the promise ends", func() { book.Release(v4(350), "other") }, "new", "", []netip.Addr{v4(350), v4(299), v4(170), v4(99)}},
		{"some get pods", func() {
			for i := range 100 {
				r := record(i, 2)
				r.PodUID = "pod"
				book.Observe(r)
			}
		}, "new", "web-5", []netip.Addr{v4(350), v4(299), v4(170)}},
		{"one is deleted", func() { book.Forget(v4(299), "ip-299", false) }, "new", "", []netip.Addr{v4(350), v4(298), v4(170)}},
	} {
		step.do()
		pods.asked = 0
		looked := 0
		var got []netip.Addr
		for _, record := range book.Held(owner, step.uid, step.podName, 2, false, func(record *Record) (uint64, bool) {
			looked++
			if record.Addr.Less(v4(200)) {
				return 0, true
			}
			return 1, true
		}) {
			got = append(got, record.Addr)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: pod %s has the choice of %v, want %v", step.name, step.uid, got, step.want)
		}
		// Two of each pool, or one more that had a pod of the name or is the pod's own; the pods of
		// addresses that came idle, and once one that turned out to be there, which is asked about again
		// where it is listed.
		if looked > 5 || pods.asked > 4 && at > 0 {
			t.Errorf("%s: the book looked at %d addresses and asked about %d pods", step.name, looked, pods.asked)
		}
	}
}

// The book knows how many addresses a large owner has, without counting them again.
func TestOwnedByALargeOwner(t *testing.T) {
	owner := Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "n", Name: "c", UID: "1"}
	book := New(nil)
	record := func(i int, owner Owner, version uint64) Record {
		return Record{Addr: v4(i), Owner: owner, Policy: Retain, UID: fmt.Sprint("ip-", i), Version: version}
	}
	want := func(what string, v4 int) {
		t.Helper()
		if got4, got6 := book.Owned(owner); got4 != v4 || got6 != 0 {
			t.Errorf("%s: the owner has %d and %d addresses, want %d and 0", what, got4, got6, v4)
		}
	}
	for i := range 2 * largeOwner {
		book.Observe(record(i, owner, 1))
		if i == largeOwner {
			want("at first", largeOwner+1)
		}
	}
	want("with more", 2*largeOwner)
	for i := range largeOwner {
		book.Forget(v4(i), fmt.Sprint("ip-", i), false)
	}
	want("with fewer", largeOwner)
	other := owner
	other.Name = "d"
	book.Observe(record(largeOwner, other, 2))
	want("without one that another took over", largeOwner-1)
	for i := largeOwner; i < 2*largeOwner; i++ {
		book.Forget(v4(i), fmt.Sprint("ip-", i), false)
	}
	want("without any", 0)
	if len(book.large) > 0 {
		t.Errorf("the book remembers %d owners that are gone", len(book.large))
	}
}

// An owner with as many addresses of one family as of the other still has some.
func TestLargeOwnerOfBothFamilies(t *testing.T) {
	owner := Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "n", Name: "c", UID: "1"}
	book := New(nil)
	book.many = 2
	for _, text := range []string{"10.0.0.1", "2001:db8::1", "2001:db8::2"} {
		book.Observe(Record{Addr: netip.MustParseAddr(text), Owner: owner, Policy: Retain, UID: text, Version: 1})
	}
	book.Owned(owner)
	book.Forget(netip.MustParseAddr("2001:db8::2"), "2001:db8::2", false)
	if len(book.large) != 1 {
		t.Errorf("the book remembers %d owners, want the one", len(book.large))
	}
	if v4, v6 := book.Owned(owner); v4 != 1 || v6 != 1 {
		t.Errorf("the owner has %d and %d addresses, want 1 and 1", v4, v6)
	}
}

func TestIsIdle(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	stored := Record{Addr: addr, Owner: owner, Policy: Retain, UID: "object", Version: 1}
	record := func(change func(*Record)) *Record {
		changed := stored
		change(&changed)
		return &changed
	}
	gone := podsAre{gone: []string{"gone"}}
	inPool := []Pool{testPool("a", "10.0.0.1", "10.0.0.2")}
	disabled := []Pool{{Name: "a", Ranges: ranges("10.0.0.1", "10.0.0.2"), Capacity: 2, Disabled: true}}
	for _, test := range []struct {
		name    string
		pools   []Pool
		stored  *Record // nil: the address is free
		promise bool
		pods    Pods
		want    bool
	}{
		{"in no pool", nil, nil, false, nil, false},
		{"free", inPool, nil, false, nil, true},
		{"free in a disabled pool", disabled, nil, false, nil, false},
		{"promised", inPool, nil, true, nil, false},
		{"retained", inPool, &stored, false, nil, true},
		{"retained in a disabled pool", disabled, &stored, false, nil, true},
		{"retained and promised", inPool, &stored, true, nil, false},
		{"not detached yet", inPool, record(func(r *Record) { r.Attached = true }), false, gone, false},
		{"reserved", inPool, record(func(r *Record) { r.Reserved = true }), false, gone, false},
		{"cooling down", inPool, record(func(r *Record) { r.Cooling = true }), false, gone, false},
		{"with a pod", inPool, record(func(r *Record) { r.PodUID = "alive" }), false, gone, false},
		{"with a pod, of which nothing is known", inPool, record(func(r *Record) { r.PodUID = "gone" }), false, nil, false},
		{"with a pod that is gone", inPool, record(func(r *Record) { r.PodUID = "gone" }), false, gone, true},
		{"with a pod that is gone, and not kept", inPool, record(func(r *Record) { r.PodUID, r.Policy = "gone", PodDeleted }), false, gone, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			book := New(test.pods)
			book.SetPools(test.pools)
			if test.stored != nil {
				book.Observe(*test.stored)
			}
			if test.promise {
				want := from(book, "a")
				want.Preferred = []netip.Addr{addr}
				if _, err := book.Reserve(Claimant{Owner: owner, PodUID: "pod"}, []Want{want}); err != nil {
					t.Fatal(err)
				}
			}
			if got := book.IsIdle(addr); got != test.want {
				t.Errorf("IsIdle = %v, want %v", got, test.want)
			}
			// Of what is idle, an owner has what is stored.
			if got, want := book.IsFree(addr), test.want && test.stored == nil; got != want {
				t.Errorf("IsFree = %v, want %v", got, want)
			}
			if test.promise && test.stored == nil {
				book.Release(addr, "pod")
				if !book.IsIdle(addr) {
					t.Error("it is not idle after its release")
				}
			}
		})
	}
}

// The book finds the addresses stored for an owner, and counts the addresses that its
// pods may have.
func TestOwnersAddresses(t *testing.T) {
	web := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	claim := Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "n", Name: "c", UID: "1"}
	mayKeep := func(record *Record) bool { return record.NamespaceUID != "deleted" }
	for _, test := range []struct {
		name   string
		owner  Owner
		record Record
		want   bool // it counts
	}{
		{"retained", web, Record{Owner: web, Policy: Retain}, true},
		{"retained, in a namespace that was deleted", web, Record{Owner: web, Policy: Retain, NamespaceUID: "deleted"}, false},
		{"retained for an earlier owner of the name", web, Record{Owner: uid(web, "0"), Policy: Retain}, false},
		{"kept for an earlier owner of the name", web, Record{Owner: uid(web, "0"), Policy: Never}, true},
		{"kept in a namespace that was deleted", web, Record{Owner: uid(web, "0"), Policy: Never, NamespaceUID: "deleted"}, false},
		{"retained for the first owner of the name", web, Record{Owner: uid(web, ""), Policy: Retain}, true},
		{"of an earlier claim of the name", claim, Record{Owner: uid(claim, "0"), Policy: Retain}, true},
		{"of a claim in a namespace that was deleted", claim, Record{Owner: claim, Policy: Retain, NamespaceUID: "deleted"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			book := New(nil)
			book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.4"), testPool("six", "2001:db8::1", "2001:db8::2")})
			test.record.UID, test.record.Version = "object", 1
			for _, addr := range addrs("10.0.0.1", "10.0.0.2", "2001:db8::1") {
				test.record.Addr = addr
				book.Observe(test.record)
			}
			if v4, v6 := book.Shared(test.owner, mayKeep); v4 != test.want || v6 != test.want {
				t.Errorf("Shared = %t, %t, want both %t", v4, v6, test.want)
			}
			if _, err := book.Reserve(Claimant{Owner: test.owner, PodUID: "pod"}, []Want{from(book, "six")}); err != nil {
				t.Fatal(err)
			}
			if v4, v6 := book.Shared(test.owner, mayKeep); v4 != test.want || !v6 {
				t.Errorf("Shared with a promised IPv6 address = %t, %t, want %t, true", v4, v6, test.want)
			}
			var stored []netip.Addr
			for _, record := range book.RecordsOf(test.owner) {
				stored = append(stored, record.Addr)
			}
			slices.SortFunc(stored, netip.Addr.Compare)
			if want := addrs("10.0.0.1", "10.0.0.2", "2001:db8::1"); !slices.Equal(stored, want) {
				t.Errorf("the records are of %v, want %v", stored, want)
			}
		})
	}
}

// uid returns an owner with another UID.
func uid(owner Owner, uid string) Owner {
	owner.UID = uid
	return owner
}

func TestSameWorkload(t *testing.T) {
	web := Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "n", Name: "web", UID: "1", PodName: "web-0", NodeName: "node"}
	for _, test := range []struct {
		name   string
		change func(*Owner)
		want   bool
	}{
		{"another version", func(o *Owner) { o.APIVersion = "apps/v2beta1" }, true},
		{"another UID", func(o *Owner) { o.UID = "2" }, true},
		{"another group", func(o *Owner) { o.APIVersion = "apps.kruise.io/v1" }, false},
		{"the core group", func(o *Owner) { o.APIVersion = "v1" }, false},
		{"another kind", func(o *Owner) { o.Kind = "DaemonSet" }, false},
		{"another namespace", func(o *Owner) { o.Namespace = "m" }, false},
		{"another name", func(o *Owner) { o.Name = "db" }, false},
		{"another pod", func(o *Owner) { o.PodName = "web-1" }, false},
		{"another node", func(o *Owner) { o.NodeName = "other" }, false},
	} {
		other := web
		test.change(&other)
		if got := web.SameWorkload(other); got != test.want {
			t.Errorf("%s: SameWorkload = %v, want %v", test.name, got, test.want)
		}
	}
	one, two := web, web
	one.APIVersion, two.APIVersion = "v1", "v2"
	if !one.SameWorkload(two) {
		t.Error("owners of two versions of the core group are not the same")
	}
}

// Observe says when a pod of the owner may newly have the address.
func TestObserve(t *testing.T) {
	owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	other := uid(owner, "2")
	book := New(nil)
	for i, step := range []struct {
		name   string
		record Record
		want   bool
	}{
		{"a new record with a pod", Record{Version: 2, Owner: owner, PodUID: "pod"}, false},
		{"its pod is gone", Record{Version: 4, Owner: owner}, true},
		{"it is the same", Record{Version: 5, Owner: owner}, false},
		{"an old state of it", Record{Version: 3, Owner: other}, false},
		{"it goes to another owner", Record{Version: 6, Owner: other}, true},
		{"it must be detached", Record{Version: 7, Owner: owner, Attached: true}, false},
		{"it is detached", Record{Version: 8, Owner: owner}, true},
		{"an administrator reserves it", Record{Version: 9, Owner: owner, Reserved: true}, false},
		{"it cools down", Record{Version: 10, Owner: owner, Cooling: true}, false},
	} {
		step.record.Addr, step.record.UID, step.record.Policy = v4(1), "object", Retain
		if got := book.Observe(step.record); got != step.want {
			t.Errorf("step %d, %s: Observe = %v, want %v", i, step.name, got, step.want)
		}
	}
}

func TestPoolOf(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.4"), testPool("b", "10.0.0.5", "10.0.0.6")})
	for text, want := range map[string]string{"10.0.0.4": "a", "10.0.0.5": "b", "10.0.0.7": ""} {
		if got, ok := book.PoolOf(netip.MustParseAddr(text)); got != want || ok != (want != "") {
			t.Errorf("%s is of pool %q, %v; want %q", text, got, ok, want)
		}
	}
}

// A pod that wants a certain freed address and any address does not get the same one
// twice.
func TestCertainFreedAddress(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.2")})
	for _, pod := range []string{"x", "y"} {
		if _, _, err := reserveFree(book, []string{"a"}, pod); err != nil {
			t.Fatal(err)
		}
	}
	book.Release(netip.MustParseAddr("10.0.0.1"), "x")
	book.Release(netip.MustParseAddr("10.0.0.2"), "y")
	taken, err := book.Reserve(Claimant{PodUID: "z"}, []Want{from(book, "a"), from(book, "a").in(exactly("10.0.0.1"))})
	if err != nil {
		t.Fatal(err)
	}
	if got := []netip.Addr{taken[0].Addr, taken[1].Addr}; !slices.Equal(got, addrs("10.0.0.2", "10.0.0.1")) {
		t.Errorf("got %v", got)
	}
}

// The book returns records as it received them.
func TestRecord(t *testing.T) {
	record := Record{
		Addr: netip.MustParseAddr("10.0.0.1"), Pool: "pool",
		Owner:   Owner{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "namespace", Name: "name", UID: "owner", PodName: "stands for", NodeName: "one"},
		PodName: "pod", PodUID: "holder", TwinName: "twin", TwinUID: "moves", OfService: true, LastPod: "before", Index: 3, Policy: Never, RetainFor: time.Hour,
		Reserved: true, Cooling: true, Attached: true, UID: "object", Version: 7, Created: time.Unix(5, 9),
		NamespaceUID: "tenant", Node: "node1", LastNode: NodeReference{"node2", "2"}, ReleasedAt: time.Unix(6, 0), Since: time.Unix(7, 0),
	}
	fields := reflect.ValueOf(record)
	for i := range fields.NumField() {
		if fields.Field(i).IsZero() {
			t.Fatalf("the test leaves out %s", fields.Type().Field(i).Name)
		}
	}
	book := New(nil)
	book.Observe(record)
	if got, _ := book.Stored(record.Addr); got != record {
		t.Errorf("got  %+v\nwant %+v", got, record)
	}
}

// A range may end with the last address of the address space.
func TestRangeAtTheEndOfTheAddressSpace(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "255.255.255.254", "255.255.255.255")})
	for range 2 {
		if _, _, err := reserveFree(book, []string{"a"}, "pod"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := reserveFree(book, []string{"a"}, "pod"); err == nil {
		t.Error("a third address was found in a range of two")
	}
}

func TestHeldBy(t *testing.T) {
	set := Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "n", Name: "web", UID: "1", PodName: "web-0"}
	again := set
	again.UID = "2"
	awaited := set
	awaited.UID = ""
	deployment := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "n", Name: "web", UID: "1"}
	for _, test := range []struct {
		name   string
		record Record
		owner  Owner
		want   bool
	}{
		{"the pod's own", Record{Owner: set, PodUID: "new"}, set, true},
		{"PodDeleted keeps nothing for the next pod", Record{Owner: set, PodUID: "old"}, set, false},
		{"taken before any pod asked", Record{Owner: set}, set, true},
		{"the same, of an owner that was deleted and made again", Record{Owner: set}, again, false},
		{"to be detached first", Record{Owner: set, Policy: Retain, Attached: true}, set, false},
		{"attached to the node of the pod", Record{Owner: set, Policy: Retain, Attached: true, PodUID: "new"}, set, true},
		{"attached to the node of the last pod of the name", Record{Owner: set, Policy: Retain, Attached: true, PodUID: "old"}, set, true},
		{"cooling down", Record{Owner: set, Policy: Retain, Cooling: true}, set, false},
		{"retained", Record{Owner: set, Policy: Retain}, set, true},
		{"of the pod that had the name before", Record{Owner: set, Policy: Retain, PodUID: "old"}, set, true},
		{"retained for a set that was deleted and made again", Record{Owner: set, Policy: Retain}, again, false},
		{"waiting for the first set of that name", Record{Owner: awaited, Policy: Retain}, again, true},
		{"the same, preallocated", Record{Owner: awaited}, again, true},
		{"Never outlives the set", Record{Owner: set, Policy: Never}, again, true},
		{"shared, given back", Record{Owner: deployment, Policy: Retain}, deployment, true},
		{"shared, of a pod that may be alive", Record{Owner: deployment, Policy: Retain, PodUID: "old"}, deployment, false},
		{"shared, of a pod that is gone", Record{Owner: deployment, Policy: Retain, PodUID: "gone"}, deployment, true},
		{"PodDeleted, of a pod that is gone", Record{Owner: deployment, PodUID: "gone"}, deployment, false},
		{"reserved by an administrator", Record{Owner: set, Policy: Never, Reserved: true}, set, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := entryOf(test.record).heldBy(test.owner, "new", func(e *entry) bool { return e.stored.podUID == "gone" }); got != test.want {
				t.Errorf("heldBy = %v, want %v", got, test.want)
			}
		})
	}
}

// podsAre says of pods by their UIDs that they are gone or lost.
type podsAre struct{ gone, lost []string }

func (p podsAre) Gone(r *Record) bool { return slices.Contains(p.gone, r.PodUID) }
func (p podsAre) Lost(r *Record) bool { return slices.Contains(p.lost, r.PodUID) }

// A scheduler that lost a conflict reads the FloatingIP, and sees its deletion before it
// calls Observe with the answer.
func TestAnswerOlderThanDeletion(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.4")})
	addr, _, err := reserveFree(book, []string{"a"}, "pod")
	if err != nil {
		t.Fatal(err)
	}
	answer := Record{Addr: addr, UID: "object", Version: 5, PodUID: "pod"}
	book.Observe(answer)
	book.Forget(addr, "object", false)
	book.Observe(answer)
	book.Release(addr, "pod")
	if got := book.Counts("a"); got.Free != got.Capacity {
		t.Errorf("an address that is deleted stays in the book: %+v", got)
	}
}

func entryOf(record Record) *entry {
	e := &entry{addr: record.Addr}
	e.store(&record)
	return e
}

// The book lists what pods of a kind hold or what has to be detached, not what is promised to them
// or retained.
func TestRecordsHeldBy(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{testPool("a", "10.0.0.1", "10.0.0.9")})
	for i, uid := range []string{"", "one", "two"} {
		book.Observe(Record{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Pool: "a", Owner: Owner{Kind: "Pod", Name: "web"}, PodUID: uid, UID: "object", Version: 1})
	}
	book.Observe(Record{Addr: netip.MustParseAddr("10.0.0.9"), Pool: "a", Owner: Owner{Kind: "Pod", Name: "web"}, LastPod: "last", Attached: true, UID: "object", Version: 1})
	if _, _, err := reserveFree(book, []string{"a"}, "two"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		is   func(*Record) bool
		want []string
	}{
		{func(*Record) bool { return true }, []string{"", "one", "two"}},
		{func(r *Record) bool { return r.PodUID == "two" }, []string{"two"}},
		{func(r *Record) bool { return r.LastPod == "last" }, []string{""}},
		{func(*Record) bool { return false }, nil},
	} {
		var got []string
		for _, record := range book.HeldBy(test.is) {
			got = append(got, record.PodUID)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("HeldBy() = %q, want %q", got, test.want)
		}
	}
}
