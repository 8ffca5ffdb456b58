// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Run has the measurements of one case while it scheduled its pods.
type Run struct {
	Case        string
	Round       int
	Nodes, Pods int
	// Seconds from the first pod's creation to the last one's binding.
	Seconds       float64
	PodsPerSecond float64
	// ClaimedPerSecond counts to the last claim, for the case with claims.
	ClaimedPerSecond float64 `json:",omitempty"`
	// Upstream is the average throughput that scheduler_perf itself reports.
	Upstream float64 `json:",omitempty"`
	// CPUPerPod is milliseconds by process. In scheduler_perf scheduler, API server
	// and test are one process.
	CPUPerPod map[string]float64
	Algorithm Timing
	// Cycle is the scheduling framework's part of the algorithm for one attempt, PreFilter to
	// Score, in microseconds by the scheduler's profile. The algorithm's own metric does not tell
	// profiles apart.
	Cycle map[string]float64
	// Points are the scheduling framework's extension points, with all plugins of
	// each; Plugins one call of one plugin ("plugin point"), which the scheduler
	// samples, and "all" the calls of the scheduling cycle.
	Points, Plugins map[string]Timing
	// RequestsPerPod are the requests that the API server answered, by verb and
	// resource, also the benchmark's own.
	RequestsPerPod map[string]float64
	// Load is the machine's load average of one minute before the run.
	Load float64
}

// Timing of something that happened Count times, in microseconds.
type Timing struct{ Count, Mean, P50, P90, P99 float64 }

func timing(h Histogram) Timing {
	return Timing{h.Count, micro(h.Mean()), micro(h.Quantile(0.5)), micro(h.Quantile(0.9)), micro(h.Quantile(0.99))}
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// binding are the extension points behind the scheduling cycle, which wait for
// the API server.
var binding = []string{"PreBind", "Bind", "PostBind"}

// Scheduler fills in what the scheduler's metrics say.
func (r *Run) Scheduler(i Interval) {
	all := func(Labels) bool { return true }
	r.Algorithm = timing(i.Histogram("scheduler_scheduling_algorithm_duration_seconds", all))
	r.Cycle = i.cycle()
	r.Points, r.Plugins = map[string]Timing{}, map[string]Timing{}
	const points, plugins = "scheduler_framework_extension_point_duration_seconds", "scheduler_plugin_execution_duration_seconds"
	i.each(points, func(l Labels) {
		r.Points[l["extension_point"]] = timing(i.Histogram(points, func(other Labels) bool { return other["extension_point"] == l["extension_point"] }))
	})
	r.Plugins["all"] = timing(i.Histogram(plugins, func(l Labels) bool { return !slices.Contains(binding, l["extension_point"]) }))
	i.each(plugins, func(l Labels) {
		r.Plugins[l["plugin"]+" "+l["extension_point"]] = timing(i.Histogram(plugins, func(other Labels) bool {
			return other["plugin"] == l["plugin"] && other["extension_point"] == l["extension_point"]
		}))
	})
}

// cycle returns the mean time of the serial extension points for one attempt, by profile.
func (i Interval) cycle() map[string]float64 {
	const points = "scheduler_framework_extension_point_duration_seconds"
	means := map[string]float64{}
	i.each(points, func(l Labels) {
		profile := l["profile"]
		if _, known := means[profile]; known {
			return
		}
		sum, attempts := 0.0, 0.0
		for _, point := range []string{"PreFilter", "Filter", "PreScore", "Score"} {
			h := i.Histogram(points, func(l Labels) bool { return l["profile"] == profile && l["extension_point"] == point })
			sum += h.sum
			if point == "PreFilter" {
				attempts = h.Count
			}
		}
		if attempts > 0 {
			means[profile] = micro(seconds(sum / attempts))
		}
	})
	return means
}

// Server fills in what the API server's metrics say.
func (r *Run) Server(i Interval) {
	r.RequestsPerPod = map[string]float64{}
	for request, n := range i.Requests() {
		if perPod := n / float64(r.Pods); perPod >= 0.001 {
			r.RequestsPerPod[request] = perPod
		}
	}
}

// CPU fills in what a process computed.
func (r *Run) CPU(process string, i Interval) {
	if r.CPUPerPod == nil {
		r.CPUPerPod = map[string]float64{}
	}
	r.CPUPerPod[process] = float64(i.CPU()) / float64(time.Millisecond) / float64(r.Pods)
}

// each calls visit with the labels of every metric of a name.
func (i Interval) each(name string, visit func(Labels)) {
	for _, metric := range i.After.families[name].GetMetric() {
		visit(labelsOf(metric))
	}
}

// LoadAverage of the last minute.
func LoadAverage() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read the load average: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseFloat(first, 64)
}
