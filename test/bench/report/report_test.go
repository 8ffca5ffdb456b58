// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/bench/measure"
)

func run(id string, round int, podsPerSecond, claimed float64) *measure.Run {
	return &measure.Run{
		Case: id, Round: round, Nodes: 5, Pods: 10, PodsPerSecond: podsPerSecond, ClaimedPerSecond: claimed,
		CPUPerPod: map[string]float64{"all in one": 2}, Algorithm: measure.Timing{Count: 10, Mean: 100 * float64(round)},
		RequestsPerPod: map[string]float64{"POST pods": 1, "POST pods/binding": 1, "POST events": 1, "GET nodes": 3},
	}
}

// A ratio compares the runs of one round, whatever the other rounds were.
func TestRatios(t *testing.T) {
	report := &Report{SchedulerPerf: []*measure.Run{
		run("a", 1, 100, 0), run("b", 1, 80, 50), run("c", 1, 40, 0),
		run("a", 2, 10, 0), run("b", 2, 4, 2), run("c", 2, 3, 0),
	}}
	text := report.Markdown()
	var rows []string
	for line := range strings.SplitSeq(text, "\n") {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"| c/b | pods/s | 0.62 | 0.50, 0.75 | ≥ 0.95 |",
		"| c/b | pods/s, until the last claim is made | 1.15 | 0.80, 1.50 | |",
		"| c/a | pods/s | 0.35 | 0.40, 0.30 | |",
		"| a | stock | 2.00 | 2.00, 2.00 | 55.0 | 100, 10.0 | 2.00 | 0 | 0 | 0, 0 |",
	} {
		found := false
		for _, row := range rows {
			found = found || row == want
		}
		if !found {
			t.Errorf("no row %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "d/a") {
		t.Errorf("there is a ratio of a case that did not run:\n%s", text)
	}
}
