// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/component-base/metrics"
)

// Metrics of a Client. A nil *Metrics counts nothing.
type Metrics struct {
	requests *metrics.HistogramVec
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{
		requests: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: "berth_fencer", Name: "request_duration_seconds",
			Help:           "Duration of requests to the fencer, by gRPC code; OK says that the machine is off.",
			Buckets:        metrics.ExponentialBuckets(0.05, 2, 12),
			StabilityLevel: metrics.ALPHA,
		}, []string{"code"}),
	}
	register(m.requests)
	return m
}

func (m *Metrics) request(code codes.Code, took time.Duration) {
	if m != nil {
		m.requests.WithLabelValues(code.String()).Observe(took.Seconds())
	}
}
