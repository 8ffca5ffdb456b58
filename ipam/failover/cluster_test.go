// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// cut is a cluster in which some nodes are cut off at the same moment, and answer no witness of the
// others.
type cut struct {
	*Cluster
	names []string
	off   map[string]bool
	now   time.Duration
	queue []later
	// emptied are the nodes from which pods were deleted, braked is when the brake began.
	emptied map[string]bool
	braked  time.Duration
}

type later struct {
	at time.Duration
	in Input
}

const cutAt = 100 * time.Second

func newCut(nodes, off int) *cut {
	c := &cut{Cluster: NewCluster(false), off: map[string]bool{}, emptied: map[string]bool{}}
	var inputs []Input
	for i := range nodes {
		name := fmt.Sprintf("node%d", i)
		c.names = append(c.names, name)
		// Their kubelets' phases are spread as all are.
		c.off[name] = i*off/nodes != (i+1)*off/nodes
		inputs = append(inputs, Seen{Node: name, UID: name})
	}
	c.Step(0, append(inputs, Synced{Nodes: c.names}, Leads{Leads: true})...)
	return c
}

// run runs until a time, in steps of 100 ms. Kubelets renew every 10 s.
func (c *cut) run(until time.Duration) {
	const tick, every = 100 * time.Millisecond, 10 * time.Second
	for ; c.now < until; c.now += tick {
		var inputs []Input
		for i, name := range c.names {
			phase := (every * time.Duration(i) / time.Duration(len(c.names))).Truncate(tick)
			if (c.now-phase)%every == 0 && (c.now < cutAt || !c.off[name]) {
				inputs = append(inputs, Renewed{Node: name})
			}
		}
		var rest []later
		for _, l := range c.queue {
			if l.at <= c.now {
				inputs = append(inputs, l.in)
			} else {
				rest = append(rest, l)
			}
		}
		c.queue = rest
		for _, out := range c.Step(c.now, inputs...) {
			c.do(out)
		}
	}
}

func (c *cut) do(out Output) {
	after := func(d time.Duration, in Input) { c.queue = append(c.queue, later{c.now + d, in}) }
	switch out := out.(type) {
	case Look:
		after(100*time.Millisecond, Found{Node: out.Node, Number: out.Number, Witnesses: c.names, Pods: []Pod{{UID: out.Node, Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}}})
	case Ask:
		in, took := Testified{Node: out.Node, Number: out.Number}, 1200*time.Millisecond
		for _, witness := range out.Witnesses {
			t := status.Testimony{Witness: witness.Node, Control: true}
			if c.off[witness.Node] {
				t, took = status.Testimony{Witness: witness.Node, Error: "no answer"}, 4*time.Second
			}
			in.Testimonies = append(in.Testimonies, t)
		}
		after(took, in)
	case Taint:
		after(100*time.Millisecond, Tainted{Node: out.Node, Number: out.Number})
	case Delete:
		c.emptied[out.Node] = true
		after(100*time.Millisecond, Deleted{Node: out.Node, Number: out.Number, Gone: 1})
	case Braked:
		if out.On {
			c.braked = c.now
		}
	}
}

// Nodes that are cut off together become suspect one after another. The brake comes before their
// pods have moved.
func TestCutTogether(t *testing.T) {
	for _, c := range []struct{ nodes, off, most int }{
		{1, 1, 0}, {4, 1, 1}, {100, 1, 1}, {100, 20, 20}, // no case for the brake
		{3, 2, 1}, {6, 3, 1}, {9, 5, 0}, {30, 15, 0}, {100, 50, 0}, {100, 90, 0},
	} {
		w := newCut(c.nodes, c.off)
		w.run(cutAt + 90*time.Second)
		if brakes := 3*c.off > c.nodes && c.off > 1; len(w.emptied) > c.most || brakes != (w.braked > 0) || !brakes && len(w.emptied) < c.most {
			t.Errorf("%d of %d nodes are cut off: pods of %d were deleted, want %d at most; the brake was on at %v", c.off, c.nodes, len(w.emptied), c.most, w.braked)
		}
	}
}

// single is a cluster of four nodes, one of which renews no Lease.
type single struct {
	*Cluster
	now time.Duration
	// say is what the witness says, sayAll what all say, without it.
	say    func(now time.Duration) status.Testimony
	sayAll []status.Testimony
	// gone is how many pods a Delete ends.
	gone, deletes int
	// deleted has the UIDs of pods that were to be deleted.
	deleted map[string]bool
	// moved: they are gone, and found no more.
	moved bool
	// fences are the requests to the fencer, and when. Tests answer them.
	fences []Fence
	fenced []time.Duration
	began  time.Duration
	asks   []Ask
	looks  []Look
	// untaints and taints are those of any node.
	untaints   int
	taints     []Taint
	taintsFail int
	looksFail  bool
	judged     []Judged
	// delays: Deletes wait in delayed.
	delays  bool
	delayed []Delete
}

var (
	isGone = status.Testimony{Witness: "w", Control: true}
	hangs  = status.Testimony{Witness: "w", Control: true, Host: true}
	serves = status.Testimony{Witness: "w", Control: true, Host: true, Agent: true}
	unsure = status.Testimony{Witness: "w", Error: "no answer"}
)

// begin forgets what the fencer was asked.
func (s *single) begin() { s.fences, s.fenced, s.began = nil, nil, s.now }

// says has witnesses say always the same, until it is changed.
func says(t *status.Testimony) func(time.Duration) status.Testimony {
	return func(time.Duration) status.Testimony { return *t }
}

func newSingle(say func(now time.Duration) status.Testimony) *single { return newFenced(say, false) }

// newFenced returns a cluster with a fencer.
func newFenced(say func(now time.Duration) status.Testimony, fences bool) *single {
	s := &single{Cluster: NewCluster(fences), say: say, gone: 1, deleted: map[string]bool{}}
	s.step(Seen{Node: "w", UID: "w"}, Seen{Node: "n", UID: "n"}, Seen{Node: "x", UID: "x"}, Seen{Node: "y", UID: "y"}, Synced{Nodes: []string{"n", "w", "x", "y"}}, Leads{Leads: true})
	return s
}

func (s *single) step(inputs ...Input) {
	for turn := 0; len(inputs) > 0; turn++ {
		if turn > 100 {
			panic("the state machine goes round in circles")
		}
		outputs := s.Step(s.now, inputs...)
		inputs = nil
		for _, out := range outputs {
			switch out := out.(type) {
			case Look:
				s.looks = append(s.looks, out)
				found := Found{Node: out.Node, Number: out.Number, Failed: s.looksFail}
				if !s.moved && !s.looksFail {
					found.Witnesses, found.Pods = []string{"n", "w"}, []Pod{
						{UID: "p", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}, {UID: "manual", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.6")}},
					}
				}
				inputs = append(inputs, found)
			case Ask:
				s.asks = append(s.asks, out)
				say := s.sayAll
				if s.say != nil {
					say = []status.Testimony{s.say(s.now)}
				}
				inputs = append(inputs, Testified{Node: out.Node, Number: out.Number, Testimonies: say})
			case Taint:
				s.taints = append(s.taints, out)
				if s.taintsFail > 0 {
					s.taintsFail--
					inputs = append(inputs, Tainted{Node: out.Node, Number: out.Number, Failed: true})
					continue
				}
				inputs = append(inputs, Seen{Node: out.Node, UID: out.UID, Tainted: true, OutOfService: out.OutOfService}, Tainted{Node: out.Node, Number: out.Number})
			case Untaint:
				s.untaints++
			case Judged:
				s.judged = append(s.judged, out)
			case Fence:
				s.fences, s.fenced = append(s.fences, out), append(s.fenced, s.now)
			case Delete:
				if s.delays {
					s.delayed = append(s.delayed, out)
					continue
				}
				s.deletes++
				for _, pod := range out.Pods {
					s.deleted[pod.UID] = true
				}
				inputs = append(inputs, Deleted{Node: out.Node, Number: out.Number, Gone: s.gone})
			}
		}
	}
}

func (s *single) run(d time.Duration) {
	for end := s.now + d; s.now < end; s.now += time.Second {
		s.step(Renewed{Node: "w"}, Renewed{Node: "x"}, Renewed{Node: "y"})
	}
}

// A link that flaps for a second does not move pods of a node that only lost the API server; power
// that goes then does.
func TestHeardBefore(t *testing.T) {
	flaps, off := false, false
	s := newSingle(func(now time.Duration) status.Testimony {
		if off || now > time.Hour && !flaps {
			flaps = true
			return status.Testimony{Witness: "w", Control: true}
		}
		return status.Testimony{Witness: "w", Control: true, Host: true, Agent: true}
	})
	s.run(2 * time.Hour)
	if !flaps || s.deletes > 0 {
		t.Errorf("the link flapped: %t, pods deleted: %d", flaps, s.deletes)
	}
	off = true
	s.run(time.Minute)
	if s.deletes == 0 {
		t.Error("the node is off, and its pods stay")
	}
}

// Pods that did not ask for it stay on a node that is gone.
func TestNotAsked(t *testing.T) {
	s := newSingle(func(time.Duration) status.Testimony { return status.Testimony{Witness: "w", Control: true} })
	s.run(time.Minute)
	if !maps.Equal(s.deleted, map[string]bool{"p": true}) {
		t.Errorf("the pods %v were to be deleted", s.deleted)
	}
}

// Pods that Kubernetes has not marked for deletion stay on a node that only lost the API server,
// however unreachable.
func TestNotTerminating(t *testing.T) {
	s := newSingle(says(&serves))
	s.step(Seen{Node: "n", UID: "n", Unreachable: true})
	if s.run(time.Hour); s.deletes > 0 || len(s.taints) > 0 {
		t.Errorf("%d deletions, %d taints", s.deletes, len(s.taints))
	}
}

// A pod that cannot be deleted is tried ever later.
func TestPodStays(t *testing.T) {
	s := newSingle(func(time.Duration) status.Testimony { return status.Testimony{Witness: "w", Control: true} })
	s.gone = 0
	s.run(time.Hour)
	if s.deletes < 100 || s.deletes > 150 {
		t.Errorf("tried %d times in an hour", s.deletes)
	}
}

// Nodes that have left are not counted.
func TestKnown(t *testing.T) {
	s := newSingle(nil)
	for i := range 10 {
		name := fmt.Sprintf("old%d", i)
		s.step(Seen{Node: name, UID: name}, Renewed{Node: name}, Left{Node: name})
	}
	if known := s.State().Known; known != 4 {
		t.Errorf("%d nodes are known", known)
	}
}

// A node that lost the API server comes back for Kubernetes, between the verdict and the taint: its
// kubelet ends its pods in peace.
func TestBackBeforeDelete(t *testing.T) {
	c := NewCluster(false)
	c.Step(0, Seen{Node: "w", UID: "w"}, Seen{Node: "n", UID: "n", Unreachable: true}, Synced{Nodes: []string{"n", "w"}}, Leads{Leads: true})
	deletes, taints := 0, 0
	for now := time.Second; now < time.Minute; now += time.Second {
		inputs := []Input{Renewed{Node: "w"}}
		for len(inputs) > 0 {
			outputs := c.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				switch out := out.(type) {
				case Look:
					inputs = append(inputs, Found{Node: out.Node, Number: out.Number, Witnesses: []string{"w"}, Pods: []Pod{{UID: "p", Automatic: true, Terminating: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}}})
				case Ask:
					inputs = append(inputs, Testified{Node: out.Node, Number: out.Number, Testimonies: []status.Testimony{{Witness: "w", Control: true, Host: true, Agent: true}}})
				case Taint:
					taints++
					inputs = append(inputs, Seen{Node: "n", UID: "n"}, Tainted{Node: out.Node, Number: out.Number})
				case Delete:
					deletes++
				}
			}
		}
	}
	if taints != 1 || deletes > 0 {
		t.Errorf("%d taints, %d deletions", taints, deletes)
	}
}

// lastGate are things after which pods are not deleted any more, nor the fencer asked.
var lastGate = map[string]func(s *single){
	"the node is back":         func(s *single) { s.step(Renewed{Node: "n"}) },
	"another machine":          func(s *single) { s.step(Seen{Node: "n", UID: "other"}) },
	"the watch breaks":         func(s *single) { s.step(Broken{}) },
	"the watch breaks, and is": func(s *single) { s.step(Broken{}, Synced{Nodes: []string{"n", "w", "x", "y"}}) },
	"another replica leads":    func(s *single) { s.step(Leads{}) },
	"it leads again":           func(s *single) { s.step(Leads{}, Leads{Leads: true}) },
	"the process stood still":  func(s *single) { s.now += 6 * time.Second; s.Step(s.now) },
	"another node is overdue":  func(s *single) { s.renew(12*time.Second, "w", "x") },
	"the brake is on":          func(s *single) { s.renew(16*time.Second, "w", "x") },
}

// renew lets time pass, in which some nodes renew their Leases.
func (s *single) renew(d time.Duration, nodes ...string) {
	for end := s.now + d; s.now < end; {
		s.now += time.Second
		var inputs []Input
		for _, n := range nodes {
			inputs = append(inputs, Renewed{Node: n})
		}
		s.step(inputs...)
	}
}

// What happens after a Delete keeps pods from being deleted: the caller asks right before each.
func TestDeletes(t *testing.T) {
	for name, meanwhile := range lastGate {
		s := newSingle(says(&isGone))
		s.delays = true
		s.run(16 * time.Second)
		if len(s.delayed) != 1 || !s.Deletes(s.delayed[0]) {
			t.Fatalf("%s: %d deletions wait", name, len(s.delayed))
		}
		if meanwhile(s); s.Deletes(s.delayed[0]) {
			t.Errorf("%s, and pods are deleted", name)
		}
	}
}

// An answer to a deletion of another round ends no round.
func TestOldRound(t *testing.T) {
	s := newSingle(says(&isGone))
	s.delays = true
	s.run(16 * time.Second)
	of := s.delayed[0]
	s.step(Deleted{Node: of.Node, Number: of.Number - 1, Gone: 1})
	if !s.Deletes(of) {
		t.Error("the answer to an older round ended this one")
	}
	s.step(Deleted{Node: of.Node, Number: of.Number, Gone: 1})
	if s.Deletes(of) {
		t.Error("pods are deleted, of which was said that they are")
	}
}

// What happens after a Fence keeps the fencer from being asked, or has the request given up. The
// brake, and a node that is overdue, need not end one that is under way.
func TestFences(t *testing.T) {
	for name, meanwhile := range lastGate {
		s := newFenced(says(&hangs), true)
		s.run(16 * time.Second)
		if len(s.fences) != 1 || !s.Fences(s.fences[0]) || !s.Awaits(s.fences[0]) {
			t.Fatalf("%s: the fencer is asked %v", name, s.fences)
		}
		meanwhile(s)
		if s.Fences(s.fences[0]) || s.Awaits(s.fences[0]) && name != "another node is overdue" {
			t.Errorf("%s, and the node is powered off", name)
		}
	}
}

// A request to power a node off is withdrawn when the node answers, or may be starting, or nobody
// can say; also after its pods have moved. The fencer is not asked by an old verdict.
func TestWithdrawn(t *testing.T) {
	for name, c := range map[string]struct {
		before, after status.Testimony
		moved         bool
		withdrawn     bool
	}{
		"it hangs":                      {before: hangs, after: hangs},
		"it hung, and is gone":          {before: hangs, after: isGone},
		"it hung, and serves":           {before: hangs, after: serves, withdrawn: true},
		"it hung, and nobody can say":   {before: hangs, after: unsure, withdrawn: true},
		"it is gone":                    {before: isGone, after: isGone},
		"it is gone, its pods moved":    {before: isGone, after: isGone, moved: true},
		"it was gone, and serves":       {before: isGone, after: serves, withdrawn: true},
		"it was gone, and answers":      {before: isGone, after: hangs, withdrawn: true},
		"its pods moved, and it serves": {before: isGone, after: serves, moved: true, withdrawn: true},
		"its pods moved, it answers":    {before: isGone, after: hangs, moved: true, withdrawn: true},
	} {
		said := c.before
		s := newFenced(says(&said), true)
		s.run(16 * time.Second)
		if len(s.fences) != 1 {
			t.Fatalf("%s: the fencer is asked %d times", name, len(s.fences))
		}
		said, s.moved = c.after, c.moved
		s.run(40 * time.Second)
		if s.Awaits(s.fences[0]) == c.withdrawn {
			t.Errorf("%s: withdrawn %t", name, !c.withdrawn)
		}
		// Its answer says nothing any more.
		if c.withdrawn {
			s.step(Fenced{Node: "n", UID: "n", Off: true})
			if s.State().Nodes[0].Fenced {
				t.Errorf("%s: an answer that nobody waits for is believed", name)
			}
		}
		if last := s.asks[len(s.asks)-1]; last.Moved != c.moved {
			t.Errorf("%s: asked %+v", name, last)
		}
		// A node that is to be off is looked at in any case.
		if last := s.looks[len(s.looks)-1]; !c.withdrawn && !last.Empty {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

// A fencer's answer about another machine of the same name says nothing.
func TestAnotherMachine(t *testing.T) {
	s := newFenced(says(&hangs), true)
	s.run(16 * time.Second)
	s.step(Fenced{Node: "n", UID: "before", Off: true})
	if s.State().Nodes[0].Fenced {
		t.Error("the fencer has powered another machine off, and this one counts as off")
	}
	if !s.Awaits(s.fences[0]) {
		t.Error("the request about this machine was given up")
	}
	if s.Awaits(Fence{"n", "before"}) || s.Fences(Fence{"n", "before"}) {
		t.Error("another machine of the name is powered off")
	}
	s.step(Fenced{Node: "n", UID: "n", Off: true})
	if !s.State().Nodes[0].Fenced {
		t.Error("the machine is off, and does not count as off")
	}
}

// A verdict that is older than five seconds has nothing powered off: the API server may have taken
// its time.
func TestOldVerdict(t *testing.T) {
	s := newFenced(says(&hangs), true)
	s.run(16 * time.Second)
	say := s.say
	// Nobody looks meanwhile.
	for range 6 {
		s.now += time.Second
		s.Step(s.now, Renewed{Node: "w"}, Renewed{Node: "x"}, Renewed{Node: "y"})
	}
	if s.say = say; s.Fences(s.fences[0]) || !s.Awaits(s.fences[0]) {
		t.Errorf("fences %t, awaits %t", s.Fences(s.fences[0]), s.Awaits(s.fences[0]))
	}
}

// A machine that may be starting is not powered off for five minutes: one that answers again, and
// one about which nobody could say anything for over a minute. If a person said that it is off, it
// is powered off at once.
func TestMayBoot(t *testing.T) {
	const starts = 5 * time.Minute
	for name, c := range map[string]struct {
		live func(s *single, said *status.Testimony)
		// The fencer is asked between from and within after live, or after it called begin.
		from, within time.Duration
	}{
		"it hangs":   {func(s *single, said *status.Testimony) { *said = hangs }, 0, 16 * time.Second},
		"it is gone": {func(s *single, said *status.Testimony) {}, 0, 16 * time.Second},
		"it answers again": {func(s *single, said *status.Testimony) {
			s.run(16 * time.Second)
			*said = hangs
			s.begin()
			s.step(Fenced{Node: "n", UID: "n"})
		}, starts, starts + time.Minute},
		"after the brake": {func(s *single, said *status.Testimony) {
			s.renew(80*time.Second, "w")
			s.run(59 * time.Second)
			s.begin()
		}, starts, starts + time.Minute},
		"after the brake, which a person ended": {func(s *single, said *status.Testimony) {
			s.renew(80*time.Second, "w")
			s.begin()
			s.step(Resume{Nodes: []string{"n"}}, Renewed{Node: "x"}, Renewed{Node: "y"})
		}, 0, 16 * time.Second},
		"after nobody could say": {func(s *single, said *status.Testimony) {
			*said = unsure
			s.run(2 * time.Minute)
			*said = hangs
			s.begin()
		}, starts, starts + time.Minute},
		"after another led": {func(s *single, said *status.Testimony) {
			s.step(Leads{})
			s.run(2 * time.Minute)
			*said = hangs
			s.begin()
			s.step(Leads{Leads: true})
		}, starts, starts + time.Minute},
		"after another led for a moment": {func(s *single, said *status.Testimony) {
			*said = hangs
			s.step(Leads{})
			s.run(20 * time.Second)
			s.begin()
			s.step(Leads{Leads: true})
		}, 0, 2 * time.Second},
		"it renewed meanwhile": {func(s *single, said *status.Testimony) {
			s.run(16 * time.Second)
			s.step(Fenced{Node: "n", UID: "n"})
			*said = hangs
			s.begin()
			s.step(Renewed{Node: "n"})
		}, 0, 16 * time.Second},
	} {
		said := isGone
		s := newFenced(says(&said), true)
		c.live(s, &said)
		s.run(s.began + c.within + time.Second - s.now)
		if len(s.fences) != 1 || s.fenced[0]-s.began < c.from {
			t.Errorf("%s: after %v the fencer is asked at %v, want it %v later at least", name, s.began, s.fenced, c.from)
		}
	}
}

// A node of which Kubernetes knows that it is off is not powered off again: somebody may have
// switched it on.
func TestOffAlready(t *testing.T) {
	said := hangs
	s := newFenced(says(&said), true)
	s.step(Seen{Node: "n", UID: "n", Tainted: true, OutOfService: true})
	s.run(10 * time.Minute)
	if len(s.fences) > 0 {
		t.Errorf("the fencer is asked at %v", s.fenced)
	}
	// It came back, and hangs again.
	s.step(Renewed{Node: "n"}, Seen{Node: "n", UID: "n"})
	s.run(20 * time.Second)
	if len(s.fences) != 1 {
		t.Errorf("the fencer is asked at %v", s.fenced)
	}
}

// A fencer that fails is asked again ever later. Once it has powered the node off Kubernetes is
// told at once.
func TestFencerFails(t *testing.T) {
	s := newFenced(says(&hangs), true)
	for len(s.fences) < 8 && s.now < time.Hour {
		before := len(s.fences)
		s.run(time.Second)
		if len(s.fences) > before {
			s.step(Fenced{Node: "n", UID: "n"})
		}
	}
	// It takes a second.
	var pauses []time.Duration
	for i := 1; i < len(s.fenced); i++ {
		pauses = append(pauses, s.fenced[i]-s.fenced[i-1])
	}
	if want := "[11s 21s 41s 1m21s 2m1s 2m1s 2m1s]"; fmt.Sprint(pauses) != want {
		t.Errorf("asked again after %v, want %s", pauses, want)
	}
	// After it was back the pauses are the first ones again.
	s.step(Renewed{Node: "n"})
	s.begin()
	s.run(16 * time.Second)
	if len(s.fences) != 1 {
		t.Errorf("a node that was back hangs: asked %v", s.fenced)
	}
	s.step(Fenced{Node: "n", UID: "n"})
	s.run(11 * time.Second)
	if len(s.fences) != 2 || s.fenced[1]-s.fenced[0] > 11*time.Second {
		t.Errorf("a node that was back hangs: asked %v", s.fenced)
	}
	// It takes its time, so that the next round is far.
	s.run(80 * time.Second)
	s.begin()
	s.step(Fenced{Node: "n", UID: "n"})
	if s.run(22 * time.Second); len(s.fences) != 1 || s.fenced[0]-s.began > 21*time.Second {
		t.Errorf("after %v asked again at %v, want it 20 s later", s.began, s.fenced)
	}
	s.run(80 * time.Second)
	if len(s.taints) > 0 {
		t.Fatalf("taints %v", s.taints)
	}
	s.taintsFail = 2
	s.step(Fenced{Node: "n", UID: "n", Off: true})
	s.run(4 * time.Second)
	if len(s.taints) != 3 || !s.taints[0].OutOfService || s.deletes != 1 {
		t.Errorf("four seconds after it is off: taints %v, %d deletions", s.taints, s.deletes)
	}
	// The fencer is not asked again, nor is a node that is off asked about.
	// Pods that are still there are deleted on.
	if s.run(time.Minute); s.deletes < 3 {
		t.Errorf("%d deletions in a minute", s.deletes)
	}
	s.moved = true
	asks, fences, taints := len(s.asks), len(s.fences), len(s.taints)
	s.run(10 * time.Minute)
	if len(s.asks) != asks || len(s.fences) != fences || len(s.taints) != taints {
		t.Errorf("a node that is off: asked about %d times, the fencer %d times, %d taints", len(s.asks)-asks, len(s.fences)-fences, len(s.taints)-taints)
	}
	// Kubernetes is told again where it does not know yet, also where all pods have moved.
	s.step(Seen{Node: "n", UID: "n", Tainted: true})
	if s.run(time.Minute); len(s.taints) != taints+1 || !s.taints[taints].OutOfService {
		t.Errorf("a node that is off, of which Kubernetes does not know: %v", s.taints[taints:])
	}
}

// What the fencer said, and that it was to be asked, is of another time once another replica has
// led, or renewals were not seen.
func TestAfterStop(t *testing.T) {
	for name, stop := range map[string]func(s *single){
		"another led":      func(s *single) { s.step(Leads{}); s.step(Leads{Leads: true}) },
		"the watch broke":  func(s *single) { s.step(Broken{}); s.step(Synced{Nodes: []string{"n", "w", "x", "y"}}) },
		"it stood still":   func(s *single) { s.now += 10 * time.Second; s.Step(s.now) },
		"the Node was new": func(s *single) { s.step(Left{Node: "n"}); s.step(Seen{Node: "n", UID: "n"}) },
	} {
		said := hangs
		s := newFenced(says(&said), true)
		s.run(16 * time.Second)
		s.step(Fenced{Node: "n", UID: "n", Off: true})
		if len(s.taints) != 1 || !s.taints[0].OutOfService {
			t.Fatalf("%s: taints %v", name, s.taints)
		}
		s.taints, said = nil, serves
		if stop(s); len(s.State().Nodes) > 0 && s.State().Nodes[0].Fenced {
			t.Errorf("%s, and the node still counts as off", name)
		}
		s.run(time.Minute)
		if len(s.taints) > 0 {
			t.Errorf("%s: taints %v", name, s.taints)
		}

		said = isGone
		s = newFenced(says(&said), true)
		s.run(16 * time.Second)
		s.moved = true
		stop(s)
		asks := len(s.asks)
		s.run(time.Minute)
		if len(s.asks) > asks || s.State().Nodes[0].Unfenced || s.looks[len(s.looks)-1].Empty {
			t.Errorf("%s: a node without pods is asked about %d times", name, len(s.asks)-asks)
		}
	}
}

// An answer that belongs to a round that was ended ends no other, whatever it waits for.
func TestLateAnswers(t *testing.T) {
	c := NewCluster(false)
	c.Step(0, Seen{Node: "w", UID: "w"}, Seen{Node: "n", UID: "n"}, Synced{Nodes: []string{"n", "w"}}, Leads{Leads: true})
	now := time.Duration(0)
	step := func(inputs ...Input) []Output {
		now += time.Second
		return c.Step(now, append(inputs, Renewed{Node: "w"})...)
	}
	look := func(outputs []Output) (of Look, is bool) {
		if len(outputs) > 0 {
			of, is = outputs[0].(Look)
		}
		return of, is
	}
	var first Look
	for is := false; !is && now < time.Minute; {
		first, is = look(step())
	}
	step(Leads{})
	second, is := look(step(Leads{Leads: true}))
	pods := []Pod{{UID: "p", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}}
	if !is || second.Number == first.Number {
		t.Fatalf("rounds %+v and %+v", first, second)
	}
	if outputs := step(Found{Node: "n", Number: first.Number, Pods: pods, Witnesses: []string{"w"}}); len(outputs) > 0 {
		t.Errorf("an answer to the round before has %+v follow", outputs)
	}
	if outputs := step(Testified{Node: "n", Number: second.Number}, Tainted{Node: "n", Number: second.Number}, Deleted{Node: "n", Number: second.Number}); len(outputs) > 0 {
		t.Errorf("answers to other questions have %+v follow", outputs)
	}
	outputs := step(Found{Node: "n", Number: second.Number, Pods: pods, Witnesses: []string{"w"}})
	if len(outputs) != 1 || fmt.Sprintf("%T", outputs[0]) != "failover.Ask" {
		t.Errorf("the answer to this round has %+v follow", outputs)
	}
	if c.Awaits(Fence{"left", "u"}) {
		t.Error("the fencer's answer about a node that is not there is waited for")
	}
	// About nodes that are not there.
	for _, in := range []Input{
		Found{Node: "left"}, Testified{Node: "left"}, Tainted{Node: "left"}, Deleted{Node: "left"}, Fenced{Node: "left", UID: "u"}, Renewed{Node: "left"}, Left{Node: "left"},
		Resume{Nodes: []string{"left"}},
	} {
		if outputs := step(in); len(outputs) > 0 {
			t.Errorf("%T of a node that is not there: %+v", in, outputs)
		}
	}
}

// Suspect are nodes with a Lease, also one that came later; not one that lost it.
func TestLeases(t *testing.T) {
	c := NewCluster(false)
	now := time.Duration(0)
	run := func() (looked string) {
		for range 16 {
			now += time.Second
			for _, out := range c.Step(now, Renewed{Node: "w"}) {
				if look, is := out.(Look); is {
					looked += look.Node + " "
				}
			}
		}
		return looked
	}
	c.Step(0, Seen{Node: "w", UID: "w"}, Seen{Node: "none", UID: "none"}, Synced{Nodes: []string{"w"}}, Leads{Leads: true})
	if got := run(); got != "" || len(c.State().Nodes) > 0 || c.State().Known != 1 {
		t.Errorf("looks at %q, %+v", got, c.State())
	}
	c.Step(now, Seen{Node: "later", UID: "later"}, Renewed{Node: "later"})
	if got := run(); got != "later " {
		t.Errorf("looks at %s", got)
	}
	c.Step(now, Broken{}, Synced{Nodes: []string{"w", "none"}})
	if got := run(); got != "none " {
		t.Errorf("looks at %s", got)
	}
}

// The taints of a node that is back are ended by the replica that leads, by each renewal until they
// are seen to be gone.
func TestUntaint(t *testing.T) {
	for name, c := range map[string]struct {
		seen Seen
		want int
	}{
		"none":           {Seen{Node: "n", UID: "n", Unreachable: true}, 0},
		"lost":           {Seen{Node: "n", UID: "n", Tainted: true}, 2},
		"out of service": {Seen{Node: "n", UID: "n", OutOfService: true}, 2},
	} {
		s := newSingle(nil)
		s.step(c.seen)
		s.step(Renewed{Node: "n"})
		s.step(Renewed{Node: "n"})
		if s.untaints != c.want {
			t.Errorf("%s: ended %d times", name, s.untaints)
		}
		s.step(Leads{})
		if s.step(Renewed{Node: "n"}); s.untaints != c.want {
			t.Errorf("%s: a replica that does not lead ends taints", name)
		}
	}
}

// A person's word holds for nodes that are suspect and that the person was shown, until they renew
// their Leases: they do not count for the brake, when another node is lost.
func TestResume(t *testing.T) {
	resume := func(nodes ...string) func(s *single) { return func(s *single) { s.step(Resume{Nodes: nodes}) } }
	for name, c := range map[string]struct {
		live   func(s *single)
		brakes bool
	}{
		"nobody says a word":         {func(*single) {}, true},
		"of this node":               {resume("n", "w", "left"), false},
		"of another one":             {resume("w"), true},
		"of none":                    {resume(), true},
		"and the Leases were listed": {func(s *single) { resume("n")(s); s.step(Synced{Nodes: []string{"n", "w", "x", "y"}}) }, false},
		"and said again then": {func(s *single) {
			resume("n")(s)
			s.step(Synced{Nodes: []string{"n", "w", "x", "y"}})
			resume("n")(s)
		}, false},
		"before it was suspect": {func(s *single) { s.step(Renewed{Node: "n"}); resume("n")(s) }, true},
		"and it was back":       {func(s *single) { resume("n")(s); s.step(Renewed{Node: "n"}) }, true},
	} {
		s := newSingle(says(&isGone))
		s.run(16 * time.Second)
		c.live(s)
		s.run(16 * time.Second)
		if s.renew(16*time.Second, "w", "y"); s.State().Braked != c.brakes {
			t.Errorf("%s: the brake is on: %t", name, !c.brakes)
		}
	}
}

// A look that failed says nothing, and the node is looked at again, ever later.
func TestLookFails(t *testing.T) {
	s := newSingle(says(&isGone))
	s.looksFail = true
	s.run(time.Minute + 15*time.Second)
	// At 0, 1, 3, 7, 15, 31 s.
	if n := s.State().Nodes[0]; n.Looked || n.Verdict != "" || len(s.asks) > 0 || len(s.looks) != 6 {
		t.Errorf("%+v after %d looks and %d questions", n, len(s.looks), len(s.asks))
	}
	s.looksFail = false
	if s.run(31 * time.Second); s.deletes == 0 {
		t.Error("the API server answers again, and the pods stay")
	}
}

// A node whose pods have gone has no verdict any more, and is looked at again: pods may come.
func TestPodsGone(t *testing.T) {
	s := newSingle(says(&serves))
	s.run(20 * time.Second)
	if n := s.State().Nodes[0]; n.Verdict != status.APILost || len(n.Pods) != 1 || len(n.Testimonies) != 1 || !n.Looked || n.Judged == 0 {
		t.Errorf("%+v", n)
	}
	s.moved = true
	s.run(time.Minute)
	if n := s.State().Nodes[0]; n.Verdict != "" || len(n.Pods)+len(n.Moves)+len(n.Testimonies) > 0 || !n.Looked {
		t.Errorf("its pods have gone: %+v", n)
	}
	s.moved = false
	if s.run(time.Minute); s.State().Nodes[0].Verdict != status.APILost {
		t.Errorf("pods have come: %+v", s.State().Nodes[0])
	}
	// So it is where they were to move.
	s = newSingle(says(&isGone))
	s.run(20 * time.Second)
	if n := s.State().Nodes[0]; len(n.Moves) != 1 {
		t.Errorf("%+v", n)
	}
	s.moved = true
	if s.run(time.Minute); len(s.State().Nodes[0].Moves) > 0 {
		t.Errorf("its pods have gone: %+v", s.State().Nodes[0])
	}
}

// What testimonies say together.
func TestVerdict(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.5")
	answers := status.Testimony{Witness: "w", Addresses: []netip.Addr{addr}}
	for name, c := range map[string]struct {
		say  []status.Testimony
		want status.Verdict
	}{
		"nobody was asked":                {nil, status.Unclear},
		"nobody can say":                  {[]status.Testimony{unsure, {Witness: "x"}}, status.Unclear},
		"one hears nothing":               {[]status.Testimony{unsure, isGone}, status.Gone},
		"one hears the kernel":            {[]status.Testimony{isGone, hangs, isGone}, status.Hung},
		"one hears an address":            {[]status.Testimony{answers}, status.Hung},
		"one hears an address, one not":   {[]status.Testimony{answers, isGone}, status.Hung},
		"one hears the agent":             {[]status.Testimony{isGone, hangs, {Witness: "x", Agent: true}, hangs}, status.APILost},
		"one hears the agent, others not": {[]status.Testimony{{Witness: "x", Agent: true}, isGone}, status.APILost},
	} {
		s := newSingle(nil)
		s.sayAll = c.say
		s.run(16 * time.Second)
		if len(s.judged) != 1 || s.judged[0].Verdict != c.want || s.judged[0].Node != "n" || len(s.judged[0].Testimonies) != len(c.say) {
			t.Errorf("%s: %+v, want %s", name, s.judged, c.want)
		}
	}
}

// Users are told a verdict once. One that was heard before is gone if it is found so twice, a
// second apart.
func TestJudged(t *testing.T) {
	said := serves
	s := newSingle(says(&said))
	told := func(want ...status.Verdict) {
		t.Helper()
		var got []status.Verdict
		for _, j := range s.judged {
			got = append(got, j.Verdict)
			if gone := j.Verdict == status.Gone; len(j.Pods) != 1 || gone != (len(j.Moves) == 1) {
				t.Errorf("%+v", j)
			}
		}
		if s.judged = nil; !slices.Equal(got, want) {
			t.Errorf("at %v users are told %v, want %v", s.now, got, want)
		}
	}
	s.run(5 * time.Minute)
	told(status.APILost)
	said = hangs
	s.run(time.Minute)
	told(status.Hung)
	said = isGone
	for asks := len(s.asks); len(s.asks) == asks && s.now < time.Hour; {
		s.run(time.Second)
	}
	told()
	if n := s.State().Nodes[0]; n.Verdict != status.Hung || len(n.Moves) > 0 || s.deletes > 0 {
		t.Errorf("gone once: %+v, %d deletions", n, s.deletes)
	}
	asks := len(s.asks)
	if s.run(time.Second); len(s.asks) != asks+1 || s.deletes != 1 {
		t.Errorf("a second later asked %d times, %d deletions", len(s.asks)-asks, s.deletes)
	}
	told(status.Gone)
}

// After a taint pods are deleted only where it was written, in time, and nothing moves otherwise.
func TestAfterTaint(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(c *Cluster, of Taint) []Output
		want   bool
	}{
		"it is written": {func(c *Cluster, of Taint) []Output {
			return c.Step(17*time.Second, Renewed{Node: "w"}, Tainted{Node: "n", Number: of.Number})
		}, true},
		"it is not": {func(c *Cluster, of Taint) []Output {
			return c.Step(17*time.Second, Renewed{Node: "w"}, Tainted{Node: "n", Number: of.Number, Failed: true})
		}, false},
		"another node is overdue": {func(c *Cluster, of Taint) []Output {
			return c.Step(17*time.Second, Tainted{Node: "n", Number: of.Number})
		}, false},
		"it took long": {func(c *Cluster, of Taint) []Output {
			c.Step(19*time.Second, Renewed{Node: "w"})
			return c.Step(22*time.Second, Renewed{Node: "w"}, Tainted{Node: "n", Number: of.Number})
		}, false},
		"the node is back": {func(c *Cluster, of Taint) []Output {
			return c.Step(17*time.Second, Renewed{Node: "w"}, Renewed{Node: "n"}, Tainted{Node: "n", Number: of.Number})
		}, false},
	} {
		cluster := NewCluster(false)
		cluster.Step(0, Seen{Node: "n", UID: "n"}, Seen{Node: "w", UID: "w"}, Synced{Nodes: []string{"n", "w"}}, Leads{Leads: true})
		var taint *Taint
		for now := time.Second; taint == nil && now < 17*time.Second; now += time.Second {
			var inputs []Input
			if now == 6*time.Second {
				inputs = append(inputs, Renewed{Node: "w"})
			}
			for again := true; again; again = len(inputs) > 0 {
				outputs := cluster.Step(now, inputs...)
				inputs = nil
				for _, out := range outputs {
					switch out := out.(type) {
					case Look:
						inputs = append(inputs, Found{Node: "n", Number: out.Number, Witnesses: []string{"w"}, Pods: []Pod{{UID: "p", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}}})
					case Ask:
						inputs = append(inputs, Testified{Node: "n", Number: out.Number, Testimonies: []status.Testimony{isGone}})
					case Taint:
						taint = &out
					}
				}
			}
		}
		if taint == nil {
			t.Fatalf("%s: no taint", name)
		}
		deletes := false
		for _, out := range c.answer(cluster, *taint) {
			_, is := out.(Delete)
			deletes = deletes || is
		}
		if deletes != c.want {
			t.Errorf("%s: pods are deleted: %t", name, deletes)
		}
	}
}

// What users are shown.
func TestState(t *testing.T) {
	said := hangs
	s := newFenced(says(&said), true)
	s.step(Seen{Node: "a", UID: "a"}, Seen{Node: "x", UID: "x", Tainted: true}, Seen{Node: "w", UID: "w", OutOfService: true}, Seen{Node: "y", UID: "y", Unreachable: true})
	shown := func() string {
		var names []string
		state := s.State()
		for _, n := range state.Nodes {
			names = append(names, fmt.Sprintf("%s suspect:%t tainted:%t unfenced:%t boots:%t fenced:%t", n.Node, n.Suspect, n.Tainted, n.Unfenced, n.Boots, n.Fenced))
		}
		return fmt.Sprintf("%d of %d suspect, leads:%t watching:%t braked:%t %q", state.Suspects, state.Known, state.Leads, state.Watching, state.Braked, names)
	}
	expect := func(when, node string, suspects int) {
		t.Helper()
		var names []string
		if node != "" {
			names = append(names, node)
		}
		names = append(names, "w suspect:false tainted:false unfenced:false boots:false fenced:false", "x suspect:false tainted:true unfenced:false boots:false fenced:false")
		if got, want := shown(), fmt.Sprintf("%d of 4 suspect, leads:true watching:true braked:false %q", suspects, names); got != want {
			t.Errorf("%s:\n%s, want\n%s", when, got, want)
		}
	}
	s.run(14 * time.Second)
	expect("none is suspect", "", 0)
	s.run(2 * time.Second)
	expect("it hangs", "n suspect:true tainted:false unfenced:true boots:false fenced:false", 1)
	said = isGone
	s.run(10 * time.Second)
	said = hangs
	s.run(20 * time.Second)
	expect("it may be starting", "n suspect:true tainted:true unfenced:false boots:true fenced:false", 1)
	s.run(6 * time.Minute)
	expect("it did not start", "n suspect:true tainted:true unfenced:true boots:false fenced:false", 1)
	s.step(Fenced{Node: "n", UID: "n"})
	s.run(time.Minute)
	s.step(Fenced{Node: "n", UID: "n", Off: true})
	s.run(2 * time.Second)
	expect("it is off", "n suspect:true tainted:true unfenced:false boots:false fenced:true", 1)
}

// The brake stays on while renewals are not seen, and for a minute after.
func TestBrakeStays(t *testing.T) {
	s := newSingle(says(&isGone))
	s.run(time.Second)
	s.renew(20*time.Second, "w", "y")
	on := func(want bool, when string) {
		t.Helper()
		if s.State().Braked != want {
			t.Errorf("%s: the brake is on: %t", when, !want)
		}
	}
	on(true, "two of four nodes are lost")
	began := s.State().BrakedAt
	s.step(Broken{})
	s.renew(2*time.Minute, "n", "w", "x", "y")
	on(true, "the watch is broken")
	s.step(Synced{Nodes: []string{"n", "w", "x", "y"}})
	s.renew(58*time.Second, "n", "w", "x", "y")
	on(true, "a minute after")
	if at := s.State().BrakedAt; at != began || at == 0 {
		t.Errorf("the brake began at %v, and now is said to have at %v", began, at)
	}
	s.renew(3*time.Second, "n", "w", "x", "y")
	on(false, "later")
}

// After pods were deleted the rest is looked at soon, however late the round was.
func TestRest(t *testing.T) {
	said := unsure
	s := newSingle(says(&said))
	s.run(5 * time.Minute)
	said = isGone
	for s.deletes == 0 && s.now < time.Hour {
		s.run(time.Second)
	}
	looks := len(s.looks)
	s.run(3 * time.Second)
	if len(s.looks) != looks+3 {
		t.Errorf("looked %d times in three seconds", len(s.looks)-looks)
	}
}

// Outputs about several nodes have an order: the same inputs have the same outputs.
func TestOrder(t *testing.T) {
	c := NewCluster(false)
	inputs := []Input{Leads{Leads: true}}
	var names, suspects []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("node%02d", i))
		inputs = append(inputs, Seen{Node: names[i], UID: names[i]})
	}
	c.Step(0, append(inputs, Synced{Nodes: names})...)
	for now := time.Second; now < 16*time.Second; now += time.Second {
		inputs = nil
		for _, name := range names[20:] {
			inputs = append(inputs, Renewed{Node: name})
		}
		for _, out := range c.Step(now, inputs...) {
			if look, is := out.(Look); is {
				suspects = append(suspects, look.Node)
			}
		}
	}
	if !slices.Equal(suspects, names[:20]) {
		t.Errorf("looks at %v", suspects)
	}
}

// Witnesses are nodes that can be, and live; controls are any that live. The ones that renewed last
// are chosen, and each witness has its own controls where there are enough.
func TestWitnesses(t *testing.T) {
	c := NewCluster(false)
	var inputs []Input
	var names []string
	for i := range 12 {
		name := fmt.Sprintf("node%02d", i)
		names = append(names, name)
		inputs = append(inputs, Seen{Node: name, UID: name})
	}
	c.Step(0, append(inputs, Synced{Nodes: names}, Leads{Leads: true})...)
	asked := map[string]string{}
	addr := netip.MustParseAddr("10.0.0.5")
	for now := time.Second; now < 20*time.Second; now += time.Second {
		// It has no Lease yet.
		inputs := []Input{Left{Node: "new"}, Seen{Node: "new", UID: "new"}}
		for i, name := range names[2:] {
			// All but the first three have renewed a while ago.
			if i < 3 || now%(9*time.Second) == 0 {
				inputs = append(inputs, Renewed{Node: name})
			}
		}
		for len(inputs) > 0 {
			outputs := c.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				switch out := out.(type) {
				case Look:
					can := append([]string{"new", "left"}, names...)
					if out.Node == "node01" {
						can = names[5:7]
					}
					inputs = append(inputs, Found{Node: out.Node, Number: out.Number, Witnesses: can, Pods: []Pod{{UID: "p", Automatic: true, Addresses: []netip.Addr{addr}}}})
				case Ask:
					asked[out.Node] = fmt.Sprint(out.Witnesses)
					if !slices.Equal(out.Addresses, []netip.Addr{addr}) || out.Moved {
						t.Errorf("asked %+v", out)
					}
				}
			}
		}
	}
	want := map[string]string{
		"node00": "[{node02 [node03 node04]} {node03 [node05 node06]} {node04 [node07 node08]}]",
		"node01": "[{node05 [node02 node03]} {node06 [node04 node05]}]",
	}
	if !maps.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
}

// Where there is no witness nobody can say, and pods stay.
func TestNoWitness(t *testing.T) {
	c := NewCluster(true)
	c.Step(0, Seen{Node: "n", UID: "n"}, Seen{Node: "w", UID: "w"}, Synced{Nodes: []string{"n", "w"}}, Leads{Leads: true})
	looks, other := 0, []Output(nil)
	for now := time.Second; now < time.Minute; now += time.Second {
		inputs := []Input{Renewed{Node: "w"}}
		for len(inputs) > 0 {
			outputs := c.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				look, is := out.(Look)
				if !is {
					other = append(other, out)
					continue
				}
				looks++
				inputs = append(inputs, Found{Node: "n", Number: look.Number, Witnesses: []string{"n"}, Pods: []Pod{{UID: "p", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}}})
			}
		}
	}
	judged, is := Judged{}, len(other) == 1
	if is {
		judged, is = other[0].(Judged)
	}
	if !is || judged.Verdict != status.Unclear || looks != 6 {
		t.Errorf("%d looks, and %+v follow", looks, other)
	}
}

// A node that is off stays off over the brake: it is not powered off again, which somebody may have
// switched on meanwhile.
func TestOffOverBrake(t *testing.T) {
	c := NewCluster(true)
	names := []string{"n", "w", "x", "y"}
	var inputs []Input
	for _, n := range names {
		inputs = append(inputs, Seen{Node: n, UID: n})
	}
	c.Step(0, append(inputs, Synced{Nodes: names}, Leads{Leads: true})...)
	fences, brakes := 0, 0
	pods := []Pod{{UID: "p", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}}
	for now := time.Second; now < 6*time.Minute; now += time.Second {
		inputs := []Input{Renewed{Node: "w"}}
		if now < time.Minute || now > 90*time.Second {
			inputs = append(inputs, Renewed{Node: "x"}, Renewed{Node: "y"})
		}
		for len(inputs) > 0 {
			outputs := c.Step(now, inputs...)
			inputs = nil
			for _, out := range outputs {
				switch out := out.(type) {
				case Look:
					inputs = append(inputs, Found{Node: out.Node, Number: out.Number, Witnesses: []string{"w"}, Pods: pods})
				case Ask:
					inputs = append(inputs, Testified{Node: out.Node, Number: out.Number, Testimonies: []status.Testimony{{Witness: "w", Control: true}}})
				case Taint:
					inputs = append(inputs, Seen{Node: out.Node, UID: out.Node, Tainted: true, OutOfService: out.OutOfService}, Tainted{Node: out.Node, Number: out.Number})
				case Delete:
					pods = nil
					inputs = append(inputs, Deleted{Node: out.Node, Number: out.Number, Gone: 1})
				case Fence:
					fences++
					inputs = append(inputs, Fenced{Node: out.Node, UID: out.UID, Off: true})
				case Braked:
					brakes++
				}
			}
		}
	}
	if fences != 1 || brakes != 2 {
		t.Errorf("powered off %d times; the brake began and ended %d times", fences, brakes)
	}
}
