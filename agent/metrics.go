// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"k8s.io/component-base/metrics"
)

// Metrics of the agent. A nil *Metrics counts nothing.
type Metrics struct {
	calls       *metrics.HistogramVec
	withdrawals *metrics.Counter
	conflicts   *metrics.Counter
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{
		calls: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: "berth_agent", Name: "cni_duration_seconds",
			Help:           "Duration of CNI calls by command and CNI error code (0: none).",
			Buckets:        metrics.ExponentialBuckets(0.005, 2, 14),
			StabilityLevel: metrics.ALPHA,
		}, []string{"command", "code"}),
		withdrawals: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: "berth_agent", Name: "withdrawals_total",
			Help:           "Pods whose floating IP this node stopped carrying because they had lost it.",
			StabilityLevel: metrics.ALPHA,
		}),
		conflicts: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: "berth_agent", Name: "address_conflicts_total",
			Help:           "Addresses that a pod did not get because another host of the network answered for them; each attempt counts.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	register(m.calls, m.withdrawals, m.conflicts)
	return m
}

// Call counts one CNI call.
func (m *Metrics) Call(command, code string, took time.Duration) {
	if m != nil {
		m.calls.WithLabelValues(command, code).Observe(took.Seconds())
	}
}

func (m *Metrics) withdrawn() {
	if m != nil {
		m.withdrawals.Inc()
	}
}

func (m *Metrics) conflicted(addresses int) {
	if m != nil {
		m.conflicts.Add(float64(addresses))
	}
}
