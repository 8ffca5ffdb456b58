// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// TestModel runs worlds in which everything fails, and fails where two nodes answer for an address
// for longer than promised, or the node of the record does not when all is well again. Each world
// is an hour.
func TestModel(t *testing.T) {
	seed, worlds := seedtest.Seed(t), seedtest.Draws(t, 60, 300)
	var group sync.WaitGroup
	var next atomic.Uint64
	var mu sync.Mutex
	two, times, moves, cuts, failures := map[string]time.Duration{}, map[string]int{}, 0, 0, 0
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= worlds {
					return
				}
				w := newWorld(seed + i)
				w.hour()
				mu.Lock()
				for line, d := range w.judge.two {
					if w.lossy {
						line += ", frames get lost"
					}
					two[line] = max(two[line], d)
				}
				for line, n := range w.judge.times {
					times[line] += n
				}
				moves += w.judge.moves
				cuts += w.judge.cuts
				if w.err != nil && failures < 3 {
					failures++
					again := newWorld(seed + i)
					again.trace = &strings.Builder{}
					again.hour()
					lines := strings.Split(again.trace.String(), "\n")
					t.Errorf("%s\n%v\nBERTH_TEST_SEED=%d repeats this world first", strings.Join(lines[max(0, len(lines)-30):], "\n"), w.err, seed+i)
					next.Store(worlds)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	t.Logf("%d worlds of an hour, %d moves, %d migrations", worlds, moves, cuts)
	for _, line := range slices.Sorted(maps.Keys(two)) {
		t.Logf("two answered for at most %v: %s", two[line].Round(time.Millisecond), line)
	}
	for _, line := range slices.Sorted(maps.Keys(times)) {
		t.Logf("two answered %d times: %s", times[line], line)
	}
}

// hour lets everything fail for a while, and then all be well.
func (w *world) hour() {
	for _, r := range w.records {
		w.give(r, w.nodes[w.IntN(len(w.nodes))], nil)
	}
	const unrest = 10 * time.Minute
	var disturb func()
	disturb = func() {
		w.judge.looks()
		if w.now < unrest {
			w.disturb()
			w.after(w.between(0, 15*time.Second), disturb)
		}
	}
	w.after(5*time.Second, disturb)
	if slices.ContainsFunc(w.records, func(r *record) bool { return r.failover }) {
		w.cutOff(unrest)
	}
	if w.stranger != nil {
		w.visit(unrest)
	}
	if w.migrations != nil {
		w.migrate(unrest)
	}
	w.run(unrest + 10*time.Minute)
	w.heal()
	// The agents see the API again, those of other nodes fall silent, and eight questions have no
	// answer.
	w.run(w.now + 20*time.Second)
	w.judgePeace(func(r *record) bool { return w.gateway || !w.lossy || familyOf(r.addr) == 0 && w.others(r.node) > 1 })
	// Where frames get lost one node alone may be the control, of IPv6 or because all others are off:
	// eight answers in a row may take long, and a minute at most.
	w.run(w.now + 80*time.Second)
	w.judgePeace(func(*record) bool { return true })
	w.run(time.Hour)
	w.judgePeace(func(*record) bool { return true })
}

// cutOff cuts nodes off from all now and then, until a time.
func (w *world) cutOff(until Duration) {
	w.after(w.between(0, 2*time.Minute), func() {
		if w.now >= until {
			return
		}
		n, d := w.nodes[w.IntN(len(w.nodes))], pickOf(w, 5*time.Second, 20*time.Second, 100*time.Second)
		n.block(d)
		n.loseAPI(d)
		w.cutOff(until)
	})
}

// visit has hosts that are no nodes take addresses of pods now and then, until a time.
func (w *world) visit(until Duration) {
	between := func(from, to Duration) Duration { return from + Duration(w.stranger.Int64N(int64(to-from)+1)) }
	w.after(between(0, time.Minute), func() {
		if w.now >= until {
			return
		}
		addr := w.records[w.stranger.IntN(len(w.records))].addr
		if _, has := w.strangers[addr]; !has {
			w.logf("a host that is no node has %s", addr)
			w.strangers[addr] = w.now
			w.after(between(200*time.Millisecond, 2*time.Minute), func() {
				w.logf("the host gives %s up", addr)
				delete(w.strangers, addr)
			})
		}
		w.visit(until)
	})
}

// judgePeace fails where not exactly the nodes of some records answer.
func (w *world) judgePeace(judges func(r *record) bool) {
	if w.err != nil {
		return
	}
	for _, r := range slices.DeleteFunc(slices.Clone(w.records), func(r *record) bool { return !judges(r) }) {
		for _, n := range w.nodes {
			_, answers := n.kernel[r.addr]
			switch {
			case answers && n != r.node:
				w.fail("all is well, but %s answers for %s, which is of %s", n.id.Name, r.addr, r.node.id.Name)
			case !answers && n == r.node:
				w.fail("all is well, but %s does not answer for %s: %+v", n.id.Name, r.addr, n.link.Standing(r.addr))
			}
		}
	}
}

// others returns how many other nodes are on.
func (w *world) others(n *node) (others int) {
	for _, other := range w.nodes {
		if other != n && other.on() {
			others++
		}
	}
	return others
}

// give records that a node's pod has an address.
func (w *world) give(r *record, to, last *node) {
	w.version++
	w.judge.moves++
	if last == to {
		last = r.last
	}
	r.pods++
	r.pod, r.node, r.last, r.version, r.since, r.given = r.pods, to, last, w.version, w.version, w.now
	name := "none"
	if last != nil {
		name = last.id.Name
	}
	w.logf("%s is of %s by %d, last %s", r.addr, to.id.Name, r.version, name)
	pod := r.pod
	w.after(w.between(10*time.Millisecond, 500*time.Millisecond), func() {
		if r.pod == pod && w.reaches(to) {
			to.came(r)
		}
	})
}

// move moves a pod; by force where nothing proves that its node has stopped.
func (w *world) move(r *record, to *node, force bool) {
	w.settle(r)
	from, pod := r.node, r.pod
	if !force && from.works() && w.reaches(from) && from.state[r.addr].pod == pod {
		from.gone(r.addr, pod)
		w.give(r, to, r.last)
		return
	}
	w.logf("somebody deletes the pod of %s on %s", r.addr, from.id.Name)
	w.give(r, to, from)
	w.after(w.between(50*time.Millisecond, 2*time.Second), func() {
		if w.reaches(from) {
			from.gone(r.addr, pod)
		}
	})
}

// pick returns a node for a pod; the scheduler takes one that is Ready, as far as it knows.
func (w *world) pick() *node {
	var ready []*node
	for _, n := range w.nodes {
		if n.link != nil && w.reaches(n) {
			ready = append(ready, n)
		}
	}
	if len(ready) == 0 || w.IntN(20) == 0 {
		ready = slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return n.away > 0 })
	}
	return ready[w.IntN(len(ready))]
}

func pickOf[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

// disturb does something that happens in clusters.
func (w *world) disturb() {
	n, r := w.nodes[w.IntN(len(w.nodes))], w.records[w.IntN(len(w.records))]
	if w.IntN(2) == 0 {
		n = r.node
	}
	switch w.IntN(18) {
	case 0, 1, 2:
		if w.apiUp {
			w.move(r, w.pick(), w.IntN(3) > 0)
		}
	case 3:
		// Several moves at once.
		for range 2 + w.IntN(2) {
			w.after(w.between(0, time.Second), func() {
				if w.apiUp {
					w.move(r, w.pick(), w.IntN(3) > 0)
				}
			})
		}
	case 4, 5:
		n.loseAPI(pickOf(w, time.Second, 20*time.Second, time.Minute, 5*time.Minute))
	case 6:
		w.loseAPI(pickOf(w, 10*time.Second, 2*time.Minute))
	case 7:
		n.loseCarrier(pickOf(w, 300*time.Millisecond, 2*time.Second, 15*time.Second, time.Minute))
	case 8:
		n.block(pickOf(w, 500*time.Millisecond, 10*time.Second, 30*time.Second, 100*time.Second))
	case 9:
		w.split(pickOf(w, 2*time.Second, 20*time.Second, 90*time.Second))
	case 10:
		n.kill(pickOf(w, time.Second, 20*time.Second, 3*time.Minute))
	case 11:
		n.hang(pickOf(w, 2*time.Second, 30*time.Second))
	case 12:
		n.pause(pickOf(w, 2*time.Second, 20*time.Second, time.Minute), w.IntN(2) == 0)
	case 14:
		n.forge(r)
	case 15:
		n.replay(pickOf(w, 2*time.Second, time.Minute))
	case 16:
		n.unlist(pickOf(w, 10*time.Second, time.Minute, 5*time.Minute))
	case 17:
		w.scale()
	case 13:
		n.off(pickOf(w, 15*time.Second, 2*time.Minute))
	}
}

// forge has somebody with the key of a node assert an address that is not the node's, a while long.
func (n *node) forge(r *record) {
	w := n.world
	w.logf("%s forges assertions of %s", n.id.Name, r.addr)
	w.forged[r.addr], n.forger = true, true
	m := Message{Kind: Assert, From: n.id, Address: r.addr, Version: r.version + 10000}
	for i := range 3 {
		w.after(Duration(i)*time.Second, func() { n.send(m) })
	}
}

// replay has a pod of the node, with an interface in the network, repeat messages for a while.
func (n *node) replay(d time.Duration) {
	w := n.world
	w.logf("a pod on %s repeats messages for %v", n.id.Name, d)
	of := w.recorded[w.IntN(len(w.recorded))].From
	for end := w.now + d; d > 0; d -= 200 * time.Millisecond {
		w.after(d, func() {
			// Of any node, or of one in particular.
			m := w.recorded[w.IntN(len(w.recorded))]
			if m.From != of && w.now < end-time.Second {
				m = w.recorded[w.IntN(len(w.recorded))]
			}
			for _, other := range w.nodes {
				// Two that relay answers at once make one network of two.
				at, isCaller := other.calls[m.Nonce]
				relayed := isCaller && m.Kind == Hello && w.now-at < 2*time.Second
				if !relayed && (other == n && n.on() || other.hears(n)) {
					other.hear(Heard{Message: m})
				}
			}
		})
	}
}

// unlist has the switch forget that the node listens to multicast.
func (n *node) unlist(d time.Duration) {
	n.world.logf("the switch passes no multicast of IPv6 to %s for %v", n.id.Name, d)
	n.unlisted = true
	n.world.after(d, func() { n.unlisted = false })
}

// scale takes most nodes out of the cluster, as an autoscaler does: their pods move before.
func (w *world) scale() {
	if len(w.nodes) < 4 || !w.apiUp || slices.ContainsFunc(w.nodes, func(n *node) bool { return n.away > 0 }) {
		return
	}
	stay := w.nodes[:2]
	for _, n := range w.nodes[2:] {
		w.logf("%s is taken out of the cluster", n.id.Name)
		for _, r := range w.records {
			if r.node == n {
				w.move(r, stay[w.IntN(len(stay))], true)
			}
		}
		n.away = w.now
		n.off(0)
	}
}

// tellAPI has the agent see soon that its watches go on again.
func (n *node) tellAPI() {
	w := n.world
	w.after(w.between(10*time.Millisecond, 3*time.Second), func() {
		if n.works() && n.told != w.reaches(n) {
			n.told = !n.told
			if n.told {
				n.verify()
			}
		}
	})
}

func (n *node) loseAPI(d time.Duration) {
	n.world.logf("%s loses the API for %v", n.id.Name, d)
	n.api = false
	n.tellAPI()
	n.world.after(d, func() { n.api = true; n.tellAPI() })
}

func (w *world) loseAPI(d time.Duration) {
	w.logf("the API is down for %v", d)
	w.apiUp = false
	for _, n := range w.nodes {
		n.tellAPI()
	}
	w.after(d, func() {
		w.apiUp = true
		for _, n := range w.nodes {
			n.tellAPI()
		}
	})
}

// loseCarrier cuts the cable. The kernel drops proxy entries; of a cut of less than a second it may
// not learn.
func (n *node) loseCarrier(d time.Duration) {
	w := n.world
	if !n.carrier {
		return
	}
	w.logf("%s loses its carrier for %v", n.id.Name, d)
	n.carrier = false
	if d >= time.Second || w.IntN(2) == 0 {
		w.after(w.between(0, min(d, time.Second)), func() {
			if n.carrier {
				return
			}
			for addr := range n.kernel {
				if !w.record(addr).own {
					n.silence(addr)
				}
			}
			n.step(Carrier{})
		})
	}
	w.after(d, func() { n.plug() })
}

func (n *node) plug() {
	if n.carrier {
		return
	}
	n.world.logf("%s has its carrier again", n.id.Name)
	n.carrier = true
	n.step(Carrier{Up: true, Jitter: n.world.between(0, 200*time.Millisecond)})
}

// block has the switch's port, or the hypervisor's, pass nothing.
func (n *node) block(d time.Duration) {
	n.world.logf("the port of %s is blocked for %v", n.id.Name, d)
	n.group = -1 - n.index
	n.world.after(d, func() { n.group = 0 })
}

// split divides the switch.
func (w *world) split(d time.Duration) {
	w.logf("the switch is split for %v", d)
	for _, n := range w.nodes {
		if n.group >= 0 && w.IntN(2) == 0 {
			n.group = 1
			w.logf("... %s is away", n.id.Name)
			w.after(d, func() { n.group = 0 })
		}
	}
}

func (n *node) kill(d time.Duration) {
	n.world.logf("the agent of %s dies for %v", n.id.Name, d)
	n.link = nil
	n.world.after(d, func() {
		if n.link == nil && n.powered && !n.paused && n.away == 0 {
			n.world.logf("the agent of %s starts", n.id.Name)
			n.start()
		}
	})
}

func (n *node) hang(d time.Duration) {
	if !n.works() {
		return
	}
	n.world.logf("the agent of %s hangs for %v", n.id.Name, d)
	n.hung = true
	n.world.after(d, n.unhang)
}

func (n *node) unhang() {
	if !n.hung || n.link == nil || n.paused || !n.powered {
		return
	}
	n.world.logf("the agent of %s goes on", n.id.Name)
	n.hung = false
	n.world.judge.alive(n)
	// A socket's buffer that ran over loses frames. The state of the link is read again.
	backlog := append(n.backlog, Carrier{Up: n.carrier})
	n.backlog = nil
	n.step(backlog...)
	n.tellAPI()
	n.verify()
}

// pause stops a virtual machine; with its clock, or not.
func (n *node) pause(d time.Duration, clock bool) {
	w := n.world
	if n.paused || !n.powered {
		return
	}
	w.logf("%s is paused for %v", n.id.Name, d)
	n.paused, n.pausedAt = true, w.now
	w.after(d, func() { n.resume(clock) })
}

func (n *node) resume(clock bool) {
	w := n.world
	if !n.paused {
		return
	}
	w.logf("%s goes on", n.id.Name)
	n.paused = false
	if clock {
		n.slept += w.now - n.pausedAt
		n.stood = w.now
	}
	w.judge.alive(n)
	if n.link == nil {
		if n.powered {
			n.start()
		}
		return
	}
	n.timer = -1
	n.step(Carrier{Up: n.carrier})
	n.tellAPI()
	n.verify()
}

func (n *node) off(d time.Duration) {
	w := n.world
	if !n.powered {
		return
	}
	w.logf("%s is powered off for %v", n.id.Name, d)
	n.powered, n.paused, n.link = false, false, nil
	clear(n.kernel)
	n.changes++
	clear(n.state)
	n.dies()
	w.after(d, n.boot)
}

func (n *node) boot() {
	if n.powered || n.away > 0 {
		return
	}
	n.world.logf("%s boots", n.id.Name)
	n.powered, n.paused = true, false
	n.start()
}

// heal ends all that failed.
func (w *world) heal() {
	w.logf("all is well")
	w.apiUp = true
	clear(w.strangers)
	for _, n := range w.nodes {
		n.api, n.group = true, 0
		n.unlisted = false
		n.resume(false)
		n.boot()
		n.plug()
		n.unhang()
		if n.link == nil && n.away == 0 {
			n.start()
		}
		n.tellAPI()
		n.verify()
	}
}
