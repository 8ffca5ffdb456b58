// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"math/rand/v2"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
)

// twin is the other pod of a record whose virtual machine migrates: the target's, or the source's
// after the record has followed the machine.
type twin struct {
	to  *node
	pod int
	// has: the machine runs in this pod, and the record has yet to follow.
	has bool
}

// drawn returns a random duration of a migration.
func (w *world) drawn(from, to Duration) Duration {
	return from + Duration(w.migrations.Int64N(int64(to-from)+1))
}

// migrate has virtual machines migrate now and then, until a time, with their addresses.
func (w *world) migrate(until Duration) {
	w.after(w.drawn(0, 20*time.Second), func() {
		if w.now >= until {
			return
		}
		r, to := w.records[w.migrations.IntN(len(w.records))], w.nodes[w.migrations.IntN(len(w.nodes))]
		switch {
		case w.liars && w.migrations.IntN(8) == 0:
			to.forgeTakeOver(r)
		case w.apiUp && r.twin == nil && to != r.node && r.node.powered && w.reaches(to) && to.works():
			w.begin(r, to)
		}
		w.migrate(until)
	})
}

// begin begins a migration, and draws how it goes on.
func (w *world) begin(r *record, to *node) {
	r.write(w)
	r.pods++
	t := &twin{to: to, pod: r.pods}
	r.twin = t
	w.logf("the machine of %s migrates from %s to %s by %d", r.addr, r.node.id.Name, to.id.Name, r.version)
	w.after(w.drawn(10*time.Millisecond, 500*time.Millisecond), func() { to.stand(r) })
	if w.migrations.IntN(3) == 0 {
		// Somebody writes something else.
		w.atAPI(r, t, func() { r.write(w) })
	}
	runs := w.drawn(100*time.Millisecond, 10*time.Second)
	ends := runs
	switch w.migrations.IntN(8) {
	case 0:
		w.after(runs/2, func() { w.abort(r, t) })
	case 1:
		// The API hears of the end at about the time of the cut.
		ends += w.drawn(-min(runs, 200*time.Millisecond), 200*time.Millisecond)
		w.after(ends, func() { w.abort(r, t) })
	case 2:
		w.after(runs+w.drawn(0, 5*time.Second), func() { w.abort(r, t) })
	}
	w.after(runs, func() { w.cut(r, t) })
}

// write gives the record its next version.
func (r *record) write(w *world) {
	w.version++
	r.version = w.version
}

// atAPI does something at the API server, once it is up, while a migration lasts.
func (w *world) atAPI(r *record, t *twin, do func()) {
	w.after(w.drawn(time.Millisecond, 500*time.Millisecond), func() {
		switch {
		case r.twin != t:
		case w.apiUp:
			do()
		default:
			w.atAPI(r, t, do)
		}
	})
}

// cut has the machine run in the twin. Its agent sees that once it can, by any frame of the guest.
func (w *world) cut(r *record, t *twin) {
	n, from := t.to, r.node
	switch source := from.powered && !from.paused && from.state[r.addr].pod == r.pod; {
	case r.twin != t:
		return
	case !n.works() || n.state[r.addr].pod != t.pod || !t.has && !source:
		w.after(200*time.Millisecond, func() { w.cut(r, t) })
		return
	}
	w.logf("the machine of %s runs on %s", r.addr, n.id.Name)
	t.has = true
	w.judge.cuts++
	c := n.state[r.addr]
	c.took = true
	n.state[r.addr] = c
	n.step(Cut{r.addr})
	w.tell(r, t)
}

// tell has the twin's agent tell the API server, and the record follow.
func (w *world) tell(r *record, t *twin) {
	w.atAPI(r, t, func() {
		if !w.reaches(t.to) || !t.to.works() {
			w.tell(r, t)
			return
		}
		w.swap(r)
	})
}

// swap has the record follow the machine. The source's pod ends, or the target's fails.
func (w *world) swap(r *record) {
	t, from := r.twin, r.node
	r.write(w)
	source := &twin{to: from, pod: r.pod}
	r.twin, r.pod, r.node, r.last, r.since, r.given = source, t.pod, t.to, from, r.version, w.now
	w.logf("%s follows its machine to %s by %d", r.addr, r.node.id.Name, r.version)
	w.after(w.drawn(10*time.Millisecond, 500*time.Millisecond), func() {
		if r.twin == source && w.reaches(t.to) {
			t.to.came(r)
		}
	})
	if w.migrations.IntN(5) == 0 {
		w.after(w.drawn(0, 5*time.Second), func() { w.atAPI(r, source, func() { w.returns(r) }) })
		return
	}
	w.after(w.drawn(0, 10*time.Second), func() { w.atAPI(r, source, func() { w.drop(r) }) })
}

// returns gives the record back to the source, whose twin has failed.
func (w *world) returns(r *record) {
	t, n, pod := r.twin, r.node, r.pod
	r.write(w)
	r.pod, r.node, r.last, r.twin, r.since, r.given = t.pod, t.to, n, nil, r.version, w.now
	w.logf("the target of %s fails: it is of %s again by %d", r.addr, r.node.id.Name, r.version)
	w.withdraw(r, n, pod)
}

// abort ends a migration; the twin's pod ends.
func (w *world) abort(r *record, t *twin) { w.atAPI(r, t, func() { w.drop(r) }) }

// drop ends the twin. It may have answered, and may go on where its node does not learn of its end.
func (w *world) drop(r *record) {
	t := r.twin
	r.write(w)
	r.twin, r.last, r.given = nil, t.to, w.now
	if t.has {
		r.since = r.version
	}
	w.logf("%s has no twin on %s any more by %d", r.addr, t.to.id.Name, r.version)
	w.withdraw(r, t.to, t.pod)
}

// withdraw has a node's agent learn soon that a pod is gone.
func (w *world) withdraw(r *record, n *node, pod int) {
	w.after(w.drawn(10*time.Millisecond, 2*time.Second), func() {
		if w.reaches(n) {
			n.gone(r.addr, pod)
		}
	})
}

// settle ends a migration, before the record moves otherwise.
func (w *world) settle(r *record) {
	if r.twin == nil {
		return
	}
	if r.twin.has {
		w.swap(r)
	}
	w.drop(r)
}

// dies ends the migrations of pods of a node that is off.
func (n *node) dies() {
	for _, r := range n.world.records {
		t := r.twin
		if t == nil || t.to != n && r.node != n {
			continue
		}
		has := t.has && r.node == n
		n.world.atAPI(r, t, func() {
			if has {
				n.world.swap(r)
			}
			n.world.drop(r)
		})
	}
}

// stand has the agent give a twin its pod.
func (n *node) stand(r *record) {
	t, old := r.twin, n.state[r.addr]
	if n.link == nil || n.hung || n.paused || !n.powered || t == nil || t.to != n || t.has || old.pod == t.pod {
		return
	}
	if old.pod > 0 {
		n.gone(r.addr, old.pod)
	}
	n.world.logf("%s stands by for %s by %d", n.id.Name, r.addr, r.version)
	n.changes++
	n.state[r.addr] = carried{pod: t.pod, version: r.version, last: r.node.id, stands: true, added: true}
	n.carry(r.addr)
}

// has reports whether the record names a pod of a node, as its own or as the twin.
func (r *record) has(n *node, pod int) bool {
	return r.node == n && r.pod == pod || r.twin != nil && r.twin.to == n && r.twin.pod == pod
}

// tookFrom reports whether of two nodes one is the record's, and the other one its twin.
func (r *record) tookFrom(one, other *node) bool {
	return r.twin != nil && (r.node == one && r.twin.to == other || r.node == other && r.twin.to == one)
}

// forgeTakeOver has somebody with the key of a node say that the node is a twin, which it is not.
func (n *node) forgeTakeOver(r *record) {
	w := n.world
	if r.twin != nil {
		return
	}
	w.logf("%s forges a takeover of %s", n.id.Name, r.addr)
	w.forged[r.addr], n.forger = true, true
	n.send(Message{Kind: TakeOver, From: n.id, To: r.node.id, Address: r.addr, Version: r.version + Version(w.migrations.IntN(2)), Nonce: 1})
}

// migrates has the virtual machines of some worlds migrate. The other worlds are as they were.
func (w *world) migrates(seed uint64) {
	if seed%7 == 1 {
		w.migrations, w.liars = rand.New(rand.NewPCG(seed, 3)), seed%28 == 1
	}
}
