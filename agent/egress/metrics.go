// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"slices"

	"k8s.io/component-base/metrics"
)

// Metrics of an Egress. A nil *Metrics counts nothing.
type Metrics struct {
	pods, closed, full *metrics.Gauge
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{
		pods: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: "berth_agent", Name: "egress_pods",
			Help:           "Ordinary pods of the node that the egress of a pool selects.",
			StabilityLevel: metrics.ALPHA,
		}),
		closed: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: "berth_agent", Name: "egress_closed_pods",
			Help:           "Ordinary pods of the node that cannot leave the cluster by one of their addresses, because the node does not have its address of the pool, or the link of it is down.",
			StabilityLevel: metrics.ALPHA,
		}),
		full: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: "berth_agent", Name: "egress_full_blocks",
			Help:           "Blocks of ports of IPClaims' addresses of which the node's pods use all for one destination and port, and can begin no more connections to it.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	register(m.pods, m.closed, m.full)
	return m
}

func (m *Metrics) setFull(blocks int) {
	if m != nil {
		m.full.Set(float64(blocks))
	}
}

func (m *Metrics) set(chosen []pool, pods []Pod) {
	if m == nil {
		return
	}
	all, closed := count(chosen, pods)
	m.pods.Set(float64(all))
	m.closed.Set(float64(closed))
}

// count returns how many pods leave by a pool, and how many of them cannot with one of their
// addresses. Pure.
func count(chosen []pool, pods []Pod) (all, closed int) {
	open := map[netip.Addr]bool{}
	for _, p := range chosen {
		for _, addr := range p.way.Pods {
			open[addr] = p.way.IsOpen()
		}
	}
	for _, pod := range pods {
		leaves := func(addr netip.Addr) bool { _, ok := open[addr]; return ok }
		if !slices.ContainsFunc(pod.Addresses, leaves) {
			continue
		}
		all++
		if slices.ContainsFunc(pod.Addresses, func(addr netip.Addr) bool { return leaves(addr) && !open[addr] }) {
			closed++
		}
	}
	return all, closed
}
