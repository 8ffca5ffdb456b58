// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/settings"
)

// withEnforcer gives the agent the enforcer of network policies, and returns it. Where they are off
// it is nil, and the agent can say what enforcement would change.
func withEnforcer(ctx context.Context, o *Options, of *agent.Options, clients *clients, journal *settings.Journal) (*enforce.Enforcer, error) {
	if o.NetworkPolicyPods == enforce.PodsNone {
		of.SurveyPolicies = newSurvey(o, clients, journal)
		return nil, nil
	}
	backend, err := enforce.ChooseBackend(ctx, o.NetworkPolicyBackend)
	if err != nil {
		return nil, err
	}
	options := enforceOptions(o, clients, journal, backend)
	options.Events, options.Metrics = of.Events, enforce.NewMetrics(legacyregistry.MustRegister)
	enforcer := enforce.New(options)
	legacyregistry.CustomMustRegister(enforcer.Collector())
	of.Policies = enforcer
	return enforcer, nil
}

func enforceOptions(o *Options, clients *clients, journal *settings.Journal, backend enforce.Backend) enforce.Options {
	return enforce.Options{
		Pods: o.governed(), Objects: newPolicyCluster(clients, o.NodeName),
		Kernel:  enforce.NewKernel(backend, &place.Shower{SysctlRoot: o.SysctlRoot, Settings: journal}),
		Backend: backend,
	}
}

// governed returns the pods that network policies govern. With the overlay Berth wires all pods of
// the node, so that no other program can govern some of them.
func (o *Options) governed() enforce.Pods {
	if o.Overlay != overlayOff && o.NetworkPolicyPods == enforce.PodsFloatingIP {
		return enforce.PodsAll
	}
	return o.NetworkPolicyPods
}

// errSurveying is the error of a survey while another one reads the pods of the cluster.
var errSurveying = errors.New("another preview of network policies is under way on this node: wait for it")

// newSurvey returns the function that says what enforcement would change where it is off.
func newSurvey(o *Options, clients *clients, journal *settings.Journal) func(context.Context, *agent.Agent) (*inquiry.PolicyPreview, error) {
	var one sync.Mutex
	return func(ctx context.Context, a *agent.Agent) (*inquiry.PolicyPreview, error) {
		if !one.TryLock() {
			return nil, errSurveying
		}
		defer one.Unlock()
		return enforce.Survey(ctx, enforceOptions(o, clients, journal, enforce.BackendNFTables), a)
	}
}

// runPolicies enforces network policies until the context ends, or removes their rules where they
// are off.
func runPolicies(ctx context.Context, enforcer *enforce.Enforcer, a *agent.Agent, store *state.Store) error {
	if enforcer != nil {
		return enforcer.Run(ctx, a)
	}
	var namespaces []string
	for _, record := range store.List() {
		namespaces = append(namespaces, record.NetNS)
	}
	if err := enforce.Sweep(ctx, namespaces); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the rules of network policies, which are off")
	}
	return nil
}
