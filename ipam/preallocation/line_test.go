// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// stock has the free addresses of pools. A change helps the requests that name its pool.
type stock map[netip.Addr]string

func (s stock) Helps(change ipam.Change) func(*ipam.Request, ipam.Lack) bool {
	return func(request *ipam.Request, lack ipam.Lack) bool {
		return lack == ipam.LackAddress && slices.Contains(request.Pools, change.Pool)
	}
}

func (s stock) IsFree(addr netip.Addr) bool { return s[addr] != "" }

// queue is a line and the owners that it woke, in order.
type queue struct {
	*line
	stock stock
	woken []string
	// freed counts the addresses that came free.
	freed byte
}

func newQueue() *queue {
	q := &queue{stock: stock{}}
	q.line = newLine(q.stock, func(key Key) { q.woken = append(q.woken, key.Name) })
	return q
}

func named(name string) Key { return Key{KindClaim, "shop", name} }

func from(pools ...string) []ipam.Request {
	var r ipam.Request
	r.Pools = pools
	return []ipam.Request{r}
}

// free has an address of a pool come free.
func (q *queue) free(pool string) netip.Addr {
	q.freed++
	addr := netip.AddrFrom4([4]byte{10, 0, 0, q.freed})
	q.stock[addr] = pool
	q.changed(ipam.Change{Pool: pool, Addr: addr})
	return addr
}

// look is one look at an owner. In the look do is called.
func (q *queue) look(name string, do func()) {
	q.begin(named(name))
	do()
	q.end(named(name))
}

// takes is a look in which an owner takes an address and lacks more.
func (q *queue) takes(name string, addr netip.Addr, more []ipam.Request) func() {
	return func() {
		q.try(named(name), nil)
		delete(q.stock, addr)
		q.wait(named(name), more, true)
	}
}

// stays is a look at an owner that still waits.
func (q *queue) stays(name string) { q.look(name, func() { q.stay(named(name)) }) }

// join is a look at an owner that finds too few addresses.
func (q *queue) join(name string, requests []ipam.Request) {
	q.look(name, func() { q.short(name, requests, nothing) })
}

// short is an attempt of an owner that finds too few addresses. In the attempt do is called.
func (q *queue) short(name string, requests []ipam.Request, do func()) {
	q.try(named(name), requests)
	do()
	q.wait(named(name), requests, false)
}

func nothing() {}

func (q *queue) want(t *testing.T, what string, names ...string) {
	t.Helper()
	if diff := cmp.Diff(names, q.woken); diff != "" {
		t.Errorf("%s: woken are %s", what, diff)
	}
	q.woken = nil
}

func TestLine(t *testing.T) {
	q := newQueue()
	for _, name := range []string{"a", "b", "c"} {
		q.join(name, from("web"))
	}
	q.join("d", from("web", "db"))

	q.want(t, "before anything came free")
	q.free("other")
	q.want(t, "an address of a pool that nobody waits for")
	db := q.free("db")
	q.want(t, "an address of one owner's pool", "d")
	q.look("d", q.takes("d", db, nil))
	q.want(t, "when it is used")

	first, second := q.free("web"), q.free("web")
	q.want(t, "two addresses", "a", "b")
	q.stays("a")
	q.want(t, "the first cannot use it", "c")
	q.look("c", q.takes("c", first, from("web")))
	q.want(t, "the third uses it")
	q.look("b", q.takes("b", second, from("web")))
	q.free("web")
	q.want(t, "after two got one, the first that got none", "a")
	q.free("web")
	q.want(t, "then the one that got one first", "c")
	q.free("web")
	q.free("web")
	q.want(t, "nobody is woken twice", "b")
	for _, name := range []string{"a", "b", "c"} {
		q.stays(name)
	}
	q.want(t, "what all have seen is offered to nobody")
}

// An address that comes free while an owner's attempt is under way is offered to it again.
func TestLineDuringAnAttempt(t *testing.T) {
	q := newQueue()
	q.join("a", from("web"))
	q.look("a", func() {
		q.short("a", from("web"), func() {
			q.free("web")
			q.want(t, "in its attempt")
		})
	})
	q.want(t, "after it", "a")
	q.look("new", func() { q.short("new", from("db"), func() { q.free("db") }) })
	q.want(t, "after its first attempt", "new")

	q.join("b", from("web"))
	q.look("a", func() { q.short("a", from("web"), func() { q.free("web") }) })
	q.want(t, "another that waits is first", "b")
}

// An owner whose attempt fails for another reason than a lack of addresses is not woken for what it
// gives back.
func TestLineOfItsOwn(t *testing.T) {
	q := newQueue()
	q.look("a", func() {
		q.try(named("a"), from("web"))
		q.free("web")
		q.wait(named("a"), nil, false)
	})
	q.want(t, "after it")
}

// An owner that leaves the line, or is looked at without an attempt, leaves its offer to the next
// one.
func TestLineGoesOn(t *testing.T) {
	for name, leave := range map[string]func(q *queue){
		"it waits no longer":  func(q *queue) { q.look("a", nothing) },
		"it makes no attempt": func(q *queue) { q.stays("a") },
		"it still lacks one":  func(q *queue) { q.join("a", from("web")) },
		"it took another":     func(q *queue) { q.look("a", q.takes("a", netip.Addr{}, from("web"))) },
	} {
		q := newQueue()
		q.join("a", from("web"))
		q.join("b", from("web"))
		q.free("web")
		q.want(t, name, "a")
		leave(q)
		q.want(t, name, "b")
		q.stays("b")
		q.want(t, name)
	}
}

// The look of another owner does not pass on an offer that an owner looks at.
func TestLineInALook(t *testing.T) {
	q := newQueue()
	for _, name := range []string{"a", "b", "c"} {
		q.join(name, from("web"))
	}
	q.free("web")
	q.want(t, "when it comes free", "a")
	q.look("a", func() {
		q.stays("c")
		q.want(t, "while the first looks")
	})
	q.want(t, "then", "b")
}

// An address that comes free again, as one does that was reserved in vain, is offered to one owner
// only, and goes on to those that have not looked since.
func TestLineOfOneAddress(t *testing.T) {
	q := newQueue()
	for _, name := range []string{"a", "b"} {
		q.join(name, from("web"))
	}
	addr := q.free("web")
	q.want(t, "when it comes free", "a")
	again := func() { q.changed(ipam.Change{Pool: "web", Addr: addr}) }
	again()
	q.want(t, "when it is offered already")
	q.look("a", func() {
		q.try(named("a"), from("web"))
		again()
		q.wait(named("a"), nil, false)
	})
	q.want(t, "reserved in vain by an owner that leaves the line", "b")
	q.stays("b")
	q.want(t, "when all have looked since")
}

// A change without an address stands as long as it helps anybody.
func TestLineWithoutAddress(t *testing.T) {
	q := newQueue()
	q.join("a", from("web"))
	q.join("b", from("web"))
	q.changed(ipam.Change{Pool: "web", Namespace: "shop", More: 1})
	q.stays("a")
	q.stays("b")
	q.want(t, "each once", "a", "b")
}

// At random: no address is free while an owner waits for one of its pool and has not looked since
// it came free.
func TestLineAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	wants := [][]string{{"web"}, {"db"}, {"web", "db"}}
	for range 200 {
		q := newQueue()
		// came has the number of the change by which an address came free.
		came := map[netip.Addr]uint64{}
		serve := func() {
			name := q.woken[0]
			q.woken = q.woken[1:]
			q.look(name, func() {
				w := q.waiters[named(name)]
				if w == nil {
					return // It left the line.
				}
				q.stay(w.key)
				if random.IntN(4) == 0 {
					return // It makes no attempt.
				}
				for _, addr := range slices.SortedFunc(maps.Keys(q.stock), netip.Addr.Compare) {
					if slices.Contains(w.requests[0].Pools, q.stock[addr]) {
						more := w.requests
						if random.IntN(2) == 0 {
							more = nil
						}
						q.takes(name, addr, more)()
						return
					}
				}
			})
		}
		frees := func() {
			addr := q.free(wants[random.IntN(2)][0])
			came[addr] = q.changes
		}
		for range 100 {
			name := strconv.Itoa(random.IntN(12))
			switch random.IntN(6) {
			case 0, 1:
				q.look(name, func() {
					q.short(name, from(wants[random.IntN(3)]...), func() {
						for range random.IntN(2) {
							frees()
						}
					})
				})
			case 2:
				q.look(name, nothing)
			case 3, 4:
				frees()
			case 5:
				if len(q.woken) > 0 {
					serve()
				}
			}
		}
		for len(q.woken) > 0 {
			serve()
		}
		for addr, pool := range q.stock {
			for _, w := range q.order {
				if slices.Contains(w.requests[0].Pools, pool) && w.seen < came[addr] {
					t.Fatalf("%s of pool %s is free, and %s has not looked since it came free", addr, pool, w.key.Name)
				}
			}
		}
		if len(q.waiters) != len(q.order) || !slices.IsSortedFunc(q.order, byTurn) {
			t.Fatalf("of %d waiters %d are in order", len(q.waiters), len(q.order))
		}
	}
}
