// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"sync"

	"k8s.io/component-base/metrics"
)

var (
	sizeDesc = metrics.NewDesc("berth_fixed_set_preallocated_size",
		"How many addresses a workload preallocates.",
		[]string{"namespace", "kind", "workload"}, nil, metrics.ALPHA, "")
	missingDesc = metrics.NewDesc("berth_fixed_set_preallocated_missing",
		"How many of the addresses that a workload preallocates are missing.",
		[]string{"namespace", "kind", "workload"}, nil, metrics.ALPHA, "")
)

// Metrics of the workloads that preallocate their fixed set and that the leader has
// reconciled. Safe for concurrent use.
type Metrics struct {
	metrics.BaseStableCollector

	mu   sync.Mutex
	sets map[Key]numbers
}

type numbers struct{ missing, size int }

// NewMetrics returns metrics for New. The caller registers them.
func NewMetrics() *Metrics { return &Metrics{sets: map[Key]numbers{}} }

func (m *Metrics) set(k Key, missing, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets[k] = numbers{missing, size}
}

func (m *Metrics) forget(k Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sets, k)
}

// DescribeWithStability implements metrics.StableCollector.
func (m *Metrics) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- sizeDesc
	ch <- missingDesc
}

// CollectWithStability implements metrics.StableCollector.
func (m *Metrics) CollectWithStability(ch chan<- metrics.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, n := range m.sets {
		ch <- metrics.NewLazyConstMetric(sizeDesc, metrics.GaugeValue, float64(n.size), k.Namespace, k.Kind, k.Name)
		ch <- metrics.NewLazyConstMetric(missingDesc, metrics.GaugeValue, float64(n.missing), k.Namespace, k.Kind, k.Name)
	}
}
