// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutations are errors that TestModel has to find. Each replaces code of link.go. seed is of a world that finds it; where
// link.go or the worlds have changed, others are tried.
var mutations = []struct {
	name, old, new string
	seed           uint64
}{
	{"answer before asking", "\tcase h.asked < questions:\n\t\treturn false\n", "\tcase true:\n\t\treturn true\n", 18},
	{"believe one lost request", "questions    = 3", "questions    = 1", 8586},
	{"believe three lost requests of a holder that has not denied", "doubted = 8", "doubted = 1", 2031},
	{"silence without a control", "if l.controlled >= h.askedAt {", "if true {", 105},
	{"a control of another question", "if l.controlled >= h.askedAt {", "if l.controlled >= h.since {", 22202},
	{"a denial for silence", "\tswitch {\n\tcase h.asked < questions:\n\t\treturn false\n", "\tswitch {\n\tcase h.denied:\n\t\treturn true\n\tcase h.asked < questions:\n\t\treturn false\n", 445},
	{"an old denial", "h.last == self || h.denied && h.deniedAt >= h.askedAt", "h.last == self || h.denied", 33279},
	{"askers that ignore each other", "if h.phase != Closed || h.cause != Newer {\n\t\t\tl.close(", "if h.phase == Answering {\n\t\t\tl.close(", 115},
	{"assert once", "return h.phase == Answering && h.last != (Node{}) && !h.denied", "return false", 111},
	{"no hellos", "\t\tl.sayHello()\n", "", 11866},
	{"ask the recorded holder only", "if n.mac == mac && id != h.last {", "if false && n.mac == mac && id != h.last {", 271},
	{"skip the pod's own MAC", "h.again || mac != \"\" && mac == h.ownMAC || !h.agreed(l.self)", "(h.again || !h.agreed(l.self)) && mac != h.ownMAC", 29},
	{"API before closing", "if l.now < l.refuted[m.From] && !l.silentAPI {", "if true {", 47},
	{"no answer to an older record", "\t\tif h.phase != Closed || h.cause != Newer {\n\t\t\tl.emit(Send", "\t\tif false {\n\t\t\tl.emit(Send", 42249},
	{"open again without a question after the carrier was lost", "\th.phase, h.cause, h.again, h.word = Asking, 0, true, false\n\th.begin(at)\n", "\tl.open(h)\n", 127},
	{"an old verdict", "if h == nil || v.Number != h.number || !h.pending {", "if h == nil {", 252},
	{"forget a newer record at a restart", "case c.Newest > c.Version:", "case false:", 20298},
	{"forget the last holder at a restart", "version: c.Version, last: c.Last,", "version: c.Version,", 305},
	{"no control after an answer", "func (h *holding) controls() bool { return h.again || h.heard || h.last", "func (h *holding) controls() bool { return h.again || h.last", 53778},
	{"close others' when cut off", "if h.failover && h.phase == Answering {", "if h.phase == Answering {", 16},
	{"cut off though the gateway answers", "silent := l.now - max(l.gateway, l.listening)", "silent := l.now - l.listening", 2},
	{"cut off though the API answers", "if !l.silentAPI && l.tried >= l.now-silent {", "if false {", 1},
	{"cut off though most nodes answer", "case 2*heard >= known:", "case false:", 16},
	{"never cut off", "\t\tl.emit(TryAPI{})\n", "", 1},
	{"questions go on after a pause", "now-due > overslept", "now-due > 1000*time.Hour", 2362},
}

// TestMutations runs TestModel with each mutation.
func TestMutations(t *testing.T) {
	source, err := os.ReadFile("link.go")
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs("link.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			if bytes.Count(source, []byte(m.old)) != 1 {
				t.Fatalf("link.go has not one, but %d times:\n%s", bytes.Count(source, []byte(m.old)), m.old)
			}
			folder := t.TempDir()
			mutated := filepath.Join(folder, "link.go")
			if err := os.WriteFile(mutated, bytes.Replace(source, []byte(m.old), []byte(m.new), 1), 0o644); err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, "overlay.json"), overlay, 0o644); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(folder, "answering.test")
			if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "-vet=off", "-overlay", filepath.Join(folder, "overlay.json"), ".").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := model(t, program, m.seed, 1)
			if err == nil {
				out, err = model(t, program, m.seed+1, 100000)
			}
			if err == nil {
				t.Fatalf("TestModel passes:\n%s", out)
			}
			if !strings.Contains(string(out), "BERTH_TEST_SEED=") {
				t.Fatalf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "BERTH_TEST_SEED=") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

// model runs TestModel of a program.
func model(t *testing.T, program string, seed uint64, worlds int) ([]byte, error) {
	cmd := exec.CommandContext(t.Context(), program, "-test.run", "^TestModel$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("BERTH_TEST_SEED=%d", seed), fmt.Sprintf("BERTH_TEST_WORLDS=%d", worlds))
	return cmd.CombinedOutput()
}
