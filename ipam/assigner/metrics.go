// SPDX-License-Identifier: Apache-2.0

package assigner

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
			Subsystem: "berth_assigner", Name: "request_duration_seconds",
			Help:           "Duration of requests to the external assigner, each repetition counted separately, by method (attach, detach) and gRPC code.",
			Buckets:        metrics.ExponentialBuckets(0.005, 2, 14),
			StabilityLevel: metrics.ALPHA,
		}, []string{"method", "code"}),
	}
	register(m.requests)
	return m
}

func (m *Metrics) request(method string, code codes.Code, took time.Duration) {
	if m != nil {
		m.requests.WithLabelValues(method, code.String()).Observe(took.Seconds())
	}
}
