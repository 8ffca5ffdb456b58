// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/seedtest"
)

var stateNames = map[state]string{attempting: "attempting", overtaken: "overtaken", short: "short", woken: "woken", elsewhere: "elsewhere"}

// TestLineStates checks the table in the documentation of line.
func TestLineStates(t *testing.T) {
	web := ipam.Change{Pool: "web", Addr: netip.MustParseAddr("10.0.70.2")}
	now := time.Unix(0, 0)
	pod, request := waitingPod("a", 0, "web")
	other, otherRequest := waitingPod("b", 10, "db")
	// ways lead to each state.
	ways := map[state]func(l *line){
		attempting: func(l *line) { l.begin(pod, request, now) },
		overtaken: func(l *line) {
			l.begin(pod, request, now)
			l.changed(web, now)
		},
		short: func(l *line) {
			l.begin(pod, request, now)
			l.short(pod.UID, ipam.LackAddress, now)
		},
		woken: func(l *line) {
			l.begin(pod, request, now)
			l.short(pod.UID, ipam.LackAddress, now)
			l.changed(web, now)
		},
		elsewhere: func(l *line) {
			l.begin(pod, request, now)
			l.begin(other, otherRequest, now)
		},
	}
	const gone = state(99)
	for _, event := range []struct {
		name string
		do   func(l *line)
		want map[state]state
		// again: a pod that was woken before, and still is, is woken once more.
		again bool
	}{
		{"an attempt begins", func(l *line) { l.begin(pod, request, now) },
			map[state]state{attempting: attempting, overtaken: attempting, short: attempting, woken: attempting, elsewhere: attempting}, false},
		{"one of another pod begins", func(l *line) { l.begin(other, otherRequest, now) },
			map[state]state{attempting: elsewhere, overtaken: elsewhere, short: short, woken: woken, elsewhere: elsewhere}, false},
		{"an address is lacking", func(l *line) { l.short(pod.UID, ipam.LackAddress, now) },
			map[state]state{attempting: short, overtaken: woken, short: short, woken: woken, elsewhere: short}, false},
		{"something else is lacking", func(l *line) {
			l.changed(ipam.Change{Pool: "db", Addr: web.Addr}, now)
			l.short(pod.UID, ipam.LackOwner, now)
		}, map[state]state{attempting: short, overtaken: woken, short: woken, woken: woken, elsewhere: woken}, false},
		{"the same is lacking after another change", func(l *line) {
			l.changed(ipam.Change{Pool: "db", Addr: web.Addr}, now)
			l.short(pod.UID, ipam.LackAddress, now)
		}, map[state]state{attempting: short, overtaken: woken, short: short, woken: woken, elsewhere: woken}, false},
		{"a change may help", func(l *line) { l.changed(web, now) },
			map[state]state{attempting: overtaken, overtaken: overtaken, short: woken, woken: woken, elsewhere: elsewhere}, false},
		{"everything changes", func(l *line) { l.changed(ipam.Change{Everything: true}, now) },
			map[state]state{attempting: overtaken, overtaken: overtaken, short: woken, woken: woken, elsewhere: elsewhere}, false},
		{"another change", func(l *line) { l.changed(ipam.Change{Pool: "db", Addr: web.Addr}, now) },
			map[state]state{attempting: attempting, overtaken: overtaken, short: short, woken: woken, elsewhere: elsewhere}, false},
		{"time has passed", func(l *line) { l.expire(now.Add(beginsWithin)) },
			map[state]state{attempting: attempting, overtaken: overtaken, short: short, woken: short, elsewhere: elsewhere}, false},
		{"time has passed twice", func(l *line) { l.expire(now.Add(beginsWithin)); l.expire(now.Add(2 * beginsWithin)) },
			map[state]state{attempting: attempting, overtaken: overtaken, short: short, woken: woken, elsewhere: elsewhere}, true},
		{"outdated, and time has passed", func(l *line) { l.outdated(pod.UID, now); l.expire(now.Add(triesAgain)) },
			map[state]state{attempting: woken, overtaken: woken, short: woken, woken: woken, elsewhere: woken}, false},
		{"what a group gave back", func(l *line) { trial := web; trial.Trial = true; l.changed(trial, now) },
			map[state]state{attempting: overtaken, overtaken: overtaken, short: woken, woken: woken, elsewhere: elsewhere}, false},
		{"reserved", func(l *line) { l.reserved(pod.UID, nil, false, now) },
			map[state]state{attempting: gone, overtaken: gone, short: gone, woken: gone, elsewhere: gone}, false},
		{"gone", func(l *line) { l.gone(pod.UID, now) },
			map[state]state{attempting: gone, overtaken: gone, short: gone, woken: gone, elsewhere: gone}, false},
	} {
		for from, way := range ways {
			l := newLine(&queue{free: true})
			way(l)
			if got := l.pods[pod.UID].state; got != from {
				t.Fatalf("the pod is %s and not %s", stateNames[got], stateNames[from])
			}
			clear(l.wake)
			event.do(l)
			got := gone
			if w := l.pods[pod.UID]; w != nil {
				got = w.state
			}
			if want := event.want[from]; got != want {
				t.Errorf("%s: from %s to %s, want %s", event.name, stateNames[from], stateNames[got], stateNames[want])
			}
			if _, wakes := l.wake[pod.UID]; wakes != (got == woken && (from != woken || event.again)) {
				t.Errorf("%s: from %s to %s: to be woken: %v", event.name, stateNames[from], stateNames[got], wakes)
			}
		}
	}

	// An attempt that left out nodes and then failed for another reason.
	for _, test := range []struct {
		name   string
		change ipam.Change
		want   state
	}{
		{"an idle address of the owner's", ipam.Change{Owner: &request.Owner, Addr: web.Addr}, woken},
		{"everything changes", ipam.Change{Everything: true}, woken},
		{"another pool", ipam.Change{Pool: "db"}, elsewhere},
	} {
		l := newLine(&queue{free: true})
		l.begin(pod, request, now)
		l.narrowed(pod.UID, now)
		l.begin(other, otherRequest, now)
		l.changed(test.change, now)
		if got := l.pods[pod.UID].state; got != test.want {
			t.Errorf("on fewer nodes: %s: %s, want %s", test.name, stateNames[got], stateNames[test.want])
		}
		l.begin(pod, request, now)
		l.begin(other, otherRequest, now)
		l.changed(test.change, now)
		if got := l.pods[pod.UID].state; got != elsewhere {
			t.Errorf("on all nodes: %s: %s", test.name, stateNames[got])
		}
	}

	for _, soon := range []bool{true, false} {
		l := newLine(&queue{free: true})
		l.begin(pod, request, now)
		l.narrowed(pod.UID, now)
		later := now.Add(endsWithin)
		if soon {
			l.changed(ipam.Change{Everything: true}, now)
			l.expire(later)
		} else {
			l.expire(later)
			l.changed(ipam.Change{Everything: true}, later)
		}
		if got := l.pods[pod.UID].state; got != woken {
			t.Errorf("on fewer nodes, and no other pod is tried, changed during the attempt %v: %s", soon, stateNames[got])
		}
		l.expire(later.Add(beginsWithin))
		if got := l.pods[pod.UID].state; got != short {
			t.Errorf("on fewer nodes, and woken but not tried, changed during the attempt %v: %s", soon, stateNames[got])
		}
	}

	// With an offer, an attempt without a report ends after endsWithin.
	for _, test := range []struct {
		name string
		do   func(l *line)
		want state
	}{
		{"attempting", func(*line) {}, elsewhere},
		{"overtaken", func(l *line) { l.changed(web, now) }, elsewhere},
		{"short", func(l *line) { l.short(pod.UID, ipam.LackAddress, now) }, short},
	} {
		l := newLine(&queue{free: true})
		ways[woken](l)
		l.begin(pod, request, now)
		test.do(l)
		l.expire(now.Add(endsWithin))
		if got := l.pods[pod.UID].state; got != test.want || l.pods[pod.UID].offer != nil {
			t.Errorf("%s: an attempt ends as %s, with offer %v", test.name, stateNames[got], l.pods[pod.UID].offer)
		}
	}
}

// fixture is pools, pods that want addresses, and a scheduler that tries them one at
// a time.
type fixture struct {
	t    *testing.T
	now  time.Time
	line *line

	free     map[string][]netip.Addr
	retained map[netip.Addr]string // by owner
	limits   map[string]int        // how many more the owner may have; not there: as many as it likes
	home     map[netip.Addr]string
	pods     map[types.UID]*worldPod
	active   []types.UID
	untold   []ipam.Change
	attempts int
	placed   int
	// between is done between any two steps.
	between func()
}

type worldPod struct {
	pod     *v1.Pod
	request ipam.Request
	pools   []string
	room    map[string]bool // pools whose nodes have room for the pod
	n       int
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{
		t: t, now: time.Unix(0, 0), between: func() {},
		free: map[string][]netip.Addr{}, retained: map[netip.Addr]string{}, limits: map[string]int{},
		home: map[netip.Addr]string{}, pods: map[types.UID]*worldPod{},
	}
	w.line = newLine(w)
	return w
}

func ownerNamed(name string) *ipam.Owner {
	return &ipam.Owner{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
}

func (w *fixture) create(name, owner string, n int, pools ...string) *worldPod {
	p := &worldPod{
		pod:     &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}},
		request: ipam.Request{Request: podrequest.Request{Name: name, UID: name, Pools: pools, Parts: make([]ipam.Part, n)}, Owner: *ownerNamed(owner)},
		pools:   pools, room: map[string]bool{}, n: n,
	}
	for _, pool := range pools {
		p.room[pool] = true
	}
	w.pods[p.pod.UID] = p
	w.active = append(w.active, p.pod.UID)
	return p
}

// Helps acts like ipam.IPAM; owners with a limit act like claims.
func (w *fixture) Helps(change ipam.Change) func(*ipam.Request, ipam.Lack) bool {
	return func(request *ipam.Request, lack ipam.Lack) bool {
		limit, limited := w.limits[request.Owner.Name]
		if change.Owner != nil {
			return request.Owner.SameWorkload(*change.Owner) && (change.Addr.IsValid() || (lack&ipam.LackOwner != 0 || change.More == 0) &&
				(!limited || slices.ContainsFunc(request.Pools, w.hasFree)))
		}
		if limited && limit > 0 {
			lack |= ipam.LackAddress
		}
		return lack&ipam.LackAddress != 0 && slices.Contains(request.Pools, change.Pool)
	}
}

func (w *fixture) Sources(*ipam.Request, *pools.Snapshot) *pools.Reach { return pools.NewReach() }

func (w *fixture) IsIdle(addr netip.Addr) bool {
	_, retained := w.retained[addr]
	return retained || slices.Contains(w.free[w.home[addr]], addr)
}

func (w *fixture) hasFree(pool string) bool { return len(w.free[pool]) > 0 }

// giveBack frees an address; the line is told of it later.
func (w *fixture) giveBack(addr netip.Addr) {
	pool := w.home[addr]
	w.free[pool] = append(w.free[pool], addr)
	w.untold = append(w.untold, ipam.Change{Pool: pool, Addr: addr})
}

func (w *fixture) retain(addr netip.Addr, owner string) {
	w.retained[addr] = owner
	w.untold = append(w.untold, ipam.Change{Owner: ownerNamed(owner), Addr: addr, More: 1})
}

func (w *fixture) tell() {
	for len(w.untold) > 0 {
		change := w.untold[0]
		w.untold = w.untold[1:]
		w.line.changed(change, w.now)
	}
}

// try makes one attempt to schedule a pod.
func (w *fixture) try(p *worldPod) {
	uid := p.pod.UID
	w.attempts++
	w.line.begin(p.pod, p.request, w.now)
	w.between()
	// Filter, node by node.
	for _, pool := range p.pools {
		if !p.room[pool] {
			continue
		}
		if lack := w.lack(p, pool); lack != 0 {
			w.between()
			w.line.short(uid, lack, w.now)
			w.between()
			continue
		}
		// Reserve.
		w.between()
		if w.lack(p, pool) != 0 {
			w.active = append(w.active, uid) // tried again
			return
		}
		taken, kept := w.take(p, pool)
		w.between()
		w.line.reserved(uid, taken, kept, w.now)
		w.placed++
		delete(w.pods, uid)
		return
	}
}

// lack returns the Lack of the pod on a node of a pool; 0: none.
func (w *fixture) lack(p *worldPod, pool string) ipam.Lack {
	owner := p.request.Owner.Name
	wanted := p.n
	for addr, of := range w.retained {
		if of == owner && w.home[addr] == pool {
			wanted--
		}
	}
	limit, limited := w.limits[owner]
	switch {
	case wanted <= 0:
		return 0
	case len(w.free[pool]) < wanted:
		return ipam.LackAddress
	case limited && limit < wanted:
		return ipam.LackOwner
	}
	return 0
}

// take gives the pod its addresses; kept: all were its owner's.
func (w *fixture) take(p *worldPod, pool string) (taken []netip.Addr, kept bool) {
	owner := p.request.Owner.Name
	for addr, of := range w.retained {
		if of == owner && w.home[addr] == pool && len(taken) < p.n {
			taken = append(taken, addr)
			delete(w.retained, addr)
		}
	}
	wanted := p.n - len(taken)
	taken = append(taken, w.free[pool][:wanted]...)
	w.free[pool] = w.free[pool][wanted:]
	if _, limited := w.limits[owner]; limited {
		w.limits[owner] -= wanted
	}
	return taken, wanted == 0
}

// activate puts the pods that the line wakes into the scheduler's queue.
func (w *fixture) activate() {
	var names []types.UID
	for uid := range w.line.wake {
		names = append(names, uid)
	}
	slices.Sort(names)
	clear(w.line.wake)
	for _, uid := range names {
		if !slices.Contains(w.active, uid) {
			w.active = append(w.active, uid)
		}
	}
}

// step tries the next pod of the scheduler's queue.
func (w *fixture) step() {
	uid := w.active[0]
	w.active = w.active[1:]
	if p := w.pods[uid]; p != nil {
		w.try(p)
	}
}

// settle tries pods until nothing happens any more.
func (w *fixture) settle() {
	for {
		w.tell()
		w.activate()
		if len(w.active) > 0 {
			w.step()
			continue
		}
		if w.line.due.IsZero() && len(w.untold) == 0 {
			return
		}
		if w.now.Before(w.line.due) {
			w.now = w.line.due
		}
		w.line.expire(w.now)
	}
}

func (w *fixture) pool(name string, number, size int) (addrs []netip.Addr) {
	addr := netip.AddrFrom4([4]byte{10, byte(number), 0, 1})
	for range size {
		w.home[addr] = name
		addrs = append(addrs, addr)
		addr = addr.Next()
	}
	return addrs
}

// TestAttemptsPerAddress counts how often a pod is tried for each address that
// comes free while many wait.
func TestAttemptsPerAddress(t *testing.T) {
	const pods, freed = 500, 100
	for _, test := range []struct {
		name string
		// before prepares the world before the pods come; each frees one address.
		before func(w *fixture)
		each   func(w *fixture, addr netip.Addr)
		atOnce bool
		want   int
	}{
		{name: "of a full pool", each: (*fixture).giveBack, want: freed},
		{name: "of a full pool, all at once", each: (*fixture).giveBack, atOnce: true, want: freed},
		{name: "retained for their owner", each: func(w *fixture, addr netip.Addr) { w.retain(addr, "app") }, want: freed},
		{name: "retained for their owner, all at once", each: func(w *fixture, addr netip.Addr) { w.retain(addr, "app") }, atOnce: true, want: freed},
		{
			name:   "of an owner that has all it may have",
			before: func(w *fixture) { w.limits["app"] = 0 },
			each: func(w *fixture, addr netip.Addr) {
				w.limits["app"]++
				w.giveBack(addr)
				w.untold = append(w.untold, ipam.Change{Owner: ownerNamed("app"), More: 1})
			},
			want: freed,
		},
		{
			name: "of an owner that may have more, it is not known how many",
			before: func(w *fixture) {
				w.limits["app"] = 0
				w.free["web"] = w.pool("web", 0, freed)
			},
			each: func(w *fixture, addr netip.Addr) {
				if w.limits["app"]++; w.limits["app"] == freed {
					w.untold = append(w.untold, ipam.Change{Owner: ownerNamed("app")})
				}
			},
			atOnce: true, want: 2*freed + 1,
		},
		{
			name: "of which a newcomer takes each before who was woken",
			each: func(w *fixture, addr netip.Addr) {
				w.giveBack(addr)
				w.tell()
				w.free["web"] = nil
			},
			want: freed,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFixture(t)
			addrs := w.pool("web", 0, freed)
			if test.before != nil {
				test.before(w)
			}
			for i := range pods {
				w.create(fmt.Sprintf("app-%03d", i), "app", 1, "web")
			}
			w.settle()
			if w.attempts != pods || w.placed != 0 {
				t.Fatalf("%d attempts placed %d pods before anything came free", w.attempts, w.placed)
			}
			w.attempts = 0
			for _, addr := range addrs {
				test.each(w, addr)
				if !test.atOnce {
					w.settle()
				}
			}
			w.settle()
			t.Logf("%d attempts for %d addresses placed %d pods", w.attempts, freed, w.placed)
			if w.attempts > test.want {
				t.Errorf("%d attempts for %d addresses, want no more than %d", w.attempts, freed, test.want)
			}
			if left := len(w.free["web"]) + len(w.retained); left > 0 {
				t.Errorf("%d addresses are still free", left)
			}
		})
	}
}

// TestNobodyWaitsInVain makes random changes between the steps of attempts, and then
// checks that no pod waits that could be placed.
func TestNobodyWaitsInVain(t *testing.T) {
	base := seedtest.Seed(t)
	for i := range seedtest.Draws(t, 400, 2000) {
		if inVain(t, base+i); t.Failed() {
			t.Fatalf("BERTH_TEST_SEED=%d repeats this world first", base+i)
		}
	}
}

func inVain(t *testing.T, seed uint64) {
	w := newFixture(t)
	random := rand.New(rand.NewPCG(seed, 0))
	pools := []string{"web", "db", "mail"}
	var used []netip.Addr
	for i, pool := range pools {
		used = append(used, w.pool(pool, i, 4)...)
	}
	owners := []string{"app", "shop", "jobs"}
	w.limits["jobs"] = random.IntN(3)
	made := 0
	drop := func(addr netip.Addr) {
		used = slices.DeleteFunc(used, func(a netip.Addr) bool { return a == addr })
	}
	event := func() {
		switch random.IntN(10) {
		case 0, 1: // a new pod
			made++
			n := 1 + random.IntN(6)/5
			p := w.create(fmt.Sprintf("pod-%d", made), owners[random.IntN(len(owners))], n, pools[:1+random.IntN(len(pools))]...)
			priority := int32(random.IntN(2))
			p.pod.Spec.Priority = &priority
			for _, pool := range pools {
				p.room[pool] = p.room[pool] && random.IntN(3) > 0
			}
		case 2, 3: // an address comes free, or is retained
			if len(used) == 0 {
				return
			}
			addr := used[random.IntN(len(used))]
			drop(addr)
			if random.IntN(3) == 0 {
				w.retain(addr, owners[random.IntN(len(owners))])
			} else {
				w.giveBack(addr)
			}
		case 4: // somebody takes one
			pool := pools[random.IntN(len(pools))]
			if len(w.free[pool]) > 0 {
				used = append(used, w.free[pool][0])
				w.free[pool] = w.free[pool][1:]
			}
		case 5: // somebody frees one that was retained
			for addr := range w.retained {
				delete(w.retained, addr)
				w.giveBack(addr)
				break
			}
		case 6: // an owner may have more
			more := 1 + random.IntN(3)
			w.limits["jobs"] += more
			w.untold = append(w.untold, ipam.Change{Owner: ownerNamed("jobs"), More: more * random.IntN(2)})
		case 7:
			if len(w.untold) > 0 {
				change := w.untold[0]
				w.untold = w.untold[1:]
				w.line.changed(change, w.now)
			}
			w.activate()
		case 8:
			w.now = w.now.Add(time.Duration(random.IntN(400)) * time.Millisecond)
			w.line.expire(w.now)
		case 9: // a pod is deleted
			var names []types.UID
			for uid := range w.pods {
				if w.line.trying == nil || w.line.trying.pod.UID != uid {
					names = append(names, uid)
				}
			}
			if slices.Sort(names); len(names) > 0 && random.IntN(3) == 0 {
				uid := names[random.IntN(len(names))]
				delete(w.pods, uid)
				w.line.gone(uid, w.now)
			}
		}
	}
	for range 20 {
		// A few changes happen, and the last of them must not be lost.
		budget := 1 + random.IntN(12)
		w.between = func() {
			for budget > 0 && random.IntN(3) > 0 {
				budget--
				event()
			}
		}
		for budget > 0 {
			w.between()
			w.activate()
			if len(w.active) > 0 {
				at := random.IntN(len(w.active))
				w.active[0], w.active[at] = w.active[at], w.active[0]
				w.step()
			}
		}
		w.settle()
		w.check()
		if t.Failed() {
			return
		}
	}
}

// check looks for a pod that could be placed.
func (w *fixture) check() {
	t := w.t
	for uid, p := range w.pods {
		waits := w.line.pods[uid]
		if waits == nil {
			continue
		}
		if waits.offer != nil || waits.state == woken {
			t.Errorf("pod %s is %s and has an offer: %v", uid, stateNames[waits.state], waits.offer)
		}
		fits := false
		for pool, room := range p.room {
			fits = fits || room && w.lack(p, pool) == 0
		}
		if fits {
			t.Errorf("pod %s waits (%s, lacks %b) though %v are free and %v are retained", uid, stateNames[waits.state], waits.lack, w.free, w.retained)
		}
	}
	if len(w.line.order) != len(w.line.pods) || !slices.IsSortedFunc(w.line.order, byTurn) {
		t.Error("the line is out of order")
	}
	for addr, waits := range w.line.offered {
		t.Errorf("%s is on offer to pod %s", addr, waits.pod.UID)
	}
}

// lackBook has one address or owner for all pods.
type lackBook struct{}

func (lackBook) Sources(*ipam.Request, *pools.Snapshot) *pools.Reach { return pools.NewReach() }
func (lackBook) IsIdle(netip.Addr) bool                              { return true }
func (lackBook) Helps(change ipam.Change) func(*ipam.Request, ipam.Lack) bool {
	return func(_ *ipam.Request, lack ipam.Lack) bool {
		if change.Owner != nil {
			return lack&ipam.LackOwner != 0
		}
		return lack&ipam.LackAddress != 0
	}
}

// A pod lacks all that it lacked on any node in its last attempt.
func TestLackOfLastAttempt(t *testing.T) {
	now := time.Unix(0, 0)
	pod, request := waitingPod("a", 0, "web")
	addr, owner := ipam.Change{Pool: "web"}, ipam.Change{Owner: &request.Owner, More: 1}
	lacks := func(lacks ...ipam.Lack) func(l *line) {
		return func(l *line) {
			for _, lack := range lacks {
				l.short(pod.UID, lack, now)
			}
		}
	}
	for _, test := range []struct {
		name string
		do   func(l *line)
		// addr and owner are the changes that wake the pod.
		addr, owner bool
	}{
		{"an address", lacks(ipam.LackAddress), true, false},
		{"its owner's, then an address", lacks(ipam.LackOwner, ipam.LackAddress), true, true},
		{"an address, then its owner's", lacks(ipam.LackAddress, ipam.LackOwner), true, true},
		{"an address, and its owner's in the next attempt", func(l *line) {
			lacks(ipam.LackAddress)(l)
			l.begin(pod, request, now)
			lacks(ipam.LackOwner)(l)
		}, false, true},
		{"an address, its owner's after it was woken, and is held up", func(l *line) {
			lacks(ipam.LackAddress)(l)
			l.changed(addr, now)
			lacks(ipam.LackOwner)(l)
			l.expire(now.Add(beginsWithin))
		}, true, true},
	} {
		for change, want := range map[*ipam.Change]bool{&addr: test.addr, &owner: test.owner} {
			l := newLine(lackBook{})
			l.begin(pod, request, now)
			test.do(l)
			clear(l.wake)
			l.changed(*change, now)
			if _, wakes := l.wake[pod.UID]; wakes != want {
				t.Errorf("%s: change %+v wakes the pod: %v", test.name, *change, wakes)
			}
		}
	}
}

// A pod that leaves the line is not woken, and no other pod misses a change for it.
func TestLeaves(t *testing.T) {
	now := time.Unix(0, 0)
	web := ipam.Change{Pool: "web"}
	first, firstRequest := waitingPod("a", 0, "web")
	other, otherRequest := waitingPod("b", 0, "web")
	for name, leave := range map[string]func(l *line, uid types.UID){
		"gone":     func(l *line, uid types.UID) { l.gone(uid, now) },
		"reserved": func(l *line, uid types.UID) { l.reserved(uid, nil, false, now) },
	} {
		l := newLine(&queue{free: true})
		l.begin(first, firstRequest, now)
		l.narrowed(first.UID, now)
		l.changed(web, now)
		leave(l, first.UID)
		l.begin(other, otherRequest, now)
		if len(l.wake) > 0 {
			t.Errorf("%s during its attempt: woke %v", name, l.wake)
		}

		l = newLine(&queue{free: true})
		l.begin(first, firstRequest, now)
		l.short(first.UID, ipam.LackAddress, now)
		l.begin(other, otherRequest, now)
		leave(l, first.UID)
		l.changed(web, now)
		l.short(other.UID, ipam.LackAddress, now)
		if l.wake[other.UID] == nil {
			t.Errorf("%s during another pod's attempt: that pod misses a change", name)
		}
	}
}

// A change that says how many more addresses there are wakes as many pods.
func TestMore(t *testing.T) {
	now := time.Unix(0, 0)
	first, firstRequest := waitingPod("a", 1, "web")
	other, otherRequest := waitingPod("b", 0, "web")
	otherRequest.Owner = firstRequest.Owner
	for more, wakes := range map[int]bool{0: true, 1: false} {
		l := newLine(&queue{free: true})
		for pod, request := range map[*v1.Pod]ipam.Request{first: firstRequest, other: otherRequest} {
			l.begin(pod, request, now)
			l.short(pod.UID, ipam.LackOwner, now)
		}
		l.changed(ipam.Change{Owner: &firstRequest.Owner, More: more}, now)
		l.begin(first, firstRequest, now)
		l.reserved(first.UID, []netip.Addr{netip.MustParseAddr("10.0.70.2")}, false, now)
		if got := l.wake[other.UID] != nil; got != wakes {
			t.Errorf("%d more: when the first pod has one, the next is woken: %v", more, got)
		}
	}
}

// A change that is not enough for some pods of either family is not offered to all of
// them in turn.
func TestTooFewOfBoth(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLine(&queue{free: true})
	requests := map[types.UID]ipam.Request{}
	for i := range 20 {
		pod, request := waitingPod(fmt.Sprint(i), 0, "web")
		request.Owner = ipam.Owner{Kind: "IPClaim", Name: "both"}
		request.Parts = []ipam.Part{{Family: []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}[i%2]}}
		requests[pod.UID] = request
		l.begin(pod, request, now)
		l.short(pod.UID, ipam.LackOwner, now)
	}
	l.end(l.trying, now)
	l.changed(ipam.Change{Owner: &ipam.Owner{Kind: "IPClaim", Name: "both"}}, now)
	attempts := 0
	for len(l.wake) > 0 {
		for uid, pod := range l.wake {
			attempts++
			l.begin(pod, requests[uid], now)
			l.short(uid, ipam.LackOwner, now)
			l.end(l.pods[uid], now)
			break
		}
	}
	if attempts > 6 {
		t.Errorf("%d attempts, want a few of each family", attempts)
	}
}

// A change that is not enough for one pod is offered to pods that want fewer addresses,
// or addresses of another family.
func TestTooFew(t *testing.T) {
	now := time.Unix(0, 0)
	_, request := waitingPod("first", 1, "web")
	more, addr := ipam.Change{Owner: &request.Owner}, netip.MustParseAddr("10.0.70.2")
	for _, test := range []struct {
		name      string
		change    ipam.Change
		first, is []v1alpha1.IPFamily
		wakes     bool
	}{
		{"as many", more, []v1alpha1.IPFamily{v1alpha1.IPv6}, []v1alpha1.IPFamily{v1alpha1.IPv6}, false},
		{"as many, of a pool", ipam.Change{Pool: "web"}, []v1alpha1.IPFamily{v1alpha1.IPv6}, []v1alpha1.IPFamily{v1alpha1.IPv6}, true},
		{"as many, of an idle address", ipam.Change{Owner: &request.Owner, Addr: addr}, []v1alpha1.IPFamily{v1alpha1.IPv6}, []v1alpha1.IPFamily{v1alpha1.IPv6}, true},
		{"more", more, []v1alpha1.IPFamily{""}, []v1alpha1.IPFamily{"", ""}, false},
		{"fewer", more, []v1alpha1.IPFamily{"", ""}, []v1alpha1.IPFamily{""}, true},
		{"another family", more, []v1alpha1.IPFamily{v1alpha1.IPv6}, []v1alpha1.IPFamily{v1alpha1.IPv4}, true},
		{"both families", more, []v1alpha1.IPFamily{v1alpha1.IPv6}, []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLine(&queue{free: true})
			first, firstRequest := waitingPod("first", 1, "web")
			next, nextRequest := waitingPod("next", 0, "web")
			firstRequest.Parts, nextRequest.Parts = nil, nil
			for _, family := range test.first {
				firstRequest.Parts = append(firstRequest.Parts, ipam.Part{Family: family})
			}
			for _, family := range test.is {
				nextRequest.Parts = append(nextRequest.Parts, ipam.Part{Family: family})
			}
			nextRequest.Owner = firstRequest.Owner
			for pod, request := range map[*v1.Pod]ipam.Request{first: firstRequest, next: nextRequest} {
				l.begin(pod, request, now)
				l.short(pod.UID, ipam.LackOwner, now)
			}
			l.changed(test.change, now)
			if l.pods[first.UID].state != woken || l.pods[next.UID].state != short {
				t.Fatal("the change is not offered to the first pod alone")
			}
			l.begin(first, firstRequest, now)
			l.short(first.UID, ipam.LackOwner, now)
			l.end(l.pods[first.UID], now)
			if got := l.pods[next.UID].state == woken; got != test.wakes {
				t.Errorf("the next pod is woken: %v", got)
			}
		})
	}
}
