// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/cni/shaping"
)

// Metrics of a Controller. A nil *Metrics counts nothing.
type Metrics struct {
	pods, problems *metrics.Gauge
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{
		pods: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: "berth_agent", Name: "shaped_pods",
			Help:           "Pods of the node with a bandwidth limit or a DSCP.",
			StabilityLevel: metrics.ALPHA,
		}),
		problems: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: "berth_agent", Name: "shaping_problem_pods",
			Help:           "Pods of the node that do not have the bandwidth limit or the DSCP that was asked for them.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	register(m.pods, m.problems)
	return m
}

func (m *Metrics) set(pods []shaping.Pod, problems map[string]string) {
	if m == nil {
		return
	}
	shaped := 0
	for _, p := range pods {
		if !wantsNothing(p) {
			shaped++
		}
	}
	m.pods.Set(float64(shaped))
	m.problems.Set(float64(len(problems)))
}
