// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"time"

	"k8s.io/component-base/metrics"
)

// Metrics of a Speaker. A nil *Metrics counts nothing.
type Metrics struct {
	transitions *metrics.CounterVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{
		transitions: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: "berth_speaker", Name: "transitions_total",
			Help: "How often the session of a BGPPeer was established or lost.",
		}, []string{"peer"}),
	}
	register(m.transitions)
	return m
}

func (m *Metrics) changed(peer string, times int) {
	if m != nil {
		m.transitions.WithLabelValues(peer).Add(float64(times))
	}
}

func (m *Metrics) forget(peer string) {
	if m != nil {
		m.transitions.Delete(map[string]string{"peer": peer})
	}
}

var (
	carriedDesc    = metrics.NewDesc("berth_speaker_carried", "Addresses in the routing table 98 of the node, which it carries.", nil, nil, metrics.ALPHA, "")
	upDesc         = metrics.NewDesc("berth_speaker_session_up", "1 while the session of a BGPPeer is established, else 0.", []string{"peer"}, nil, metrics.ALPHA, "")
	bfdDesc        = metrics.NewDesc("berth_speaker_bfd_up", "1 while BFD with the router of a BGPPeer that has BFD is Up, else 0.", []string{"peer"}, nil, metrics.ALPHA, "")
	advertisedDesc = metrics.NewDesc("berth_speaker_advertised", "Addresses that the router of a BGPPeer was told of.", []string{"peer"}, nil, metrics.ALPHA, "")
	receivedDesc   = metrics.NewDesc("berth_speaker_received", "Routes that the router of a BGPPeer sends, none of which is used: each takes memory.", []string{"peer"}, nil, metrics.ALPHA, "")
	lagDesc        = metrics.NewDesc("berth_speaker_table_lag_seconds", "Time since the routing table 98 was last read; that is at each change, and every 10 seconds.", nil, nil, metrics.ALPHA, "")
)

// Collector returns the metrics that follow from the sessions. The caller registers it.
func (s *Speaker) Collector() metrics.StableCollector { return &collector{of: s} }

type collector struct {
	metrics.BaseStableCollector

	of *Speaker
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{carriedDesc, upDesc, bfdDesc, advertisedDesc, receivedDesc, lagDesc} {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	c.of.mu.Lock()
	routes, read := len(c.of.routes), c.of.read
	c.of.mu.Unlock()
	if !read.IsZero() {
		ch <- metrics.NewLazyConstMetric(carriedDesc, metrics.GaugeValue, float64(routes))
		ch <- metrics.NewLazyConstMetric(lagDesc, metrics.GaugeValue, time.Since(read).Seconds())
	}
	for name, entry := range c.of.current() {
		up, counts := entry.counts(context.Background())
		ch <- metrics.NewLazyConstMetric(upDesc, metrics.GaugeValue, number(up), name)
		if bfd := entry.bfd(); bfd != nil {
			ch <- metrics.NewLazyConstMetric(bfdDesc, metrics.GaugeValue, number(bfd.Error == ""), name)
		}
		ch <- metrics.NewLazyConstMetric(advertisedDesc, metrics.GaugeValue, float64(counts.Advertised), name)
		ch <- metrics.NewLazyConstMetric(receivedDesc, metrics.GaugeValue, float64(counts.Received), name)
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
