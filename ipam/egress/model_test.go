// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/mutationtest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// ports of a block in the model: three blocks of an address.
const ports = 16384

// block is one of an address, from which a kernel sends.
type block struct {
	address string
	index   int32
}

// stored is what the API server has: records of addresses and NodeAssignments, with their versions,
// and pods by node.
type stored struct {
	records     map[string][]v1alpha1.EgressBlock
	closed      map[string]bool
	versions    map[string]int
	assignments map[string]*v1alpha1.NodeAssignment
	// of has the block that a NodeAssignment names.
	of      map[string]block
	wanting map[string]bool
	// ended counts pods that ended.
	ended map[string]int
}

func (s *stored) clone() *stored {
	c := &stored{map[string][]v1alpha1.EgressBlock{}, maps.Clone(s.closed), maps.Clone(s.versions), map[string]*v1alpha1.NodeAssignment{}, maps.Clone(s.of), maps.Clone(s.wanting), maps.Clone(s.ended)}
	for name, blocks := range s.records {
		c.records[name] = slices.Clone(blocks)
	}
	for name, a := range s.assignments {
		c.assignments[name] = a.DeepCopy()
	}
	return c
}

// machine is a node with its agent. It is cut while the agent does not reach the API server.
type machine struct {
	sends map[block]bool
	cut   bool
	// uses is the block that pods have used for a while, and podless since when the node has none.
	uses    block
	podless time.Time
}

// leader is a controller. view is what its caches have, which may be old. Only one acts at a time,
// but for writes on their way.
type leader struct {
	view *stored
	idle idle
	left map[string]time.Time
}

type world struct {
	*rand.Rand
	now     time.Time
	api     *stored
	past    []*stored
	nodes   map[string]*machine
	leaders []*leader
	trace   *strings.Builder
	err     error
	given   int
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(0, 0), nodes: map[string]*machine{}, trace: &strings.Builder{}}
	w.api = &stored{map[string][]v1alpha1.EgressBlock{}, map[string]bool{}, map[string]int{}, map[string]*v1alpha1.NodeAssignment{}, map[string]block{}, map[string]bool{}, map[string]int{}}
	for i := range 1 + w.IntN(2) {
		w.api.records[fmt.Sprintf("a%d", i)] = nil
	}
	for i := range 2 + w.IntN(6) {
		name := fmt.Sprintf("n%d", i)
		w.nodes[name] = &machine{sends: map[block]bool{}}
		w.api.assignments[name] = &v1alpha1.NodeAssignment{}
	}
	for range 2 {
		w.leaders = append(w.leaders, &leader{w.api.clone(), idle{}, map[string]time.Time{}})
	}
	return w
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %v: %s", w.now.Sub(time.Unix(0, 0)), fmt.Sprintf(format, args...))
	}
}

func (w *world) log(format string, args ...any) {
	fmt.Fprintf(w.trace, "%v "+format+"\n", append([]any{w.now.Sub(time.Unix(0, 0))}, args...)...)
}

func pick[V any](w *world, of map[string]V) string {
	names := slices.Sorted(maps.Keys(of))
	return names[w.IntN(len(names))]
}

// decide has a leader write the records, by its view.
func (w *world) decide(l *leader) {
	var all []address
	for _, name := range slices.Sorted(maps.Keys(l.view.records)) {
		all = append(all, address{name, slices.Clone(l.view.records[name]), l.view.closed[name]})
	}
	wanting := slices.Sorted(maps.Keys(l.view.wanting))
	l.idle.look(all, wanting, l.left, w.now)
	assign(all, ports, nodes{wanting, func(node string) bool { return l.idle.rests(node, w.now) }, fitsAll, func(address, node string) bool {
		return hasStopped(l.view.assignments[node], address)
	}})
	for _, a := range all {
		if slices.Equal(a.blocks, l.view.records[a.name]) || l.view.versions[a.name] != w.api.versions[a.name] {
			continue
		}
		w.log("record %s", textOf([]address{a}))
		w.record(a.name, a.blocks)
	}
}

// record writes a record, and judges it.
func (w *world) record(name string, blocks []v1alpha1.EgressBlock) {
	seen := map[int32]bool{}
	for _, b := range blocks {
		if b.Index < 1 || b.Index > 3 || seen[b.Index] {
			w.fail("%s has block %d twice, or never: %v", name, b.Index, blocks)
		}
		seen[b.Index] = true
		if slices.ContainsFunc(w.api.records[name], func(o v1alpha1.EgressBlock) bool { return o.Index == b.Index && o.Node == b.Node }) {
			continue
		}
		w.given++
		if w.api.closed[name] {
			w.fail("%s is closed, and %s gets a block of it", name, b.Node)
		}
		for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
			m := w.nodes[node]
			if node != b.Node && !w.api.wanting[node] && m.uses == (block{name, b.Index}) && w.now.Before(m.podless.Add(rest)) {
				w.fail("%s gets block %d of %s, which %s left %v before", b.Node, b.Index, name, node, w.now.Sub(m.podless))
			}
		}
	}
	w.api.records[name] = blocks
	w.api.versions[name]++
}

// tell has a leader write a NodeAssignment, by its view.
func (w *world) tell(l *leader, node string) {
	var has block
	for _, name := range slices.Sorted(maps.Keys(l.view.records)) {
		if i := slices.IndexFunc(l.view.records[name], func(b v1alpha1.EgressBlock) bool { return b.Node == node && !b.Withdrawn }); i >= 0 {
			has = block{name, l.view.records[name][i].Index}
			break
		}
	}
	now := w.api.assignments[node]
	if l.view.assignments[node].Generation != now.Generation || l.view.of[node] == has {
		return
	}
	// The record is asked before a node loses ports.
	if was := w.api.of[node]; slices.ContainsFunc(w.api.records[was.address], func(b v1alpha1.EgressBlock) bool {
		return b.Node == node && b.Index == was.index && !b.Withdrawn
	}) {
		return
	}
	w.log("tell %s %v", node, has)
	next := &v1alpha1.NodeAssignment{Status: now.Status}
	next.Generation = now.Generation + 1
	if has.address != "" {
		next.Spec.Claims = []v1alpha1.AssignedClaim{{Address: has.address}}
	}
	w.api.assignments[node], w.api.of[node] = next, has
}

// follow has an agent do as its NodeAssignment says: it asks the record before it begins.
func (w *world) follow(node string) {
	m := w.nodes[node]
	if m.cut {
		return
	}
	has := w.api.of[node]
	isRecorded := slices.ContainsFunc(w.api.records[has.address], func(b v1alpha1.EgressBlock) bool {
		return b.Index == has.index && b.Node == node && !b.Withdrawn
	})
	switch {
	case has.address == "":
		m.sends = map[block]bool{}
	case m.sends[has]:
	case !isRecorded:
		return
	default:
		m.sends = map[block]bool{has: true}
	}
	w.api.assignments[node].Status.ObservedGeneration = w.api.assignments[node].Generation
	w.log("%s sends from %v", node, m.sends)
}

func (w *world) step() {
	l, node := w.leaders[w.IntN(2)], pick(w, w.nodes)
	m := w.nodes[node]
	switch w.IntN(12) {
	case 0:
		if w.api.wanting[node] {
			w.log("%s has no pods", node)
			delete(w.api.wanting, node)
			w.api.ended[node]++
			m.podless = w.now
		} else {
			w.log("%s has pods", node)
			w.api.wanting[node], m.uses = true, block{}
		}
	case 1:
		m.cut = w.IntN(3) == 0
	case 2:
		w.pass(time.Duration(1+w.IntN(400)) * time.Second)
	case 3:
		if w.IntN(10) == 0 {
			name := pick(w, w.api.records)
			w.api.closed[name] = !w.api.closed[name]
			w.api.versions[name]++
		}
	case 4: // A controller starts, from an old list.
		if w.IntN(5) == 0 && len(w.past) > 0 {
			l.view, l.idle = w.past[w.IntN(len(w.past))].clone(), idle{}
		}
	case 5, 6:
		w.decide(l)
	case 7, 8:
		w.tell(l, node)
	case 9, 10:
		w.follow(node)
	default:
		w.refresh(l)
	}
	if w.past = append(w.past, w.api.clone()); len(w.past) > 20 {
		w.past = w.past[1:]
	}
	w.judge()
}

// refresh brings a leader's caches up to date. Their events tell of pods that came and went.
func (w *world) refresh(l *leader) {
	for node, n := range w.api.ended {
		if l.view.ended[node] != n {
			l.left[node] = w.now
		}
	}
	l.view = w.api.clone()
}

// pass has time pass. Caches lag by less.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, l := range w.leaders {
		w.refresh(l)
	}
	for node, m := range w.nodes {
		if b := w.api.of[node]; w.api.wanting[node] {
			m.uses = block{}
			if m.sends[b] && slices.ContainsFunc(w.api.records[b.address], func(r v1alpha1.EgressBlock) bool { return r.Index == b.index && r.Node == node && !r.Withdrawn }) {
				m.uses = b
			}
		}
	}
}

func (w *world) judge() {
	by := map[block]string{}
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		for b := range w.nodes[name].sends {
			if other := by[b]; other != "" {
				w.fail("%s and %s send from block %v", other, name, b)
			}
			by[b] = name
		}
		if m := w.nodes[name]; w.api.wanting[name] && m.uses != (block{}) && !m.sends[m.uses] {
			w.fail("%s has pods, and lost %v", name, m.uses)
		}
	}
}

// live disturbs the world for a while. Then all works again, and each node has what it should.
func (w *world) live() {
	for range 100 + w.IntN(300) {
		if w.step(); w.err != nil {
			return
		}
	}
	for range 40 {
		w.pass(time.Minute)
		w.decide(w.leaders[0])
		for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
			m := w.nodes[node]
			m.cut = false
			w.refresh(w.leaders[0])
			w.tell(w.leaders[0], node)
			w.follow(node)
		}
		w.judge()
	}
	free, without, has := 0, 0, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(w.api.records)) {
		blocks := w.api.records[name]
		if !w.api.closed[name] {
			free += 3 - len(blocks)
		}
		for _, b := range blocks {
			if !w.api.wanting[b.Node] || b.Withdrawn || has[b.Node] {
				w.fail("%s keeps block %d of %s", b.Node, b.Index, name)
			}
			has[b.Node] = true
		}
	}
	for node := range w.api.wanting {
		if w.api.of[node].address == "" {
			without++
		}
	}
	if free > 0 && without > 0 {
		w.fail("%d blocks are free, and %d nodes have none", free, without)
	}
}

// Two nodes never send from one block, whatever caches, restarts and cut nodes do; a node with pods
// keeps its block, and one without has it ten minutes longer.
func TestModel(t *testing.T) {
	seed, draws := seedtest.Seed(t), seedtest.Draws(t, 300, 2000)
	given := 0
	for i := range draws {
		w := newWorld(seed + i)
		if w.live(); w.err != nil {
			t.Fatalf("%s%v\nBERTH_TEST_SEED=%d repeats this world first", w.trace, w.err, seed+i)
		}
		given += w.given
	}
	if t.Logf("%d worlds, %d blocks given", draws, given); draws >= 300 && given < int(draws) {
		t.Error("too little happens in these worlds")
	}
}

// Errors against the promises, each with the seed of a world that finds it.
var mutations = []struct {
	name, old, new string
	seed           uint64
}{
	{"give a block away before the node stopped", "case n.stopped(b.address, b.Node):", "case true:", 25},
	{"withdraw and free at once", "		case !b.Withdrawn:\n			b.Withdrawn = true\n", "", 1},
	{"believe an agent that has not followed", "assignment.Status.ObservedGeneration >= assignment.Generation &&\n		!", "!", 39},
	{"believe an agent that follows the block", " &&\n		!slices.ContainsFunc(assignment.Spec.Claims, func(c v1alpha1.AssignedClaim) bool { return c.Address == address })", "", 25},
	{"one index twice", "		if b.Index == index {\n			index++", "		if b.Index == index-1 {\n			index++", 2},
	{"one block too many", "len(a.blocks) < v1alpha1.EgressBlocks(ports)", "len(a.blocks) <= v1alpha1.EgressBlocks(ports)", 8},
	{"a block of a closed address", "!a.closed && ", "", 4},
	{"no rest", "ok && now.Before(since.Add(rest))", "ok && now.Before(since)", 20},
	{"rest for ever", "ok && now.Before(since.Add(rest))", "ok && !since.IsZero()", 1},
	{"forget that a node rests", "			case !ok:\n", "			case !ok || !since.IsZero():\n", 1},
	{"forget a pod that came and went", "			case left[b.Node].After(since):\n				since = left[b.Node]\n", "", 178},
	{"keep withdrawn blocks", "			b.Node = \"\"\n", "", 1},
	{"two blocks of a node", "case !has[b.Node] && (", "case (", 1299},
	{"withdraw from a node with pods", "(slices.Contains(n.wanting, b.Node) || !b.Withdrawn && n.rests(b.Node))", "n.rests(b.Node)", 2},
	{"the other of two blocks", "sorted.TrueFirst(!x.Withdrawn, !y.Withdrawn)", "sorted.TrueFirst(x.Withdrawn, y.Withdrawn)", 1784},
	{"give none", "if !has[node] && !n.give(all, ports, node) {", "if !has[node] {", 2},
}

// TestMutations runs TestModel with each mutation.
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) { mutationtest.Find(t, "blocks.go", m.old, m.new, m.seed, 5000) })
	}
}
