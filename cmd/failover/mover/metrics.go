// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// Metrics of a Mover.
type Metrics struct {
	brake, suspects, tainted, unfenced *metrics.Gauge
	verdicts                           *metrics.CounterVec
	moved                              *metrics.Counter
	duration                           *metrics.HistogramVec
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	const subsystem = "berth_failover"
	m := &Metrics{
		brake:    metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: "brake", Help: "1 while no pod moves, because too many nodes renew no Lease; of the replica that leads."}),
		suspects: metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: "suspect_nodes", Help: "Nodes whose Lease was not seen to be renewed for 15 s."}),
		tainted:  metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: "lost_nodes", Help: "Nodes with the taint berth.dev/lost."}),
		unfenced: metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: "unfenced_nodes", Help: "Nodes that the fencer is to power off, and has not; of the replica that leads."}),
		verdicts: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "verdicts_total",
			Help: "Verdicts about suspect nodes, each counted when it differs from the node's last one.",
		}, []string{"verdict"}),
		moved: metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystem, Name: "moved_pods_total", Help: "Pods that were deleted so that they move."}),
		duration: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "duration_seconds",
			Help:    "How long the parts of a failover took: confirmed, from the suspicion to the first verdict; deleted, from that until the node's pods were deleted first.",
			Buckets: metrics.ExponentialBuckets(0.05, 2, 12),
		}, []string{"part"}),
	}
	register(m.brake, m.suspects, m.tainted, m.unfenced, m.verdicts, m.moved, m.duration)
	return m
}

func (m *Metrics) set(state failover.State) {
	tainted, unfenced, brake := 0, 0, 0
	for i := range state.Nodes {
		if state.Nodes[i].Tainted {
			tainted++
		}
		if state.Nodes[i].Unfenced {
			unfenced++
		}
	}
	if state.Braked && state.Leads {
		brake = 1
	}
	m.brake.Set(float64(brake))
	m.suspects.Set(float64(state.Suspects))
	m.tainted.Set(float64(tainted))
	m.unfenced.Set(float64(unfenced))
}

// timing is of a suspect node. The Mover's lock guards it.
type timing struct {
	suspect, judged time.Time
	deleted         bool
	// unfenced is why the fencer has not powered the node off, empty where it was not asked yet or
	// has.
	unfenced string
}

// judged notes a verdict. times may be nil.
func (m *Metrics) judged(times *timing, verdict status.Verdict) {
	m.verdicts.WithLabelValues(string(verdict)).Inc()
	if times != nil && times.judged.IsZero() {
		times.judged = time.Now()
		m.duration.WithLabelValues("confirmed").Observe(times.judged.Sub(times.suspect).Seconds())
	}
}

// deleted notes that pods of a node are deleted. times may be nil.
func (m *Metrics) deleted(times *timing) {
	if times != nil && !times.deleted {
		times.deleted = true
		m.duration.WithLabelValues("deleted").Observe(time.Since(times.judged).Seconds())
	}
}
