// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
)

// A node that hears nobody answers soon for an address that it had last itself: at once where it remembers that, and after
// three seconds where it does not. For another node's it waits a minute.
func TestAlone(t *testing.T) {
	self, addr := Node{Name: "self"}, netip.MustParseAddr("10.0.70.5")
	for name, c := range map[string]struct {
		last       Node
		remembers  bool
		asserted   bool
		from, till time.Duration
	}{
		"nobody's":               {from: 300 * time.Millisecond, till: time.Second},
		"its own":                {last: self, remembers: true, from: 300 * time.Millisecond, till: time.Second},
		"its own, after a start": {last: self, from: 3 * time.Second, till: 4 * time.Second},
		"its own, but another has asserted the address": {last: self, remembers: true, asserted: true, from: 3 * time.Second, till: 4 * time.Second},
		"another's": {last: Node{Name: "other"}, from: time.Minute, till: time.Minute + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := NewLink(0, self, "mac", netip.Addr{}), time.Duration(0)
			// until steps the link until it opens the address.
			until := func(limit time.Duration) (opened bool) {
				for now < limit {
					due, ok := l.Next()
					if !ok {
						t.Fatal("nothing is due")
					}
					now = max(now, due)
					for _, out := range l.Step(now) {
						if out == (Open{addr}) {
							return true
						}
					}
				}
				return false
			}
			if c.remembers {
				l.Step(now, Take{Address: addr, Version: 1})
				if !until(time.Second) {
					t.Fatal("the first pod waits")
				}
				l.Step(now, Leave{addr})
			}
			if c.asserted {
				l.Step(now, Heard{Message: Message{Kind: Assert, From: Node{Name: "other"}, Address: addr, Version: 2}})
			}
			began := now
			l.Step(now, Take{Address: addr, Version: 3, Last: c.last})
			if !until(began + 2*time.Minute) {
				t.Fatal("the node never answers")
			}
			if took := now - began; took < c.from || took > c.till {
				t.Errorf("it answers after %v, want %v to %v", took, c.from, c.till)
			}
		})
	}
}

// Nodes that are called do not all answer at once.
func TestSpread(t *testing.T) {
	times := map[time.Duration]bool{}
	for i := range 100 {
		l := NewLink(0, Node{Name: fmt.Sprint("node", i)}, "mac", netip.Addr{})
		l.Step(0)
		l.Step(time.Second, Heard{Message: Message{Kind: Call, From: Node{Name: "caller"}}})
		due, _ := l.Next()
		times[due] = true
	}
	if len(times) < 90 {
		t.Errorf("100 nodes answer at %d times", len(times))
	}
}
