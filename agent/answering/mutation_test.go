// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"cmp"
	"testing"

	"github.com/berth-dev/berth/ipam/mutationtest"
)

// mutations are errors that TestModel has to find. Each replaces code of link.go, or of peers.go.
// seed is of a world that finds it; where link.go or the worlds have changed, others are tried. It
// is 0 where the package's other tests find it.
var mutations = []struct {
	name, old, new string
	seed           uint64
	// file is link.go where it is empty.
	file string
}{
	{"answer before asking", "\tcase h.asked < questions:\n\t\treturn false\n", "\tcase true:\n\t\treturn true\n", 163, ""},
	{"believe one lost request", "questions    = 3", "questions    = 1", 45856, ""},
	{"believe three lost requests of a holder that has not denied", "doubted = 8", "doubted = 1", 2503, ""},
	{"silence without a control", "if controlled >= h.askedAt {", "if true {", 214, ""},
	{"a control of another question", "if controlled >= h.askedAt {", "if controlled >= h.since {", 22356, ""},
	{"a denial for silence", "\tswitch {\n\tcase h.asked < questions:\n\t\treturn false\n", "\tswitch {\n\tcase h.denied:\n\t\treturn true\n\tcase h.asked < questions:\n\t\treturn false\n", 13759, ""},
	{"an old denial", "h.last == self || h.agreed", "h.last == self || h.denied", 110310, ""},
	{"askers that ignore each other", "case !h.isClosedByOther():\n\t\t\tl.close(", "case h.phase == Answering:\n\t\t\tl.close(", 188, ""},
	{"assert once", "return h.phase == Answering && (h.took || h.last != (Node{}) && !h.denied)", "return false", 136, ""},
	{"no hellos", "\t\tl.sayHello()\n", "", 14196, ""},
	{"ask the recorded holder only", "return l.IsNodes(a.MAC, h.last)", "return false", 4388, ""},
	{"a host that is no node", "a.MAC == h.ownMAC || a.Owner || !h", "a.MAC == h.ownMAC || !h", 5, ""},
	{"skip the pod's own MAC", "h.again || a.MAC != \"\" && a.MAC == h.ownMAC || a.Owner || !h.agrees(l.self)", "(h.again || a.Owner || !h.agrees(l.self)) && a.MAC != h.ownMAC", 243, ""},
	{"close before asking the API", "case refuted || h.phase == Answering && !l.deaf:", "case refuted:", 39, ""},
	{"wait for the API for ever", "case h.challenge != nil && l.now >= h.falls:", "case false:", 93, ""},
	{"open again without a question after the carrier was lost", "\th.phase, h.cause, h.again, h.word = Asking, 0, true, false\n\th.begin(at)\n", "\tl.open(h)\n", 220, ""},
	{"an old verdict", "if !l.Awaits(v.Address, v.Number) {", "if l.holdings[v.Address] == nil {", 296, ""},
	{"answer at a start without a carrier", "case !l.up:\n\t\t// The kernel would answer", "case false:\n\t\t// The kernel would answer", 0, ""},
	{"leave open what answers too early", "case c.Answers && h.phase != Answering:", "case false:", 0, ""},
	{"forget a newer record at a restart", "case c.Newest > c.Version:", "case false:", 21219, ""},
	{"forget the last holder at a restart", "version: c.Version, last: c.Last,", "version: c.Version,", 2979, ""},
	{"close others' when cut off", "if h.failover && h.phase == Answering {", "if h.phase == Answering {", 23, ""},
	{"cut off though the gateway answers", "silent := l.now - max(gateway, l.listening)", "silent := l.now - l.listening", 4, ""},
	{"cut off though the API answers", "if !l.silentAPI && l.tried >= l.now-silent {", "if false {", 3, ""},
	{"cut off though most nodes answer", "case 2*heard >= known:", "case heard < 0:", 37, ""},
	{"never cut off", "\t\tl.emit(TryAPI{})\n", "", 3, ""},
	{"an address waits between its questions", "h.again && h.asked == 0 && !h.word", "h.again && !h.word", 144, ""},
	{"a turn never comes", "\t\t\t\th.due = l.now + questionWait\n", "\t\t\t\th.due = l.now + time.Hour\n", 444, ""},
	{"a control of the other family", "controlled := l.controlled[family(h.addr)]", "controlled := slices.Max(l.controlled[:])", 8138, ""},
	{"controls that are not in a row", "\t\th.controlled = 0\n\t}\n", "\t}\n", 0, ""},
	{"a peer answers no call", "nonce != 0 && nonce == c.nonce && (!seen", "nonce != 0 && (!seen", 4072, "peers.go"},
	{"peers that left the cluster", "max(slices.Max(l.gateway[:]), l.reached)-peerFor", "longAgo", 4688, ""},
	{"controls that never answer", "cmp.Compare(missed(n), missed(other)), ", "0*cmp.Compare(missed(n), missed(other)), ", 0, ""},
	{"yield to a twin and go on", "h.cause != Twin {\n\t\tl.close(h, Twin)\n", "h.cause != Twin {\n\t\th.yieldedTo = h.twin\n", 120, ""},
	{"heed no takeover by the same version", "m.Kind == TakeOver && m.Version == h.version && !h.took:", "false:", 2234, ""},
	{"yield without having answered", "m.Kind == TakeOver && m.From.Is(h.yieldedTo)", "m.Kind == TakeOver", 6259, ""},
	{"yield to a twin after another one took over", "m.From.Is(h.yieldedTo)", "(h.yieldedTo != Node{})", 12209, ""},
	{"an old Yield", "in.Nonce == 0 || !slices", "in.Kind == Deny && in.Nonce == 0 || in.Kind == Deny && !slices", 14113, ""},
	{"the API's word although there is a twin", "&& !h.took && !h.hasTwin()", "&& !h.took", 8583, ""},
	{"questions go on after a pause", "now-due > overslept", "now-due > 1000*time.Hour", 3969, ""},
}

// TestMutations runs TestModel with each mutation.
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) { mutationtest.Find(t, cmp.Or(m.file, "link.go"), m.old, m.new, m.seed, 100_000) })
	}
}
