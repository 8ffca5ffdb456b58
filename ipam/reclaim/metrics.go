// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Metrics of the reclaimer. A nil *Metrics counts nothing.
type Metrics struct {
	lag                *metrics.Histogram
	released, retained *metrics.CounterVec
	conflicts          *metrics.Counter
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
	}
	register(m.lag, m.released, m.retained, m.conflicts)
	return m
}

func (m *Metrics) release(policy v1alpha1.ReleasePolicy) {
	if m != nil {
		m.released.WithLabelValues(label(policy)).Inc()
	}
}

func (m *Metrics) retain(policy v1alpha1.ReleasePolicy) {
	if m != nil {
		m.retained.WithLabelValues(label(policy)).Inc()
	}
}

func (m *Metrics) conflict() {
	if m != nil {
		m.conflicts.Inc()
	}
}

func (m *Metrics) late(by time.Duration) {
	if m != nil {
		m.lag.Observe(by.Seconds())
	}
}

// label bounds the label's values: another client may have written any policy.
func label(policy v1alpha1.ReleasePolicy) string {
	switch policy {
	case v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever:
		return string(policy)
	}
	return string(v1alpha1.ReleasePodDeleted)
}

// clockings remember when the reclaimer learned that the pod of an address is gone.
type clockings struct {
	mu    sync.Mutex
	since map[string]time.Time // by FloatingIP
}

func (c *clockings) start(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.since[name]; !ok {
		c.since[name] = time.Now()
	}
}

// of returns the time of start, if it was called.
func (c *clockings) of(name string) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, ok := c.since[name]
	return since, ok
}

func (c *clockings) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, name)
}
