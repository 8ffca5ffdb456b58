// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/ipam/event"
)

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventNotEnforced (Warning on Pod): network policies that select the pod do not hold for all of
	// its packets. Do: see
	// docs/how-to/troubleshooting.md#a-network-policy-does-not-do-what-it-should.
	EventNotEnforced = "NetworkPolicyNotEnforced"
	// EventProblem (Warning on NetworkPolicy, ClusterNetworkPolicy): a piece of the policy cannot be
	// carried out as it is written, and allows nothing; agents that have pods of its namespace say so.
	// Do: correct the policy as the note says.
	EventProblem = "NetworkPolicyProblem"
)

// action is what the agent does when it records an event.
const action = "EnforceNetworkPolicy"

// showBridges has the bridges of pods that policies select show their packets.
func (e *Enforcer) showBridges(ctx context.Context) {
	e.mu.Lock()
	all := maps.Clone(e.containers)
	places := maps.Clone(e.places)
	e.mu.Unlock()
	used := map[string]bool{}
	for id, c := range all {
		if p := places[id]; len(p.Bridges) > 0 && e.governs(c) {
			for _, bridge := range p.Bridges {
				used[bridge] = true
			}
		}
	}
	for bridge := range used {
		if err := e.showBridge(ctx, bridge); err != nil {
			klog.FromContext(ctx).Error(err, "Pods of a bridge may reach each other whatever their network policies say", "bridge", bridge)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.bridges, func(bridge string, _ error) bool { return !used[bridge] })
}

func (e *Enforcer) showBridgesOf(ctx context.Context, p place.Place) error {
	var errs []error
	for _, bridge := range p.Bridges {
		errs = append(errs, e.showBridge(ctx, bridge))
	}
	return errors.Join(errs...)
}

// tell records events about pods whose policies are not enforced, and about policies with problems,
// each once while it lasts.
func (e *Enforcer) tell(ctx context.Context) {
	e.mu.Lock()
	all := slices.Collect(maps.Values(e.containers))
	e.mu.Unlock()
	governed := map[types.UID]bool{}
	namespaces := map[string]bool{}
	var found []policy.Problem
	e.Objects.Do(func() {
		for _, c := range all {
			namespaces[c.Pod.Namespace] = true
			if e.index.Governs(types.UID(c.Pod.UID)) {
				governed[types.UID(c.Pod.UID)] = true
			}
		}
		found = e.index.Problems()
	})
	e.mu.Lock()
	now := map[types.UID]string{}
	for _, c := range all {
		if uid := types.UID(c.Pod.UID); governed[uid] {
			if text := e.unenforced(c); text != "" && !strings.Contains(now[uid], text) {
				now[uid] = strings.Trim(now[uid]+"; "+text, "; ")
			}
		}
	}
	before := e.problems
	e.problems = now
	known := e.policyProblems
	e.policyProblems = map[policy.Problem]bool{}
	for _, p := range found {
		e.policyProblems[p] = true
	}
	e.mu.Unlock()

	for _, c := range all {
		uid := types.UID(c.Pod.UID)
		text := now[uid]
		if text == "" || text == before[uid] {
			continue
		}
		before[uid] = text
		klog.FromContext(ctx).Info("The network policies of a pod are not enforced", "pod", klog.KRef(c.Pod.Namespace, c.Pod.Name), "problem", text)
		e.record(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: c.Pod.Namespace, Name: c.Pod.Name, UID: uid}, EventNotEnforced, text)
	}
	for _, p := range found {
		if known[p] {
			continue
		}
		klog.FromContext(ctx).Info("A network policy cannot be carried out as it is written", "kind", p.Kind, "policy", klog.KRef(p.Namespace, p.Name), "problem", p.Text)
		// Nodes that have none of its pods leave the event to those that do.
		if p.Namespace == "" && len(governed) == 0 || p.Namespace != "" && !namespaces[p.Namespace] {
			continue
		}
		e.record(reference(p), EventProblem, p.Text)
	}
}

func (e *Enforcer) record(about *corev1.ObjectReference, reason, text string) {
	if e.Events != nil {
		event.Warning(reason, text).Record(e.Events, about, nil, action)
	}
}

func reference(p policy.Problem) *corev1.ObjectReference {
	version := networkingv1.SchemeGroupVersion
	if p.Kind == policy.KindClusterNetworkPolicy {
		version = schema.GroupVersion(policyv1alpha2.GroupVersion)
	}
	return &corev1.ObjectReference{APIVersion: version.String(), Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
}

// unenforced says why policies do not hold for all packets of a container; empty where they do. The
// caller holds the lock.
func (e *Enforcer) unenforced(c Container) string {
	var all []string
	p := e.places[c.ID]
	if len(p.Unseen) > 0 {
		all = append(all, fmt.Sprintf("network policies do not hold for %s: the kernel delivers packets to ipvlan links of mode l3s where nothing sees them; use ipvlanMode l2 or l3, or another network type",
			strings.Join(p.Unseen, ", ")))
	}
	for _, bridge := range p.Bridges {
		if err := e.bridges[bridge]; err != nil {
			all = append(all, "network policies do not hold between pods on bridge "+bridge+": "+err.Error())
		}
	}
	if t := e.targets[c.ID]; t != nil && t.err != nil {
		all = append(all, "network policies are not up to date in the pod's network namespace: "+t.err.Error())
	}
	return strings.Join(all, "; ")
}
