// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
)

// Metrics of the claims that the leader has reconciled. Safe for concurrent use.
type Metrics struct{ addresses, size, ready *metrics.GaugeVec }

// NewMetrics creates the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{
		addresses: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "berth_claim_addresses",
			Help:           "Addresses of an IPClaim by state: allocated (held by a pod) or retained (waiting for one).",
			StabilityLevel: metrics.ALPHA,
		}, []string{"namespace", "claim", "state"}),
		size: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "berth_claim_size",
			Help:           "How many addresses of each family an IPClaim may have.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"namespace", "claim"}),
		ready: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "berth_claim_ready",
			Help:           "1 if an IPClaim has all addresses that it asks for, 0 if not.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"namespace", "claim"}),
	}
	register(m.addresses, m.size, m.ready)
	return m
}

func (m *Metrics) set(claim *v1alpha1.IPClaim, status *v1alpha1.IPClaimStatus) {
	ready := 0.0
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ClaimReady) {
		ready = 1
	}
	m.addresses.WithLabelValues(claim.Namespace, claim.Name, "allocated").Set(float64(status.Allocated))
	m.addresses.WithLabelValues(claim.Namespace, claim.Name, "retained").Set(float64(status.Retained))
	m.size.WithLabelValues(claim.Namespace, claim.Name).Set(float64(claim.Spec.Size))
	m.ready.WithLabelValues(claim.Namespace, claim.Name).Set(ready)
}

func (m *Metrics) forget(claim preallocation.Key) {
	m.addresses.DeleteLabelValues(claim.Namespace, claim.Name, "allocated")
	m.addresses.DeleteLabelValues(claim.Namespace, claim.Name, "retained")
	m.size.DeleteLabelValues(claim.Namespace, claim.Name)
	m.ready.DeleteLabelValues(claim.Namespace, claim.Name)
}
