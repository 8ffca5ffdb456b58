// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"k8s.io/component-base/metrics"
)

// NewMetrics creates the metrics of a Client and registers them.
func NewMetrics(register func(...metrics.Registerable)) *metrics.HistogramVec {
	requests := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "berth_assigner", Name: "request_duration_seconds",
		Help:           "Duration of requests to the external assigner, each repetition counted separately, by method (attach, detach) and gRPC code.",
		Buckets:        metrics.ExponentialBuckets(0.005, 2, 14),
		StabilityLevel: metrics.ALPHA,
	}, []string{"method", "code"})
	register(requests)
	return requests
}
