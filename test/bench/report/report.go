// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/bench/book"
	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/measure"
	"github.com/berth-dev/berth/test/bench/programs"
	"github.com/berth-dev/berth/test/bench/table"
)

// Report is everything that one run of the benchmarks measured. Parts that were
// not run are empty.
type Report struct {
	Time          time.Time
	CPUs          int
	SchedulerPerf []*measure.Run      `json:",omitempty"`
	Programs      []*measure.Run      `json:",omitempty"`
	Requests      []programs.Requests `json:",omitempty"`
	Fills         []book.Fill         `json:",omitempty"`
	Cluster       *book.Cluster       `json:",omitempty"`
	Ready         *book.Ready         `json:",omitempty"`
	Profiles      map[string][]Share  `json:",omitempty"`
	// Tables have the measurements of the tests of the node and of the lab, and of rollouts.
	Tables []table.Table `json:",omitempty"`
}

// Share is the part of a CPU profile's time that was spent below some functions.
type Share struct {
	What    string
	Percent float64
}

// Write writes results.json and summary.md into a folder and returns the latter.
func (r *Report) Write(dir string) (string, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), text, 0o644); err != nil {
		return "", fmt.Errorf("write results: %w", err)
	}
	summary := r.Markdown()
	if err := os.WriteFile(filepath.Join(dir, "summary.md"), []byte(summary), 0o644); err != nil {
		return "", fmt.Errorf("write results: %w", err)
	}
	return summary, nil
}

// Markdown is the report for people.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks, %s, %d CPUs\n\nHow to read them: test/bench/README.md\n", r.Time.Format(time.DateTime), r.CPUs)
	scheduling(&b, "scheduler_perf: API server, scheduler and benchmark in one process", r.SchedulerPerf)
	scheduling(&b, "The real programs", r.Programs)
	r.requests(&b)
	r.book(&b)
	for _, t := range r.Tables {
		b.WriteString(t.Markdown())
	}
	r.profiles(&b)
	return b.String()
}

// scheduling prints the runs of one benchmark.
func scheduling(b *strings.Builder, title string, runs []*measure.Run) {
	if len(runs) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%d nodes, %d pods. Each figure is the median of the rounds.\n", title, runs[0].Nodes, runs[0].Pods)
	cases := byCase(runs)
	processes := slices.Sorted(maps.Keys(runs[0].CPUPerPod))
	head := []string{"case", ""}
	for _, process := range processes {
		head = append(head, "CPU ms/pod, "+process, "rounds")
	}
	throughput := table.Rows{append(head, "pods/s", "rounds", "writes/pod", "cycle µs, ordinary pods", "cycle µs, other pods", "load before")}
	for _, c := range cases {
		row := []string{c.ID, c.Title}
		for _, process := range processes {
			row = append(row, number(c.median(cpuOf(process))), c.each(cpuOf(process)))
		}
		throughput = append(throughput, append(row,
			number(c.median(throughputOf)), c.each(throughputOf), number(c.median(writesOf)),
			number(c.median(cycleOf(load.Scheduler))), number(c.median(cycleOf(load.Others))),
			c.each(func(r *measure.Run) float64 { return r.Load })))
	}
	throughput.Print(b)
	ratios(b, runs, processes)
	timings(b, cases)
}

// rounds are the runs of one case.
type rounds struct {
	load.Case
	runs []*measure.Run
}

// byCase sorts runs by case, in the order of the cases.
func byCase(runs []*measure.Run) []rounds {
	var result []rounds
	for _, c := range load.Cases() {
		r := rounds{Case: c}
		for _, run := range runs {
			if run.Case == c.ID {
				r.runs = append(r.runs, run)
			}
		}
		if len(r.runs) > 0 {
			result = append(result, r)
		}
	}
	return result
}

func throughputOf(r *measure.Run) float64 { return r.PodsPerSecond }

func claimedOf(r *measure.Run) float64 { return r.ClaimedPerSecond }

func cpuOf(process string) func(*measure.Run) float64 {
	return func(r *measure.Run) float64 { return r.CPUPerPod[process] }
}

func cycleOf(profile string) func(*measure.Run) float64 {
	return func(r *measure.Run) float64 { return r.Cycle[profile] }
}

// writesOf counts the writes for a pod after its creation.
func writesOf(r *measure.Run) float64 {
	sum := 0.0
	for request, n := range r.RequestsPerPod {
		verb, resource, _ := strings.Cut(request, " ")
		if slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, verb) && request != "POST pods" && resource != "leases" && resource != "endpoints" {
			sum += n
		}
	}
	return sum
}

func (r rounds) values(figure func(*measure.Run) float64) []float64 {
	var values []float64
	for _, run := range r.runs {
		values = append(values, figure(run))
	}
	return values
}

func (r rounds) median(figure func(*measure.Run) float64) float64 { return median(r.values(figure)) }

func (r rounds) each(figure func(*measure.Run) float64) string { return list(r.values(figure)) }

func list(values []float64) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, number(v))
	}
	return strings.Join(texts, ", ")
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	middle := len(values) / 2
	if len(values)%2 == 0 {
		return (values[middle-1] + values[middle]) / 2
	}
	return values[middle]
}

// number has three digits that count.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// ratios prints the figures that count: each from two runs of one round.
func ratios(b *strings.Builder, runs []*measure.Run, processes []string) {
	cpu := func(r *measure.Run) float64 {
		sum := 0.0
		for _, process := range processes {
			sum += r.CPUPerPod[process]
		}
		return sum
	}
	ordinary := cycleOf(load.Scheduler)
	t := table.Rows{{"ratio", "of", "median", "rounds", "aim"}}
	for _, ratio := range []struct {
		over, under, of string
		a, b            func(*measure.Run) float64
		aim             string
	}{
		{"c", "b", "CPU per pod", cpu, cpu, ""},
		{"d", "a", "CPU per pod", cpu, cpu, ""},
		{"c", "a", "CPU per pod", cpu, cpu, ""},
		{"cs", "c", "CPU per pod", cpu, cpu, ""},
		{"cc", "c", "CPU per pod", cpu, cpu, ""},
		{"cw", "c", "CPU per pod", cpu, cpu, ""},
		{"cl", "c", "CPU per pod", cpu, cpu, ""},
		{"al", "a", "CPU per pod", cpu, cpu, ""},
		{"c", "b", "pods/s", throughputOf, throughputOf, "≥ 0.95"},
		{"c", "b", "pods/s, until the last claim is made", throughputOf, claimedOf, ""},
		{"c1", "b", "pods/s", throughputOf, throughputOf, "≥ 0.95"},
		{"cn", "b", "pods/s", throughputOf, throughputOf, ""},
		{"d", "a", "pods/s", throughputOf, throughputOf, "1.00"},
		{"c", "a", "pods/s", throughputOf, throughputOf, ""},
		{"b", "a", "pods/s", throughputOf, throughputOf, ""},
		{"cs", "c", "pods/s", throughputOf, throughputOf, ""},
		{"cc", "c", "pods/s", throughputOf, throughputOf, ""},
		{"cw", "c", "pods/s", throughputOf, throughputOf, ""},
		{"cl", "c", "pods/s", throughputOf, throughputOf, ""},
		{"al", "a", "pods/s", throughputOf, throughputOf, ""},
		{"c", "a", "scheduling algorithm, mean", algorithm, algorithm, "≤ 1.05"},
		{"d", "a", "scheduling algorithm, mean", algorithm, algorithm, "≤ 1.05"},
		{"c", "a", "cycle of ordinary pods", ordinary, ordinary, "≤ 1.05"},
		{"cs", "a", "cycle of ordinary pods", ordinary, ordinary, "≤ 1.05"},
		{"cc", "a", "cycle of ordinary pods", ordinary, ordinary, "≤ 1.05"},
		{"cw", "a", "cycle of ordinary pods", ordinary, ordinary, "≤ 1.05"},
		{"cl", "a", "cycle of ordinary pods", ordinary, ordinary, "≤ 1.05"},
		{"al", "a", "cycle of ordinary pods", ordinary, ordinary, ""},
	} {
		var values []float64
		for _, over := range runs {
			for _, under := range runs {
				if over.Round == under.Round && over.Case == ratio.over && under.Case == ratio.under && ratio.b(under) > 0 {
					values = append(values, ratio.a(over)/ratio.b(under))
				}
			}
		}
		if len(values) > 0 {
			t = append(t, []string{ratio.over + "/" + ratio.under, ratio.of, fmt.Sprintf("%.2f", median(values)), list(values), ratio.aim})
		}
	}
	if len(t) > 1 {
		t.Print(b)
	}
}

func algorithm(r *measure.Run) float64 { return r.Algorithm.Mean }

// timings prints the scheduler's own durations.
func timings(b *strings.Builder, cases []rounds) {
	t := table.Rows{{"µs", "case", "mean", "p50", "p90", "p99", "mean to stock"}}
	stock := func(timing func(*measure.Run) measure.Timing) float64 {
		for _, c := range cases {
			if c.ID == "a" {
				return c.median(func(r *measure.Run) float64 { return timing(r).Mean })
			}
		}
		return 0
	}
	add := func(name string, timing func(*measure.Run) measure.Timing) {
		base := stock(timing)
		for _, c := range cases {
			if c.median(func(r *measure.Run) float64 { return timing(r).Count }) < 1 {
				continue
			}
			mean := c.median(func(r *measure.Run) float64 { return timing(r).Mean })
			ratio := ""
			if base > 0 {
				ratio = fmt.Sprintf("%.2f", mean/base)
			}
			t = append(t, []string{
				name, c.ID, number(mean),
				number(c.median(func(r *measure.Run) float64 { return timing(r).P50 })),
				number(c.median(func(r *measure.Run) float64 { return timing(r).P90 })),
				number(c.median(func(r *measure.Run) float64 { return timing(r).P99 })), ratio,
			})
		}
	}
	add("scheduling algorithm", func(r *measure.Run) measure.Timing { return r.Algorithm })
	for _, point := range []string{"PreFilter", "Filter", "PreScore", "Score", "Reserve", "Permit", "PreBind", "Bind"} {
		add("extension point "+point, func(r *measure.Run) measure.Timing { return r.Points[point] })
	}
	add("plugins in the cycle, any call", func(r *measure.Run) measure.Timing { return r.Plugins["all"] })
	var plugins []string
	for _, c := range cases {
		for _, run := range c.runs {
			for name := range run.Plugins {
				if strings.HasPrefix(name, "FloatingIP ") && !slices.Contains(plugins, name) {
					plugins = append(plugins, name)
				}
			}
		}
	}
	slices.Sort(plugins)
	for _, name := range plugins {
		add("plugin "+name, func(r *measure.Run) measure.Timing { return r.Plugins[name] })
	}
	t.Print(b)
}

func (r *Report) requests(b *strings.Builder) {
	if len(r.Requests) == 0 {
		return
	}
	b.WriteString("\n## Requests to the API server\n")
	t := table.Rows{{"what", "number", "request", "times", "per one", "addresses/s"}}
	for _, requests := range r.Requests {
		speed := ""
		if strings.HasPrefix(requests.What, "release") {
			speed = number(float64(requests.N) / requests.Seconds)
		}
		for _, request := range slices.Sorted(maps.Keys(requests.Each)) {
			n := requests.Each[request]
			t = append(t, []string{requests.What, fmt.Sprint(requests.N), request, fmt.Sprintf("%.0f", n), number(n / float64(requests.N)), speed})
		}
	}
	t.Print(b)
}

func (r *Report) book(b *strings.Builder) {
	if len(r.Fills) > 0 {
		b.WriteString("\n## The allocator: a pool of a million addresses fills up\n")
		t := table.Rows{{"% full", "first reserve µs", "reserve p50 µs", "p99", "p99.9", "max", "release p50 µs", "p99", "p99.9", "max"}}
		for _, f := range r.Fills {
			t = append(t, slices.Concat([]string{fmt.Sprint(f.PercentFull), number(f.First)}, quantiles(f.Reserve), quantiles(f.Release)))
		}
		t.Print(b)
	}
	if c := r.Cluster; c != nil {
		fmt.Fprintf(b, "\n## The allocator: %d pools of %d addresses, %d in use\n", book.Pools, book.PoolSize, book.InUse)
		table.Rows{
			{"figure", "value"},
			{"compile the pools, ms", number(c.CompileMillis)},
			{"tell the book of the pools, ms", number(c.SetPoolsMillis)},
			{"tell the book of the addresses in use, ms", number(c.ObserveMillis)},
			{"bytes per address in use, book alone", number(c.BytesPerAddress)},
			{"reserve, one pool to choose from, µs (p50, p99, p99.9, max)", strings.Join(quantiles(c.One), ", ")},
			{"reserve, all pools to choose from, µs (p50, p99, p99.9, max)", strings.Join(quantiles(c.All), ", ")},
		}.Print(b)
	}
	if c := r.Ready; c != nil {
		fmt.Fprintf(b, "\n## A scheduler starts: from %s to ready\n", c.How)
		table.Rows{
			{"figure", "value"},
			{"seconds", number(c.Seconds)},
			{"CPU seconds", number(c.CPUSeconds)},
			{"MB of JSON", number(c.JSONMegabytes)},
			{"bytes per address in use, book and informers", number(c.BytesPerAddress)},
		}.Print(b)
	}
}

func quantiles(m book.Micros) []string {
	return []string{number(m.P50), number(m.P99), number(m.P999), number(m.Max)}
}

func (r *Report) profiles(b *strings.Builder) {
	if len(r.Profiles) == 0 {
		return
	}
	b.WriteString("\n## CPU profiles: share of the time below some functions\n")
	t := table.Rows{{"profile", "functions", "%"}}
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		for _, share := range r.Profiles[name] {
			t = append(t, []string{name, share.What, number(share.Percent)})
		}
	}
	t.Print(b)
}
