// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
)

// A node that was deaf calls the others by its new MAC, and begins its questions anew: answers may
// have been lost, and the API's word of before may be older than the loss.
func TestDeaf(t *testing.T) {
	self, taken, again := Node{Name: "self"}, netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.70.6")
	l := NewLink(0, self, "old", random())
	asked := 0
	for _, out := range l.Step(0, Take{Address: taken, Version: 1}, Carry{Address: again, Version: 1}) {
		if ask, ok := out.(AskAPI); ok {
			asked = ask.Number
		}
	}
	l.Step(150*time.Millisecond, Verdict{Address: again, Number: asked, Mine: true, Version: 1})
	const at = 200 * time.Millisecond
	own := netip.MustParseAddr("10.0.70.250")
	out := l.Step(at, Own{MAC: "new", Address: own})
	if call := (Send{Message{Kind: Call, From: self, MAC: "new", Address: own}}); !slices.Contains(out, Output(call)) {
		t.Errorf("the node says %v, want %v", out, call)
	}
	if !slices.ContainsFunc(out, func(o Output) bool { ask, ok := o.(AskAPI); return ok && ask.Address == again && ask.Number != asked }) {
		t.Errorf("the API is not asked again: %v", out)
	}
	for now := at; now < at+290*time.Millisecond; now += 10 * time.Millisecond {
		l.Step(now)
		for _, addr := range []netip.Addr{taken, again} {
			if l.Standing(addr).Phase == Answering {
				t.Fatalf("%v after it was deaf the node answers for %s", now-at, addr)
			}
		}
	}
	l.Step(at + 310*time.Millisecond)
	if l.Standing(taken).Phase != Answering {
		t.Errorf("nobody answers for it, and it is %+v", l.Standing(taken))
	}
}
