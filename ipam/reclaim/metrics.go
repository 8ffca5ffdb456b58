// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Metrics of the reclaimer.
type Metrics struct {
	lag                *metrics.Histogram
	released, retained *metrics.CounterVec
	conflicts          *metrics.Counter
	pending            *metrics.Gauge
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	const subsystem = "berth_reclaim"
	m := &Metrics{
		lag: metrics.NewHistogram(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "lag_seconds",
			Help:           "Time from the moment when the controller knows that a pod is gone or finished until its address is freed or retained.",
			Buckets:        metrics.ExponentialBuckets(0.001, 2, 18),
			StabilityLevel: metrics.ALPHA,
		}),
		released: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "released_total",
			Help:           "Addresses that were freed, or whose cooldown began, by release policy.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"policy"}),
		retained: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "retained_total",
			Help:           "Addresses that were kept for their owner after their pod was gone, by release policy.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"policy"}),
		conflicts: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "conflicts_total",
			Help:           "Writes that the API server refused because the FloatingIP had changed in the meantime.",
			StabilityLevel: metrics.ALPHA,
		}),
		pending: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: subsystem, Name: "oldest_pending_seconds",
			Help:           "Age of the oldest decision to free or keep an address that the controller could not carry out yet; 0 if there is none.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	register(m.lag, m.released, m.retained, m.conflicts, m.pending)
	return m
}

// label bounds the label's values: another client may have written any policy.
func label(policy v1alpha1.ReleasePolicy) string {
	switch policy {
	case v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever:
		return string(policy)
	}
	return string(v1alpha1.ReleasePodDeleted)
}

// pend notes that a decision about an address could not be carried out.
func (r *Reclaimer) pend(name string) {
	r.pending.Do(func(since map[string]time.Time) {
		if _, ok := since[name]; !ok {
			since[name] = time.Now()
		}
	})
}

// measure sets the metric of pending addresses.
func (r *Reclaimer) measure(context.Context) {
	var oldest time.Duration
	r.pending.Do(func(all map[string]time.Time) {
		for _, since := range all {
			oldest = max(oldest, time.Since(since))
		}
	})
	r.metrics.pending.Set(oldest.Seconds())
}
