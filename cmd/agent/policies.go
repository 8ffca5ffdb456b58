// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/ipam/event"
)

// newEnforcer returns the enforcer of network policies, nil where they are off.
func newEnforcer(o *Options, clients *clients, recorder event.Recorder, journal *settings.Journal) *enforce.Enforcer {
	if o.NetworkPolicyPods == enforce.PodsNone {
		return nil
	}
	enforcer := enforce.New(enforce.Options{
		Pods:    o.NetworkPolicyPods,
		Objects: newPolicyCluster(clients, o.NodeName),
		Kernel:  enforce.Kernel{Shower: &place.Shower{SysctlRoot: o.SysctlRoot, Settings: journal}},
		Events:  recorder,
		Metrics: enforce.NewMetrics(legacyregistry.MustRegister),
	})
	legacyregistry.CustomMustRegister(enforcer.Collector())
	return enforcer
}

// sweepPolicies removes the rules that an agent made which enforced policies.
func sweepPolicies(ctx context.Context, store *state.Store) error {
	var namespaces []string
	for _, record := range store.List() {
		namespaces = append(namespaces, record.NetNS)
	}
	if err := enforce.Sweep(ctx, namespaces); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the rules of network policies, which are off")
	}
	return nil
}
