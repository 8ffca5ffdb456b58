// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"sync"

	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/preallocation"
)

var (
	addressesDesc = metrics.NewDesc("berth_claim_addresses",
		"Addresses of an IPClaim by state: allocated (held by a pod) or retained (waiting for one).",
		[]string{"namespace", "claim", "state"}, nil, metrics.ALPHA, "")
	sizeDesc = metrics.NewDesc("berth_claim_size",
		"How many addresses of each family an IPClaim may have.",
		[]string{"namespace", "claim"}, nil, metrics.ALPHA, "")
	readyDesc = metrics.NewDesc("berth_claim_ready",
		"1 if an IPClaim has all addresses that it asks for, 0 if not.",
		[]string{"namespace", "claim"}, nil, metrics.ALPHA, "")
)

// numbers of one claim.
type numbers struct {
	namespace, name           string
	allocated, retained, size float64
	ready                     float64
}

// Metrics of the claims that the leader has reconciled. Safe for concurrent use.
type Metrics struct {
	metrics.BaseStableCollector

	mu     sync.Mutex
	claims map[preallocation.Key]numbers
}

// NewMetrics returns metrics for New. The caller registers them.
func NewMetrics() *Metrics { return &Metrics{claims: map[preallocation.Key]numbers{}} }

func (m *Metrics) set(key preallocation.Key, n numbers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims[key] = n
}

func (m *Metrics) forget(key preallocation.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, key)
}

// DescribeWithStability implements metrics.StableCollector.
func (m *Metrics) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{addressesDesc, sizeDesc, readyDesc} {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (m *Metrics) CollectWithStability(ch chan<- metrics.Metric) {
	m.mu.Lock()
	all := make([]numbers, 0, len(m.claims))
	for _, n := range m.claims {
		all = append(all, n)
	}
	m.mu.Unlock()
	for _, n := range all {
		ch <- metrics.NewLazyConstMetric(addressesDesc, metrics.GaugeValue, n.allocated, n.namespace, n.name, "allocated")
		ch <- metrics.NewLazyConstMetric(addressesDesc, metrics.GaugeValue, n.retained, n.namespace, n.name, "retained")
		ch <- metrics.NewLazyConstMetric(sizeDesc, metrics.GaugeValue, n.size, n.namespace, n.name)
		ch <- metrics.NewLazyConstMetric(readyDesc, metrics.GaugeValue, n.ready, n.namespace, n.name)
	}
}
