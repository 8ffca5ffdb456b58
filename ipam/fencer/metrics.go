// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"k8s.io/component-base/metrics"
)

// NewMetrics creates the metrics of a Client and registers them.
func NewMetrics(register func(...metrics.Registerable)) *metrics.HistogramVec {
	requests := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "berth_fencer", Name: "request_duration_seconds",
		Help:           "Duration of requests to the fencer, by gRPC code; OK says that the machine is off.",
		Buckets:        metrics.ExponentialBuckets(0.05, 2, 12),
		StabilityLevel: metrics.ALPHA,
	}, []string{"code"})
	register(requests)
	return requests
}
