// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "berth_scheduler"

var (
	allocationDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem,
		Name:      "allocation_duration_seconds",
		Help:      "Time from the first attempt to schedule a pod until its addresses were reserved.",
		Buckets:   metrics.ExponentialBuckets(0.0001, 4, 12),
	})
	commitDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem,
		Name:      "commit_duration_seconds",
		Help:      "Time to make a pod's addresses durable at the API server, by result (success, conflict, error).",
		Buckets:   metrics.ExponentialBuckets(0.0005, 2, 15),
	}, []string{"result"})
	waitingPodsDesc = metrics.NewDesc("berth_scheduler_waiting_pods",
		"Pods that found no address at their last attempt, by namespace, the only pool that can serve them (empty: several) and cause: address (none is free), owner (the workload or claim may have no more addresses, or these nodes do not reach its addresses), agent (no agent is ready), session (no BGP session is established) or pool (none serves the nodes). Only the 100 largest groups have a namespace and a pool; the others are added up by cause.",
		[]string{"namespace", "pool", "cause"}, nil, metrics.ALPHA, "")
	nodesDesc = metrics.NewDesc("berth_scheduler_nodes",
		"Nodes by their agent: ready, lost (it was ready within a day, and the node is not lost itself) or none.",
		[]string{"agent"}, nil, metrics.ALPHA, "")
	wokenPods = metrics.NewCounter(&metrics.CounterOpts{
		Subsystem: subsystem,
		Name:      "woken_pods_total",
		Help:      "Waiting pods that were tried again because an address came free or another change may help them.",
	})
	registerOnce sync.Once
)

func registerMetrics() {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(allocationDuration, commitDuration, wokenPods)
		legacyregistry.CustomMustRegister(states)
	})
}

// states collects metrics from the scheduler's state at the time of a scrape.
var states = &stateMetrics{}

type stateMetrics struct {
	metrics.BaseStableCollector

	// of is the scheduler's state; nil until it exists.
	of atomic.Pointer[shared]
}

// DescribeWithStability implements metrics.StableCollector.
func (m *stateMetrics) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- waitingPodsDesc
	ch <- nodesDesc
}

// CollectWithStability implements metrics.StableCollector.
func (m *stateMetrics) CollectWithStability(ch chan<- metrics.Metric) {
	of := m.of.Load()
	if of == nil {
		return
	}
	for g, n := range bounded(of.waiting.count()) {
		ch <- metrics.NewLazyConstMetric(waitingPodsDesc, metrics.GaugeValue, float64(n), g.namespace, g.pool, g.cause)
	}
	if of.agents.namespace == "" {
		return
	}
	for agent, n := range of.agents.tally(time.Now(), of.pods.isLostNode) {
		ch <- metrics.NewLazyConstMetric(nodesDesc, metrics.GaugeValue, float64(n), agent)
	}
}
