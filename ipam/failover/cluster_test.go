// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	. "github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// cut is a cluster in which some nodes are cut off at the same moment, and answer no witness of the others.
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
			t := status.Testimony{Witness: witness, Control: true}
			if c.off[witness] {
				t, took = status.Testimony{Witness: witness, Error: "no answer"}, 4*time.Second
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

// Nodes that are cut off together become suspect one after another. The brake comes before their pods have moved.
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
	say func(now time.Duration) status.Testimony
	// gone is how many pods a Delete ends.
	gone, deletes int
	// deleted has the UIDs of pods that were to be deleted.
	deleted map[string]bool
}

func newSingle(say func(now time.Duration) status.Testimony) *single {
	s := &single{Cluster: NewCluster(false), say: say, gone: 1, deleted: map[string]bool{}}
	s.step(Seen{Node: "w", UID: "w"}, Seen{Node: "n", UID: "n"}, Seen{Node: "x", UID: "x"}, Seen{Node: "y", UID: "y"}, Synced{Nodes: []string{"n", "w", "x", "y"}}, Leads{Leads: true})
	return s
}

func (s *single) step(inputs ...Input) {
	for len(inputs) > 0 {
		outputs := s.Step(s.now, inputs...)
		inputs = nil
		for _, out := range outputs {
			switch out := out.(type) {
			case Look:
				inputs = append(inputs, Found{Node: out.Node, Number: out.Number, Witnesses: []string{"w"}, Pods: []Pod{
					{UID: "p", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}, {UID: "manual", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.6")}},
				}})
			case Ask:
				inputs = append(inputs, Testified{Node: out.Node, Number: out.Number, Testimonies: []status.Testimony{s.say(s.now)}})
			case Taint:
				inputs = append(inputs, Tainted{Node: out.Node, Number: out.Number})
			case Delete:
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

// A link that flaps for a second does not move pods of a node that only lost the API server; power that goes then does.
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

// A node that lost the API server comes back for Kubernetes, between the verdict and the taint: its kubelet ends its pods in peace.
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

// A node that is off stays off over the brake: it is not powered off again, which somebody may have switched on meanwhile.
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
