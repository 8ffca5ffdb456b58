// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

// An address rests as long as the pool allows before somebody else gets it.
func TestFreedAddressRestsLongest(t *testing.T) {
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

// A pool too large to count gives addresses and takes no memory for free ones.
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

// A pool that cannot be used up remembers no address that was freed, and begins
// again should it come to its end.
func TestInexhaustiblePool(t *testing.T) {
	book := New(nil)
	book.SetPools([]Pool{{Name: "six", Ranges: ranges("2001:db8::1", "2001:db8::4"), Capacity: Unlimited}})
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

// An address at rest is not given to two wants of a pod.
func TestCertainAddressAtRest(t *testing.T) {
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
		PodName: "pod", PodUID: "holder", LastPod: "before", Index: 3, Policy: Never,
		Reserved: true, Cooling: true, Attached: true, UID: "object", Version: 7, Created: time.Unix(5, 9),
		NamespaceUID: "tenant",
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

// The last address of the address space ends a range, too.
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
			if got := entryOf(test.record).heldBy(test.owner, "new", podsAre{gone: []string{"gone"}}); got != test.want {
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
