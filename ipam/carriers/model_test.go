// SPDX-License-Identifier: Apache-2.0

package carriers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/mutationtest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// machine is a node with its kernel, its agent, and what the API server has of it.
type machine struct {
	name string
	// on: it has power. cut: its port of the pool's network passes nothing. api: it reaches the API
	// server. works: its agent does something. liar: its agent says that all are silent.
	on, cut, api, works, liar bool
	cordoned, ready           bool
	// lost is since when the API server does not hear of it.
	lost time.Duration
	mac  int
	// deaf has the nodes of which it hears nothing.
	deaf map[string]bool
	// kernel: it answers for the address.
	kernel bool
	// watch is of the carrier of. heard: it did answer. filtered: it did, and did not come the last
	// time. missed counts frames that got lost in a row.
	watch           Watch
	of              string
	heard, filtered bool
	missed          int
	at              time.Duration
	// The NodeAssignment.
	assigned, carried bool
	standby, silent   string
	// lied: silent is a lie.
	lied bool
}

// world has one address, the nodes that may carry it, and a controller.
type world struct {
	*rand.Rand
	now      time.Duration
	machines []*machine
	api      bool
	lossy    bool
	record   *v1alpha1.FloatingIP
	// The controller's memory, and when it acts next.
	silences Silences
	acts     time.Duration
	// served is since when the carrier has answered the gateway, gap since when nobody does.
	served, gap time.Duration
	// excused: the gap may last.
	excused bool
	// deaths, words and lies count what happened.
	deaths, words, lies int
	longest             time.Duration
	trace               *strings.Builder
	err                 error
}

const step = 50 * time.Millisecond

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), api: true, silences: Silences{}, trace: &strings.Builder{}, excused: true}
	w.lossy = w.IntN(2) == 0
	w.record = &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Address: address, Network: &v1alpha1.Network{}, Egress: &v1alpha1.EgressHolder{}}}
	for i := range 2 + w.IntN(3) {
		w.machines = append(w.machines, &machine{
			name: fmt.Sprintf("n%d", i), on: true, api: true, works: true, ready: true, lost: -1, mac: 100 * i,
			deaf: map[string]bool{}, at: time.Duration(w.IntN(10)) * step,
		})
	}
	return w
}

func (w *world) log(format string, args ...any) {
	fmt.Fprintf(w.trace, "%v "+format+"\n", append([]any{w.now}, args...)...)
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %v: %s", w.now, fmt.Sprintf(format, args...))
	}
}

// String has the nodes, and who is passed over.
func (w *world) String() string {
	text := fmt.Sprintf("%s, of which %v are passed over by %+v\n", w.record.Spec.Egress.Node, w.over(), w.silences)
	for _, m := range w.machines {
		text += fmt.Sprintf("%+v\n", *m)
	}
	return text
}

func (w *world) named(name string) *machine {
	i := slices.IndexFunc(w.machines, func(m *machine) bool { return m.name == name })
	if i < 0 {
		return nil
	}
	return w.machines[i]
}

func (m *machine) node() *v1.Node {
	status := v1.ConditionFalse
	if m.ready {
		status = v1.ConditionTrue
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.name}, Spec: v1.NodeSpec{Unschedulable: m.cordoned},
		Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: status}}},
	}
}

// hears returns whether a frame of the other node comes to this one.
func (m *machine) hears(other *machine) bool {
	return m != other && m.on && other.on && !m.cut && !other.cut && !m.deaf[other.name]
}

// serves returns whether the gateway has answers of the node.
func (m *machine) serves() bool { return m != nil && m.on && !m.cut && m.kernel }

// reaches returns whether the node's agent reaches the API server.
func (w *world) reaches(m *machine) bool { return w.api && m.on && m.works && m.api }

// act has the controller decide, as package egress does.
func (w *world) act() {
	if !w.api || w.now < w.acts {
		return
	}
	w.acts = w.now + time.Duration(1+w.IntN(4))*step
	var now []v1alpha1.Carrier
	for _, m := range w.machines {
		if c := (v1alpha1.Carrier{Node: m.name, Assigned: m.assigned, Carried: m.carried}); c.Assigned || c.Carried {
			for _, s := range w.machines {
				if s.standby == m.name && s.silent == m.name {
					c.SilentBy = s.name
				}
			}
			now = append(now, c)
		}
	}
	wasOver := w.over()
	over, _ := w.silences.Look(now, time.Unix(0, 0).Add(w.now))
	for _, name := range over {
		if c := slices.IndexFunc(now, func(c v1alpha1.Carrier) bool { return c.Node == name && c.SilentBy != "" }); c >= 0 && !slices.Contains(wasOver, name) {
			w.word(name, now[c].SilentBy)
		}
	}
	var qualified []string
	for _, m := range w.machines {
		if CanCarry(m.node()) {
			qualified = append(qualified, m.name)
		}
	}
	if others := slices.DeleteFunc(slices.Clone(qualified), func(node string) bool { return slices.Contains(over, node) }); len(others) > 0 {
		qualified = others
	}
	p := Choose(address, 1, true, qualified, now, func(node string) bool { return IsAlive(w.named(node).node()) })
	nodeOf := func(name string) *v1.Node { return w.named(name).node() }
	if spec, changed := AnsweredBy(w.record, p, now, nodeOf); changed {
		if next := spec.Egress.Node; next != w.record.Spec.Egress.Node {
			w.log("the record names %s after %s", next, w.record.Spec.Egress.Node)
			w.moved(w.named(w.record.Spec.Egress.Node), over)
		}
		w.record.Spec = spec
		return
	}
	for _, m := range w.machines {
		m.assigned = slices.Contains(p.Nodes, m.name)
		if m.standby = ""; m.name == p.Standby {
			m.standby = p.Targets[0]
		}
	}
}

func (w *world) over() (all []string) {
	for node, s := range w.silences {
		if w.now-s.since.Sub(time.Unix(0, 0)) >= patience {
			all = append(all, node)
		}
	}
	return all
}

// word judges a standby's word about a carrier that is passed over from now on.
func (w *world) word(carrier, by string) {
	w.words++
	m, s := w.named(carrier), w.named(by)
	w.log("%s says that %s is silent", by, carrier)
	switch {
	case s.lied:
		w.lies++
	case !w.reaches(s): // It is an old word.
	case s.filtered:
	case w.now-w.served > 5*time.Second && w.served >= 0 && m.serves():
		w.fail("%s is passed over by the word of %s, and answers:\n%s", carrier, by, w)
	}
}

// moved judges a move away from a carrier.
func (w *world) moved(m *machine, over []string) {
	if w.served >= 0 && w.now-w.served > time.Second && m.serves() && m.ready && !m.cordoned && m.carried && !slices.Contains(over, m.name) {
		w.fail("the address moves away from %s, which carries it", m.name)
	}
}

// agent has the agent of a node do what is due.
func (w *world) agent(m *machine) {
	if !m.on || !m.works {
		return
	}
	// An assertion of the record's node silences others that hear it.
	if next := w.named(w.record.Spec.Egress.Node); m.kernel && m != next && next != nil && next.serves() && next.works && m.hears(next) {
		m.kernel = false
	}
	if w.reaches(m) && w.IntN(3) == 0 {
		switch {
		case !m.assigned:
			m.kernel = false
		case w.record.Spec.Egress.Node == m.name && !m.kernel:
			w.log("%s answers", m.name)
			m.kernel = true
		}
		m.carried = m.kernel
	}
	if w.now%Interval != m.at || !w.api && w.IntN(2) == 0 {
		return
	}
	if m.of != m.standby {
		m.watch, m.of, m.heard = Watch{}, m.standby, false
	}
	silent := ""
	if m.of != "" && w.ask(m) {
		silent = m.of
	}
	if m.liar {
		silent = w.record.Spec.Egress.Node
	}
	if w.reaches(m) {
		m.silent, m.lied = silent, m.liar
	}
}

// ask has a standby ask once.
func (w *world) ask(m *machine) (silent bool) {
	lost := w.lossy && m.missed < 2 && w.IntN(5) == 0
	if m.missed++; !lost {
		m.missed = 0
	}
	mac := ""
	m.filtered = m.heard && m.deaf[m.of]
	for _, other := range w.machines {
		if to := fmt.Sprint(other.mac); !lost && m.hears(other) && other.kernel && (m.watch.Whom() == "" || m.watch.Whom() == to) {
			mac = to
			m.heard = m.heard || other.name == m.of
		}
	}
	return m.watch.Note(mac, !m.cut)
}

// look lets time pass, and judges.
func (w *world) look() {
	w.now += step
	for _, m := range w.machines {
		w.agent(m)
		// Kubernetes' own view.
		switch {
		case m.on && m.api && w.api:
			m.lost, m.ready = -1, true
		case m.lost < 0:
			m.lost = w.now
		case w.now-m.lost > 40*time.Second && w.api:
			m.ready = false
		}
	}
	w.act()
	carrier := w.named(w.record.Spec.Egress.Node)
	if !carrier.serves() {
		w.served = -1
	} else if w.served < 0 {
		w.served = w.now
	}
	switch isServed := slices.ContainsFunc(w.machines, (*machine).serves); {
	case isServed:
		if w.gap > 0 && !w.excused {
			w.longest = max(w.longest, w.now-w.gap)
		}
		w.gap, w.excused = 0, true
	case w.gap == 0:
		w.gap = w.now
		w.excused = w.lossy || carrier == nil || !w.stands(carrier) || slices.Contains(w.over(), carrier.name)
		if !w.excused {
			w.deaths++
		}
	default:
		w.excused = w.excused || !slices.ContainsFunc(w.machines, func(m *machine) bool {
			return m.of != "" && (m.standby == m.of || w.record.Spec.Egress.Node == m.name) && w.isWell(m)
		})
		if !w.excused && w.now-w.gap > 3*time.Second {
			w.fail("nobody answers since %v, though the standby is well:\n%s", w.gap, w)
		}
	}
}

func (w *world) isWell(m *machine) bool {
	return w.reaches(m) && !m.cut && m.ready && !m.cordoned && !m.liar
}

// stands returns whether a carrier has a standby that can see its death.
func (w *world) stands(carrier *machine) bool {
	return slices.ContainsFunc(w.machines, func(m *machine) bool {
		return m.standby == carrier.name && m.of == carrier.name && m.heard && w.isWell(m) && !m.deaf[carrier.name]
	})
}

// disturb has something happen.
func (w *world) disturb() {
	m := w.machines[w.IntN(len(w.machines))]
	if c := w.named(w.record.Spec.Egress.Node); c != nil && w.IntN(3) == 0 {
		m = c
	}
	what := w.IntN(12)
	w.log("%d happens to %s", what, m.name)
	switch what {
	case 0, 1:
		if m.on = !m.on; m.on {
			m.works, m.watch, m.of = true, Watch{}, ""
		} else {
			m.kernel = false
		}
	case 2:
		m.cut = !m.cut
	case 3:
		m.api = !m.api
	case 4:
		m.works = !m.works
	case 5:
		m.mac++
	case 6:
		m.cordoned = !m.cordoned
	case 7:
		other := w.machines[w.IntN(len(w.machines))]
		m.deaf[other.name] = !m.deaf[other.name]
		other.deaf[m.name] = m.deaf[other.name]
	case 8:
		if w.IntN(4) == 0 {
			m.liar = !m.liar
		}
	case 9:
		if w.IntN(3) == 0 {
			w.api = !w.api
		}
	case 10:
		if w.IntN(5) == 0 {
			w.silences = Silences{}
		}
	case 11: // The agent starts anew.
		m.watch, m.of = Watch{}, ""
	}
}

// heal ends all that is wrong.
func (w *world) heal() {
	w.api = true
	for _, m := range w.machines {
		m.on, m.api, m.works, m.cut, m.cordoned, m.liar = true, true, true, false, false, false
		clear(m.deaf)
	}
}

func (w *world) live() {
	for range 60 {
		for range 20 + w.IntN(400) {
			if w.look(); w.err != nil {
				return
			}
		}
		if w.IntN(3) == 0 {
			w.heal()
		}
		w.disturb()
	}
	w.log("all is well")
	w.heal()
	for range int(11 * time.Minute / step) {
		if w.look(); w.err != nil {
			return
		}
	}
	for _, m := range w.machines {
		if is := m.name == w.record.Spec.Egress.Node; m.kernel != is || m.silent != "" {
			w.fail("all is well, and %s answers: %t, the record's: %t; it says that %q is silent", m.name, m.kernel, is, m.silent)
		}
	}
	if !w.stands(w.named(w.record.Spec.Egress.Node)) && !w.lossy {
		w.fail("all is well, and no standby hears the carrier")
	}
}

// A carrier that dies is followed by another one within three seconds where its standby is well,
// and no carrier that the standby heard is passed over while it answers, whatever gets lost; but
// where the standby lies, or hears it no more.
func TestModel(t *testing.T) {
	seed, draws := seedtest.Seed(t), seedtest.Draws(t, 60, 200)
	var total world
	for i := range draws {
		w := newWorld(seed + i)
		if w.live(); w.err != nil {
			lines := strings.Split(w.trace.String(), "\n")
			t.Fatalf("%s\n%v\nBERTH_TEST_SEED=%d repeats this world first", strings.Join(lines[max(0, len(lines)-40):], "\n"), w.err, seed+i)
		}
		total.deaths, total.words, total.lies = total.deaths+w.deaths, total.words+w.words, total.lies+w.lies
		total.longest = max(total.longest, w.longest)
	}
	t.Logf("%d worlds, %d carriers died beside a standby, after at most %v another one answered; %d words, %d of them lies", draws, total.deaths, total.longest, total.words, total.lies)
	if draws >= 60 && (total.deaths < int(draws)/4 || total.words < int(draws)/4 || total.lies == 0) {
		t.Error("too little happens in these worlds")
	}
}

// Errors against the promises, each with the seed of a world that finds it.
var mutations = []struct {
	file, name, old, new string
	seed                 uint64
}{
	{"watch.go", "silence without the gateway", `w.mac == "" || !gateway`, `w.mac == ""`, 2},
	{"watch.go", "silences that are not in a row", "		*w = Watch{mac: mac}", "		w.mac = mac", 6},
	{"watch.go", "go on after a round without the gateway", "		w.silences = 0\n", "", 428},
	{"watch.go", "believe one lost question", "enough = 4", "enough = 1", 3},
	{"watch.go", "speak of a carrier that was never heard", `w.mac == "" || !gateway`, "!gateway", 2},
	{"watch.go", "keep to one MAC", "	if w.silences > 0 {\n		return \"\"\n	}\n", "", 3},
	{"watch.go", "take too long", "enough = 4", "enough = 8", 1},
	{"silence.go", "believe the silent carrier", "		case was.heard:\n", "", 80},
	{"silence.go", "wait for the silent carrier", "silence{now.Add(-patience), fmt", "silence{now, fmt", 1},
	{"silence.go", "ignore the standby", `case c.SilentBy != "":`, "case false:", 1},
	{"carriers.go", "no standby", "		p.Standby = others[0]\n", "", 1},
	{"carriers.go", "the carrier is its standby", "p.Standby = others[0]", "p.Standby = p.Targets[0]", 1},
	{"carriers.go", "the first by rank carries again", "before := slices.DeleteFunc(slices.Clone(now), func(c v1alpha1.Carrier) bool { return !c.Assigned })", "before := slices.DeleteFunc(slices.Clone(now), func(c v1alpha1.Carrier) bool { return !c.Assigned || !c.Carried || c.Node != qualified[0] })", 1},
}

// TestMutations runs TestModel with each mutation.
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) { mutationtest.Find(t, m.file, m.old, m.new, m.seed, 2000) })
	}
}
