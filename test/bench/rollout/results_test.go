// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/lab"
)

func TestTables(t *testing.T) {
	s := func(seconds ...float64) (all []time.Duration) {
		for _, second := range seconds {
			all = append(all, time.Duration(second*float64(time.Second)))
		}
		return all
	}
	all := ways()
	agent := func(own, ended time.Duration) usage {
		return usage{programs: map[string]lab.CPUTime{"berth-agent": {Own: own, Ended: ended}}, machine: 10 * (own + ended)}
	}
	results := &Results{
		Options: Options{Deployments: 2, Replicas: 1, Nodes: 3, Rounds: 1, Limit: time.Minute},
		runs: []*run{
			{way: all[0], round: 1, pods: 2, running: 2, took: 4 * time.Second, updated: 10 * time.Second, starts: s(2, 4), bindings: s(0.1, 0.2)},
			{way: all[1], round: 1, pods: 2, running: 2, took: 5 * time.Second, updated: 11 * time.Second, updatedSpare: 20 * time.Second, unbound: 3, starts: s(3, 5), bindings: s(0.1, 0.3), adds: s(0.02, 0.04), steps: "plan 1.0, plugins 2.0",
				before: agent(time.Second, 0), after: agent(1200*time.Millisecond, 400*time.Millisecond)},
			{way: all[2], round: 1, pods: 2, running: 1, took: 8 * time.Second, starts: s(8), bindings: s(1), restarts: 2},
		},
	}
	tables := results.Tables()
	want := table.Rows{
		{"1", "upstream's bridge plugin, without Berth", "4.0", "1.00", "0.5", "2.0", "2.0", "0.1", "0.1", "", ""},
		{"1", "the same plugin through Berth", "5.0", "1.25", "0.4", "3.0", "3.0", "0.1", "0.1", "20.0", "20.0"},
		{"1", "a floating IP for each pod", "never: 1 ran within 1m0s", "", "0.1", "8.0", "8.0", "1.0", "1.0", "", ""},
	}
	if diff := cmp.Diff(want, tables[0].Rows[1:]); diff != "" {
		t.Errorf("times: -want +got\n%s", diff)
	}
	if !strings.Contains(tables[0].Note, "restarted 2 times") {
		t.Errorf("the note does not tell of restarts: %s", tables[0].Note)
	}
	want = table.Rows{{"1", "upstream's bridge plugin, without Berth", "10.0", "1.00", "0"}, {"1", "the same plugin through Berth", "11.0", "1.10", "3"},
		{"1", "the same plugin through Berth, 2 spare addresses", "20.0", "2.00", ""}}
	if diff := cmp.Diff(want, tables[1].Rows[1:]); diff != "" {
		t.Errorf("updates: -want +got\n%s", diff)
	}
	if diff := cmp.Diff(table.Rows{{"1", "the same plugin through Berth", "plan 1.0, plugins 2.0"}}, tables[2].Rows[1:]); diff != "" {
		t.Errorf("steps: -want +got\n%s", diff)
	}
	rows := tables[3].Rows
	want = table.Rows{{"Berth's agents", "0.0", "100.0", "0.0"}, {"the plugins that they ran", "0.0", "200.0", "0.0"}}
	if diff := cmp.Diff(want, rows[1:3]); diff != "" {
		t.Errorf("CPU: -want +got\n%s", diff)
	}
	if diff := cmp.Diff([]string{"all of the machine", "0.0", "3000.0", "0.0"}, rows[len(rows)-1]); diff != "" {
		t.Errorf("CPU: -want +got\n%s", diff)
	}
}

func TestOptions(t *testing.T) {
	tests := map[string]struct {
		options Options
		ok      bool
	}{
		"the peers' recipe": {Options{Deployments: 100, Replicas: 10, Nodes: 5, Rounds: 1}, true},
		"too few nodes":     {Options{Deployments: 100, Replicas: 10, Nodes: 4, Rounds: 1}, false},
		"no pods":           {Options{Deployments: 1, Nodes: 1, Rounds: 1}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tc.options.check(); (err == nil) != tc.ok {
				t.Errorf("check() = %v", err)
			}
		})
	}
}
