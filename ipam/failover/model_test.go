// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// movedWithin is how long after a node's death its pods are bound elsewhere, where nothing else
// fails: 15 s, a tick, the question of 1.5 s, and some requests. Until the 15 s begin is no time:
// the last renewal was before the death.
const movedWithin = 19 * time.Second

// fencedWithin is for the fencer, which takes up to 3 s, and another round.
const fencedWithin = 6 * time.Second

// TestModel lets worlds run, and judges each step. Of each seed there is a world without and one
// with a fencer.
func TestModel(t *testing.T) {
	seed, seeds := seedtest.Seed(t), seedtest.Draws(t, 100, 500)
	moved, counts, simulated := 0, map[string]int{}, time.Duration(0)
	for i := range 2 * seeds {
		w := newWorld(seed+i/2, i%2 == 1)
		w.live()
		moved += w.moved
		simulated += w.now
		for name, n := range w.counts {
			counts[name] += n
		}
		if w.err != nil {
			again := newWorld(seed+i/2, i%2 == 1)
			again.trace = &strings.Builder{}
			again.live()
			t.Fatalf("%s%v\nBERTH_TEST_SEED=%d repeats this world first", again.trace, w.err, seed+i/2)
		}
	}
	for _, name := range sorted(counts) {
		t.Logf("%s: %d", name, counts[name])
	}
	t.Logf("%d worlds, %.0f hours, %d pods moved", 2*seeds, simulated.Hours(), moved)
	if seeds >= 500 && (moved < int(seeds) || counts["deleted, API lost"] == 0 || counts["brake"] == 0 || counts["deleted, off"] == 0) {
		t.Error("too little happens in these worlds")
	}
}

// live disturbs the world for a while. Then all is well, and one node dies.
func (w *world) live() {
	w.run(30 * time.Second)
	for range 5 + w.IntN(20) {
		w.disturb()
		w.run(w.now + w.between(0, pickOf(w, 5*time.Second, 20*time.Second, 90*time.Second)))
	}
	w.heal()
	// A fencer that was asked before may power a node off yet, for two minutes.
	w.run(w.now + 6*time.Minute)
	for _, n := range w.nodes {
		if n.taint || n.outOfService {
			w.fail("all is well, but %s is tainted", n.name)
		}
	}
	for _, p := range w.pods {
		if (!p.exists || p.node == nil) && w.fits() > 0 {
			w.fail("all is well, but %s does not run", p.name)
		}
	}
	w.loseOne()
}

func (w *world) fits() int {
	fits := 0
	for _, n := range w.nodes {
		if n.pool {
			fits++
		}
	}
	return fits
}

// loseOne powers a node off that has pods, or has it hang where there is a fencer, and sees where
// they are in time. Another node may have been off for long.
func (w *world) loseOne() {
	p := w.pods[w.IntN(len(w.pods))]
	lost := p.node
	if w.err != nil || lost == nil || w.fits() < 2 {
		return
	}
	if off := w.nodes[w.IntN(len(w.nodes))]; len(w.nodes) > 3 && off != lost && !off.pool {
		off.off(time.Hour)
		w.run(w.now + 30*time.Second)
		w.replicas[0].resume([]string{off.name})
	}
	on := map[*pod]string{}
	for _, p := range w.pods {
		if p.node == lost {
			on[p] = fmt.Sprint(p.uid)
		}
	}
	// Not at the same moment of its kubelet's rhythm always.
	w.run(w.now + w.between(0, 10*time.Second))
	within := movedWithin
	if w.fences && w.IntN(2) == 0 {
		lost.hang(time.Hour)
		within += fencedWithin
	} else {
		lost.off(time.Hour)
	}
	w.run(w.now + within)
	for p, uid := range on {
		moved := fmt.Sprint(p.uid) != uid
		switch should := p.opted && p.holds; {
		case w.err != nil:
		case should && (!moved || p.node == nil || p.node == lost):
			w.fail("%s was lost %v ago, but %s has not moved", lost.name, within, p.name)
		case !should && moved:
			w.fail("%s has moved, and did not ask for it or has no address", p.name)
		}
	}
	w.run(w.now + w.between(0, 2*time.Minute))
	lost.boot()
	w.run(w.now + bootsWithin + Interval)
	if lost.taint || lost.outOfService {
		w.fail("%s is back, and tainted", lost.name)
	}
}
