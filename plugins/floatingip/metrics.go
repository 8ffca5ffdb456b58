// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "berth_scheduler"

var (
	allocationDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "allocation_duration_seconds",
		Help:           "Time from the first attempt to schedule a pod until its addresses were reserved.",
		Buckets:        metrics.ExponentialBuckets(0.0001, 4, 12),
		StabilityLevel: metrics.ALPHA,
	})
	commitDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "commit_duration_seconds",
		Help:           "Time to make a pod's addresses durable at the API server, by result (success, conflict, error).",
		Buckets:        metrics.ExponentialBuckets(0.0005, 2, 15),
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	countWaiting atomic.Pointer[func() int]
	waitingPods  = metrics.NewGaugeFunc(&metrics.GaugeOpts{
		Subsystem:      subsystem,
		Name:           "waiting_pods",
		Help:           "Pods that found no address, or no node with a ready agent, at their last attempt.",
		StabilityLevel: metrics.ALPHA,
	}, func() float64 {
		if count := countWaiting.Load(); count != nil {
			return float64((*count)())
		}
		return 0
	})
	wokenPods = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "woken_pods_total",
		Help:           "Waiting pods that were tried again because an address came free or another change may help them.",
		StabilityLevel: metrics.ALPHA,
	})
	registerOnce sync.Once
)

// registerMetrics adds the metrics to kube-scheduler's registry.
func registerMetrics() {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(allocationDuration, commitDuration, wokenPods)
		legacyregistry.RawMustRegister(waitingPods)
	})
}

func exposeWaiting(count func() int) { countWaiting.Store(&count) }
