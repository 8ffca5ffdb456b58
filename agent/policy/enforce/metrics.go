// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Metrics of an Enforcer. A nil *Metrics counts nothing.
type Metrics struct {
	applies *metrics.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(register func(...metrics.Registerable)) *Metrics {
	m := &Metrics{applies: metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "berth_agent", Name: "network_policy_apply_duration_seconds",
		Help:           "Duration of the changes of the kernel's tables of network policies, by result (success, error).",
		Buckets:        metrics.ExponentialBuckets(0.001, 2, 14),
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})}
	register(m.applies)
	return m
}

func (m *Metrics) applied(err error, took time.Duration) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	m.applies.WithLabelValues(result).Observe(took.Seconds())
}

var (
	tablesDesc  = metrics.NewDesc("berth_agent_network_policy_tables", "Tables of network policies in the kernel: of the node, and in the network namespaces of pods.", nil, nil, metrics.ALPHA, "")
	failingDesc = metrics.NewDesc("berth_agent_network_policy_failing_tables", "Tables of network policies whose last change failed.", nil, nil, metrics.ALPHA, "")
	objectsDesc = metrics.NewDesc("berth_agent_network_policy_objects", "Content of the tables of network policies, by place (node or pods) and kind: rules, sets (with maps) or elements of sets.",
		[]string{"place", "kind"}, nil, metrics.ALPHA, "")
	comparedDesc = metrics.NewDesc("berth_agent_network_policy_full_compare_age_seconds", "For how long some table of network policies has not been compared whole with the kernel; the agent does so every minute.",
		nil, nil, metrics.ALPHA, "")
	unenforcedDesc = metrics.NewDesc("berth_agent_network_policy_unenforced_pods", "Pods of the node whose network policies do not hold for all of their packets.", nil, nil, metrics.ALPHA, "")
	podsDesc       = metrics.NewDesc("berth_agent_network_policy_pods", "Pods of the node with a network of their own, by whether network policies govern them (true, false); --network-policy-pods says which they govern.",
		[]string{"governed"}, nil, metrics.ALPHA, "")
	backendDesc  = metrics.NewDesc("berth_agent_network_policy_backend_info", "1, by the backend that enforces network policies on the node: nftables, iptables-nft or iptables-legacy.", []string{"backend"}, nil, metrics.ALPHA, "")
	policiesDesc = metrics.NewDesc("berth_agent_network_policies", "Network policies of the cluster by kind.", []string{"kind"}, nil, metrics.ALPHA, "")
	heldDesc     = metrics.NewDesc("berth_agent_network_policy_held_pods", "Pods of the cluster that the agent holds in memory for network policies.", nil, nil, metrics.ALPHA, "")
	packetsDesc  = metrics.NewDesc("berth_agent_network_policy_packets_total",
		"First packets of connections on which rules of a policy decided on this node. Without a policy's name: packets that were dropped because no NetworkPolicy of an isolated pod allows them.",
		[]string{"kind", "policy_namespace", "policy", "direction", "verdict"}, nil, metrics.ALPHA, "")
)

// Collector returns the metrics that follow from the state of the Enforcer. The caller registers
// it.
func (e *Enforcer) Collector() metrics.StableCollector { return &collector{e: e} }

type collector struct {
	metrics.BaseStableCollector

	e *Enforcer
}

func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{tablesDesc, failingDesc, objectsDesc, comparedDesc, unenforcedDesc, podsDesc, backendDesc, policiesDesc, heldDesc, packetsDesc} {
		ch <- d
	}
}

// countersPatience limits how long the kernel is asked for counters.
const countersPatience = 5 * time.Second

// CollectWithStability implements metrics.StableCollector. It blocks for the kernel.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	s, held := c.e.summarize(), c.e.Objects.Held()
	gauge := func(d *metrics.Desc, value float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, value, labels...)
	}
	gauge(tablesDesc, float64(s.tables))
	gauge(failingDesc, float64(s.failing))
	for place, size := range map[string]size{"node": s.node, "pods": s.pods} {
		gauge(objectsDesc, float64(size.rules), place, "rules")
		gauge(objectsDesc, float64(size.sets), place, "sets")
		gauge(objectsDesc, float64(size.elements), place, "elements")
	}
	gauge(comparedDesc, time.Since(s.compared).Seconds())
	c.e.mu.Lock()
	unenforced := len(c.e.unenforced())
	c.e.mu.Unlock()
	gauge(unenforcedDesc, float64(unenforced))
	governed, others := c.e.governed()
	gauge(podsDesc, float64(governed), "true")
	gauge(podsDesc, float64(others), "false")
	gauge(backendDesc, 1, string(c.e.Backend))
	gauge(policiesDesc, float64(held.NetworkPolicies), "NetworkPolicy")
	gauge(policiesDesc, float64(held.ClusterPolicies), "ClusterNetworkPolicy")
	gauge(heldDesc, float64(held.Pods))
	ctx, cancel := context.WithTimeout(context.Background(), countersPatience)
	defer cancel()
	for about, packets := range c.e.packets(ctx) {
		ch <- metrics.NewLazyConstMetric(packetsDesc, metrics.CounterValue, float64(packets), about.kind, about.namespace, about.name, about.direction, about.verdict)
	}
}

type counted struct{ kind, namespace, name, direction, verdict string }

// readings makes monotonic counters from the counters of tables, which come and go and restart.
type readings struct {
	mu sync.Mutex
	// last has the counters of each table at its last reading; past has the sums of counters that are
	// gone or restarted.
	last map[*target]map[counted]uint64
	past map[counted]uint64
}

// add takes the present counters of all tables, and returns their sums over all readings.
func (r *readings) add(now map[*target]map[counted]uint64, exists func(*target) bool) map[counted]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for of, before := range r.last {
		is, read := now[of]
		if !read && exists(of) {
			// The counters could not be read.
			now[of] = before
			continue
		}
		for about, packets := range before {
			// A new counter began at 0.
			if is[about] < packets {
				r.past[about] += packets
			}
		}
	}
	r.last = now
	all := maps.Clone(r.past)
	for _, counts := range now {
		for about, packets := range counts {
			all[about] += packets
		}
	}
	return all
}

func (r *readings) forget(isGone func(counted) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.past, func(about counted, _ uint64) bool { return isGone(about) })
}

// packets returns the counters of all tables. It blocks for the kernel.
func (e *Enforcer) packets(ctx context.Context) map[counted]uint64 {
	tables := map[*target]*ruleset.Ruleset{}
	e.mu.Lock()
	for _, t := range e.targets() {
		if !isEmpty(t.written) {
			tables[t] = t.written
		}
	}
	e.mu.Unlock()
	now := map[*target]map[counted]uint64{}
	for t, rs := range tables {
		if ctx.Err() != nil {
			break
		}
		counters, err := t.table.Counters(ctx)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot read the counters of network policies", "err", err)
			continue
		}
		now[t] = map[counted]uint64{}
		add(now[t], rs, counters)
	}
	e.Objects.Do(func() {
		e.readings.forget(func(about counted) bool {
			return about.name != "" && !e.index.HasPolicy(types.NamespacedName{Namespace: about.namespace, Name: about.name})
		})
	})
	return e.readings.add(now, func(t *target) bool { return tables[t] != nil })
}

// add adds the counters of a table by the origins of its rules.
func add(all map[counted]uint64, rs *ruleset.Ruleset, counters map[string]ruleset.Count) {
	seen := map[string]bool{}
	for _, chain := range rs.Chains {
		for _, r := range chain.Rules {
			if r.Counter == "" || r.Origin == nil || seen[r.Counter] {
				continue
			}
			seen[r.Counter] = true
			about := counted{r.Origin.Kind, r.Origin.Namespace, r.Origin.Name, string(r.Origin.Direction), "accept"}
			if r.Verdict == ruleset.Drop {
				about.verdict = "drop"
			}
			all[about] += counters[r.Counter].Packets
		}
	}
}
