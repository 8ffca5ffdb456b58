// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/test/bench/table"
)

// Results are the times of the runs.
type Results struct {
	Options
	runs []*run
}

// Tables are the times, and the CPU times.
func (r *Results) Tables() []table.Table {
	if len(r.runs) == 0 {
		return nil
	}
	return []table.Table{r.times(), r.updated(), r.steps(), r.cpu()}
}

func (r *Results) times() table.Table {
	t := table.Table{
		Title: fmt.Sprintf("%d Deployments of %d pods each until all pods run", r.Deployments, r.Replicas),
		Note: fmt.Sprintf("On %d nodes of the lab, which share the machine; each way has a lab of its own. Times are in s, of ADDs in ms, with p50 and p99. "+
			"Ratios are to the first way in the same round. A pod is Running when a watch tells so; \"bound\" and \"Running\" are from its creation on.", r.Nodes),
		Rows: table.Rows{{"round", "pods", "all Running after", "ratio", "pods/s", "one Running: p50", "p99", "bound: p50", "p99", "ADD in the agent: p50", "p99"}},
	}
	took := func(r *run) time.Duration { return r.took }
	for _, run := range r.runs {
		row := []string{fmt.Sprint(run.round), run.title, table.S(run.took), r.ratio(run, took), ""}
		if run.running < run.pods {
			row[2] = fmt.Sprintf("never: %d ran within %s", run.running, r.Limit)
		}
		if run.took > 0 {
			row[4] = fmt.Sprintf("%.1f", float64(run.running)/run.took.Seconds())
		}
		t.Rows = append(t.Rows, slices.Concat(row,
			table.Seconds(run.starts, 0.5, 0.99), table.Seconds(run.bindings, 0.5, 0.99), table.Millis(run.adds, 0.5, 0.99)))
		if run.restarts > 0 {
			t.Note += fmt.Sprintf(" %s, round %d: containers of Berth were restarted %d times.", run.title, run.round, run.restarts)
		}
	}
	return t
}

func (r *Results) steps() table.Table {
	t := table.Table{
		Title: "The steps of these ADDs in the agent, ms",
		Note:  "agent/doc.go has their order. p50 of each step.",
		Rows:  table.Rows{{"round", "pods", "each"}},
	}
	for _, run := range r.runs {
		if run.steps != "" {
			t.Rows = append(t.Rows, []string{fmt.Sprint(run.round), run.title, run.steps})
		}
	}
	return t
}

func (r *Results) updated() table.Table {
	t := table.Table{
		Title: fmt.Sprintf("%d updates of one of the Deployments, s", updates),
		Note: "One pod more and one fewer at a time; with floating IPs the Deployment keeps them (Retain), so each new pod waits for the end of an old one, " +
			"but for as many as there are spare addresses. The aims are a ratio of 1.1 and no failed attempt to bind a pod.",
		Rows: table.Rows{{"round", "pods", "all", "ratio", "failed attempts"}},
	}
	updated := func(r *run) time.Duration { return r.updated }
	spared := func(r *run) time.Duration { return cmp.Or(r.updatedSpare, r.updated) }
	for _, run := range r.runs {
		if run.updated > 0 {
			t.Rows = append(t.Rows, []string{fmt.Sprint(run.round), run.title, table.S(run.updated), r.ratio(run, updated), fmt.Sprint(run.unbound)})
		}
		if run.updatedSpare > 0 {
			title := fmt.Sprintf("%s, %d spare addresses", run.title, spareAddresses)
			t.Rows = append(t.Rows, []string{fmt.Sprint(run.round), title, table.S(run.updatedSpare), r.ratio(run, spared), ""})
		}
	}
	return t
}

// ratio compares a time of a run with the first way's run in the same round, where both are
// complete.
func (r *Results) ratio(of *run, took func(*run) time.Duration) string {
	for _, run := range r.runs {
		if run.round == of.round && run.way == ways()[0] && run.running == run.pods && of.running == of.pods && took(run) > 0 {
			return fmt.Sprintf("%.2f", took(of).Seconds()/took(run).Seconds())
		}
	}
	return ""
}

func (r *Results) cpu() table.Table {
	t := table.Table{
		Title: "CPU time for each of these pods, ms",
		Note:  "From the creation of the first Deployment until all pods run: with what kubelets and others do at all times.",
		Rows:  table.Rows{{"program"}},
	}
	for _, run := range r.runs {
		head := run.title
		if r.Rounds > 1 {
			head += fmt.Sprintf(", round %d", run.round)
		}
		t.Rows[0] = append(t.Rows[0], head)
	}
	for _, work := range works() {
		row := []string{work.title}
		for _, run := range r.runs {
			spent := work.of(run.after) - work.of(run.before)
			row = append(row, table.MS(spent/time.Duration(max(run.running, 1))))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
