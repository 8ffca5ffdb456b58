// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"testing"

	"github.com/berth-dev/berth/ipam/mutationtest"
)

// mutations are errors that TestModel has to find. Each replaces code of cluster.go. seed is of a
// world that finds it; where cluster.go or the worlds have changed, others are tried.
var mutations = []struct {
	name, old, new string
	seed           uint64
}{
	{"no brake", "over := c.counted > 1 && 3*c.counted > c.of", "over := false", 6},
	{"endless brake", "c.braked && c.now-c.over < brakeFor", "c.braked", 2},
	{"no minute after the brake", "c.braked && c.now-c.over < brakeFor", "false", 9},
	{"delete before taint", "\tn.phase = tainting\n\tc.emit(Taint{name, n.uid, n.number, n.fenced})\n", "\tc.delete(name, n, false)\n", 3},
	{"delete though the taint was not written", "if failed || !c.mayAct()", "if !c.mayAct()", 1982},
	{"believe a testimony without control", "case t.Control && verdict == status.Unclear:", "case verdict == status.Unclear:", 39},
	{"count watch silence as node silence", "\t\tc.begin()\n\tcase Leads:", "\tcase Leads:", 2},
	{"act while nothing is seen", "return c.synced && c.leased[name]", "return c.leased[name]", 3},
	{"count the time that the process stood still", "if now-c.last > overslept {", "if false {", 4},
	{"do not read the Lease again", "\t\tif in.Renewed {\n", "\t\tif false {\n", 21},
	{"ignore opt-in", "if pod.Automatic && len(pod.Addresses) > 0 {", "if len(pod.Addresses) > 0 {", 2},
	{"move a pod without an address", "if pod.Automatic && len(pod.Addresses) > 0 {", "if pod.Automatic {", 9},
	{"delete without UID", "\t\t\tmoves = append(moves, pod)\n", "\t\t\tpod.UID, pod.Version = \"\", \"\"\n\t\t\tmoves = append(moves, pod)\n", 96},
	{"move from a node that lost the API", "pod.Terminating && n.unreachable {", "true {", 6},
	{"take a deletion for Kubernetes'", "pod.Terminating && n.unreachable {", "pod.Terminating {", 141},
	{"move from a node that hangs", "\t\tcase t.Host, len(t.Addresses) > 0:\n\t\t\tverdict = status.Hung\n", "", 3},
	{"an old verdict", " || c.now-n.judged > verdictFor", "", 20},
	{"act without leading", "return c.leads && !c.braked", "return !c.braked", 8},
	{"leave the taint", "\tif (n.tainted || n.outOfService) && c.leads {\n", "\tif false {\n", 3},
	{"do not wait for nodes that are overdue", " && c.overdue <= c.of/overduePart", "", 4},
	{"believe one silence", "case n.verdict == status.Gone && n.heard:", "case false:", 31},
	{"fence under the brake", "case n.call == none && c.now >= n.fenceDue && c.mayAct():", "case n.call == none && c.now >= n.fenceDue:", 145},
	{"fence without a fencer", "n.wanted = c.fences && ", "n.wanted = ", 3},
	{"fence twice at a time", "case n.call == none && c.now >= n.fenceDue", "case c.now >= n.fenceDue", 3},
	{"power off a node that serves", "\tif n.call == calling {\n\t\tn.call = outdated\n\t}\n", "", 9},
	{"power off a node that answers again", " || hangs && n.gone {", " {", 14},
	{"power off a node of which nothing was known", "if c.now-n.known > unheardFor && !n.off || hangs", "if hangs", 3},
	{"power off a node of which nobody can say", "\tif n.verdict == status.Unclear {\n\t\tn.withdraw()\n\t\treturn\n\t}\n", "", 39},
	{"power off a node that is off already", "&& !n.outOfService\n", "\n", 674},
	{"power off by an old verdict", " && c.now-c.nodes[of.Node].judged <= verdictFor", "", 17},
	{"ask about a node that is off", "case !n.wanted || n.fenced:", "case !n.wanted:", 3},
	{"believe the fencer after another led", "n.wanted, n.fenced = false, false", "n.wanted = false", 1488},
	{"a suspect as a witness", "if c.leased[name] && !c.isSuspect(name, n) {", "if c.leased[name] && n != nil {", 3},
	{"a witness as its own control", "if control := c.living[next%len(c.living)]; control != w.Node {", "if control := c.living[next%len(c.living)]; true {", 3},
	{"end taints without leading", "if (n.tainted || n.outOfService) && c.leads {", "if n.tainted || n.outOfService {", 6},
	{"believe Failed as Off", "\tcase in.Off:\n", "\tcase true:\n", 15},
	{"an outdated Off", "\tcase asked != calling:\n", "\tcase asked == none:\n", 269},
	{"forget under the brake that a node is off", "\tfor _, n := range c.nodes {\n\t\t\tn.reset()\n", "\tfor _, n := range c.nodes {\n\t\t\tn.fenced = false\n\t\t\tn.reset()\n", 16},
	{"delete under the brake", "return c.mayAct() && c.round(", "return c.round(", 272},
	{"delete though the node came back", "c.round(of.Node, of.Number, deleting) != nil", "true", 944},
	{"power off what the brake keeps", "return c.Awaits(of) && c.mayAct()", "return c.Awaits(of)", 1638},
	{"power off a node that came back", "n.uid == of.UID && n.call == calling", "true", 9},
	{"taint another machine", "c.emit(Taint{name, n.uid,", "c.emit(Taint{name, \"\",", 3},
	{"resume with nodes that nobody was shown", "for _, name := range nodes {\n\t\tif n", "for name := range c.nodes {\n\t\tif n", 34},
	{"ask once", "n.phase == idle && c.now >= n.due {", "n.phase == idle && n.due == 0 {", 3},
}

// TestMutations runs TestModel with each mutation.
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) { mutationtest.Find(t, "cluster.go", m.old, m.new, m.seed, 5000) })
	}
}
