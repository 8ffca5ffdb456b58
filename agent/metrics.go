// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"k8s.io/component-base/metrics"
)

// Metrics of the agent.
type Metrics struct {
	calls       *metrics.HistogramVec
	withdrawals *metrics.Counter
	conflicts   *metrics.Counter
	defences    *metrics.Counter
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
		defences: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: "berth_agent", Name: "address_defences_total",
			Help:           "Times that this node announced addresses of a running pod again, twice, because another host said that it has one.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	register(m.calls, m.withdrawals, m.conflicts, m.defences)
	return m
}

var (
	recordsDesc = metrics.NewDesc("berth_agent_records", "Containers whose network the agent has a record of, by phase.", []string{"phase"}, nil, metrics.ALPHA, "")
	failingDesc = metrics.NewDesc("berth_agent_failing_records", "Containers whose network the agent could not repair or take down at its last try.", nil, nil, metrics.ALPHA, "")
	linksDesc   = metrics.NewDesc("berth_agent_failing_links", "Links to networks of floating IPs on which the agent cannot ask other nodes for addresses, or hear them: pods that start there wait.",
		nil, nil, metrics.ALPHA, "")
	checkedDesc = metrics.NewDesc("berth_agent_full_check_age_seconds", "For how long some container's network has not been compared with the kernel; the agent does so every minute.",
		nil, nil, metrics.ALPHA, "")
	refusedDesc = metrics.NewDesc("berth_agent_refused_neighbours_total", "Packets of pods that were dropped because the node would have looked for too many neighbours: a pod scans a network of its node.",
		nil, nil, metrics.ALPHA, "")
	reachDesc = metrics.NewDesc("berth_agent_api_reachable", "1 while the agent can watch the pods of its node, else 0.", nil, nil, metrics.ALPHA, "")
)

// Collector returns the metrics that follow from the agent's records. The caller registers
// it.
func (a *Agent) Collector() metrics.StableCollector { return &collector{agent: a} }

type collector struct {
	metrics.BaseStableCollector

	agent *Agent
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{recordsDesc, failingDesc, linksDesc, checkedDesc, reachDesc, refusedDesc} {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	a := c.agent
	records, outcomes := a.Store.List(), a.reconciler.Outcomes()
	send := func(d *metrics.Desc, kind metrics.ValueType, value float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, kind, value, labels...)
	}
	for phase, number := range a.phases(records) {
		send(recordsDesc, metrics.GaugeValue, float64(number), phase)
	}
	failing, links, reachable := 0, a.holdings.answerer.Failing(), 0.0
	for _, came := range outcomes {
		if came.Err != nil && !errors.Is(came.Err, context.Canceled) {
			failing++
		}
	}
	if a.Pods.Connection().Error == "" {
		reachable = 1
	}
	oldest := oldestCheck(records, outcomes)
	if oldest.IsZero() {
		oldest = a.started
	}
	send(failingDesc, metrics.GaugeValue, float64(failing))
	send(linksDesc, metrics.GaugeValue, float64(links))
	send(checkedDesc, metrics.GaugeValue, time.Since(oldest).Seconds())
	send(reachDesc, metrics.GaugeValue, reachable)
	if a.RefusedNeighbours != nil {
		if refused, err := a.RefusedNeighbours(); err == nil {
			send(refusedDesc, metrics.CounterValue, float64(refused))
		}
	}
}

// Call counts one CNI call.
func (m *Metrics) Call(command, code string, took time.Duration) {
	m.calls.WithLabelValues(command, code).Observe(took.Seconds())
}
