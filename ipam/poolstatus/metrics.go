// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"maps"
	"sync/atomic"

	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var (
	addressesDesc = metrics.NewDesc("berth_pool_addresses",
		"Addresses of an IPPool by state: allocated, retained, reserved, cooling or free.",
		[]string{"pool", "state"}, nil, metrics.ALPHA, "")
	capacityDesc = metrics.NewDesc("berth_pool_capacity",
		"How many addresses the ranges of an IPPool hold.",
		[]string{"pool"}, nil, metrics.ALPHA, "")
	outsideDesc = metrics.NewDesc("berth_pool_outside_addresses",
		"Addresses in use that name an IPPool but are in no pool's ranges; the pool may be gone.",
		[]string{"pool"}, nil, metrics.ALPHA, "")
	conflictsDesc = metrics.NewDesc("berth_pool_conflicts",
		"Addresses of an IPPool that a host outside of the cluster has, too, by state: allocated to a pod, or cooling since their pod is gone, and given to nobody.",
		[]string{"pool", "state"}, nil, metrics.ALPHA, "")
	lastNodeDesc = metrics.NewDesc("berth_pool_last_node_addresses",
		"Addresses of an IPPool, among the cooling ones, that rest because nothing has proved that the node that carried them last stopped.",
		[]string{"pool"}, nil, metrics.ALPHA, "")
	capDesc = metrics.NewDesc("berth_pool_namespace_cap",
		"How many addresses of an IPPool one namespace may have, if spec.maxPerNamespace is set.",
		[]string{"pool"}, nil, metrics.ALPHA, "")
	atCapDesc = metrics.NewDesc("berth_pool_namespaces_at_cap",
		"How many namespaces have as many addresses of an IPPool as spec.maxPerNamespace allows, or more.",
		[]string{"pool"}, nil, metrics.ALPHA, "")
	shareDesc = metrics.NewDesc("berth_pool_namespace_addresses",
		"Addresses of an IPPool with spec.maxPerNamespace by namespace and state: allocated or retained. Only the ten namespaces with the most addresses.",
		[]string{"pool", "namespace", "state"}, nil, metrics.ALPHA, "")
)

// Metrics of pools, from the last round of the Writer. Safe for concurrent use.
type Metrics struct {
	metrics.BaseStableCollector

	last atomic.Pointer[round]
}

// round is the result of a round. Immutable.
type round struct {
	names    []string
	caps     []int32
	statuses []v1alpha1.IPPoolStatus
	uses     []uses
	gone     map[string]int64
}

// NewMetrics returns metrics for New. The caller registers them. They are empty until the
// Writer runs.
func NewMetrics() *Metrics { return &Metrics{} }

func (m *Metrics) publish(objects []*v1alpha1.IPPool, statuses []v1alpha1.IPPoolStatus, t *tally) {
	r := &round{
		names: make([]string, len(objects)), caps: make([]int32, len(objects)), statuses: statuses,
		uses: make([]uses, len(objects)), gone: maps.Clone(t.gone),
	}
	for i, object := range objects {
		r.names[i], r.caps[i], r.uses[i] = object.Name, object.Spec.MaxPerNamespace, *t.pools[object.Name]
		r.uses[i].namespaces = nil // the tally goes on counting in it
	}
	m.last.Store(r)
}

// DescribeWithStability implements metrics.StableCollector.
func (m *Metrics) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{addressesDesc, capacityDesc, outsideDesc, conflictsDesc, lastNodeDesc, capDesc, atCapDesc, shareDesc} {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (m *Metrics) CollectWithStability(ch chan<- metrics.Metric) {
	last := m.last.Load()
	if last == nil {
		return
	}
	gauge := func(desc *metrics.Desc, value int64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, float64(value), labels...)
	}
	for i, name := range last.names {
		s := &last.statuses[i]
		gauge(addressesDesc, s.Allocated, name, "allocated")
		gauge(addressesDesc, s.Retained, name, "retained")
		gauge(addressesDesc, s.Reserved, name, "reserved")
		gauge(addressesDesc, s.Cooling, name, "cooling")
		gauge(addressesDesc, s.Free, name, "free")
		gauge(capacityDesc, s.Capacity, name)
		gauge(outsideDesc, s.Outside, name)
		gauge(conflictsDesc, last.uses[i].conflicts, name, "allocated")
		gauge(conflictsDesc, last.uses[i].avoided, name, "cooling")
		gauge(lastNodeDesc, last.uses[i].lastNode, name)
		if last.caps[i] > 0 {
			gauge(capDesc, int64(last.caps[i]), name)
			gauge(atCapDesc, s.NamespacesAtCap, name)
		}
		for _, share := range s.Namespaces {
			gauge(shareDesc, share.Allocated, name, share.Name, "allocated")
			gauge(shareDesc, share.Retained, name, share.Name, "retained")
		}
	}
	for name, n := range last.gone {
		gauge(outsideDesc, n, name)
	}
}
