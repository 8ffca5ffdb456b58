// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
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
	"github.com/berth-dev/berth/agent/policy/cluster"
	"github.com/berth-dev/berth/cni/api"
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
	// EventNotServed (Warning on CustomResourceDefinition): the API server does not serve the version
	// of ClusterNetworkPolicies that agents read. Known policies hold as they were, and changes are
	// not seen; an agent that starts attaches no pods. Do: have the definition serve the version that
	// the note names.
	EventNotServed = "ClusterNetworkPoliciesNotServed"
)

// kindDefinition is the kind in the problem of ClusterNetworkPolicies that are not served.
const kindDefinition = "CustomResourceDefinition"

const action = "EnforceNetworkPolicy"

func (e *Enforcer) showBridges(ctx context.Context) {
	used := map[string]bool{}
	e.Objects.Do(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for c := range e.live() {
			if len(c.place.Bridges) > 0 && e.index.Governs(c.uid()) {
				for _, bridge := range c.place.Bridges {
					used[bridge] = true
				}
			}
		}
	})
	for bridge := range used {
		if err := e.showBridge(ctx, bridge); err != nil {
			klog.FromContext(ctx).Error(err, "Pods of a bridge may reach each other against their network policies", "bridge", bridge)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.bridges, func(bridge string, _ error) bool { return !used[bridge] })
}

// tell records events about pods whose policies are not enforced, and about policies with problems,
// each once while it lasts.
func (e *Enforcer) tell(ctx context.Context) {
	governed := map[types.UID]bool{}
	namespaces := map[string]bool{}
	var found []policy.Problem
	e.Objects.Do(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for c := range e.live() {
			if c.governed {
				namespaces[c.Pod.Namespace] = true
			}
			if e.index.Governs(c.uid()) {
				governed[c.uid()] = true
			}
		}
		found = e.index.Problems()
	})
	if err := e.Objects.Unserved(); err != nil {
		found = append(found, policy.Problem{Kind: kindDefinition, NamespacedName: types.NamespacedName{Name: cluster.DefinitionName}, Text: err.Error()})
	}
	e.tellPods(ctx, governed)
	e.tellPolicies(ctx, found, func(p policy.Problem) bool {
		if p.Namespace == "" {
			return len(governed) > 0
		}
		return namespaces[p.Namespace]
	})
}

func (e *Enforcer) tellPods(ctx context.Context, governed map[types.UID]bool) {
	e.mu.Lock()
	before := e.unenforced()
	for c := range e.live() {
		c.problem = ""
		if governed[c.uid()] {
			c.problem = e.problemOf(c)
		}
	}
	now := e.unenforced()
	e.mu.Unlock()
	for pod, text := range now {
		if text == before[pod] {
			continue
		}
		klog.FromContext(ctx).Info("The network policies of a pod are not enforced", "pod", klog.KRef(pod.Namespace, pod.Name), "problem", text)
		e.warn(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}, EventNotEnforced, text)
	}
}

// tellPolicies records the problems of policies. Only nodes with pods of the policy record the
// event.
func (e *Enforcer) tellPolicies(ctx context.Context, found []policy.Problem, concerns func(policy.Problem) bool) {
	e.mu.Lock()
	before := e.problems
	e.problems = map[policy.Problem]bool{}
	for _, p := range found {
		e.problems[p] = true
	}
	e.mu.Unlock()
	for _, p := range found {
		if before[p] {
			continue
		}
		klog.FromContext(ctx).Info("A network policy cannot be carried out as it is written", "kind", p.Kind, "policy", klog.KRef(p.Namespace, p.Name), "problem", p.Text)
		if !concerns(p) {
			continue
		}
		reason := EventProblem
		if p.Kind == kindDefinition {
			reason = EventNotServed
		}
		e.warn(reference(p), reason, p.Text)
	}
}

func (e *Enforcer) warn(about *corev1.ObjectReference, reason, text string) {
	if e.Events != nil {
		event.Warning(reason, text).Record(e.Events, about, nil, action)
	}
}

func reference(p policy.Problem) *corev1.ObjectReference {
	version := networkingv1.SchemeGroupVersion
	switch p.Kind {
	case policy.KindClusterNetworkPolicy:
		version = schema.GroupVersion(policyv1alpha2.GroupVersion)
	case kindDefinition:
		version = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
	}
	return &corev1.ObjectReference{APIVersion: version.String(), Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
}

// unenforced returns why policies do not hold for all packets of pods, as in the events. The caller
// holds the lock.
func (e *Enforcer) unenforced() map[api.Pod]string {
	all := map[api.Pod][]string{}
	for c := range e.live() {
		if c.problem != "" {
			all[c.Pod] = append(all[c.Pod], c.problem)
		}
	}
	texts := map[api.Pod]string{}
	for pod, some := range all {
		slices.Sort(some)
		texts[pod] = strings.Join(slices.Compact(some), "; ")
	}
	return texts
}

// problemOf returns why policies do not hold for all packets of a container; empty if they do. The
// caller holds the lock.
func (e *Enforcer) problemOf(c *container) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.place.Unseen)) {
		all = append(all, fmt.Sprintf("network policies do not hold for %s: %s", name, c.place.Unseen[name]))
	}
	if len(c.NetAdmins) > 0 && len(c.place.Direct) > 0 {
		all = append(all, fmt.Sprintf("network policies for %s can be passed by the containers %s: with CAP_NET_ADMIN they can change the rules, which are in the pod's network namespace; drop the capability, or use a network type for which the node routes",
			strings.Join(c.place.Direct, ", "), strings.Join(c.NetAdmins, ", ")))
	}
	for _, bridge := range c.place.Bridges {
		if err := e.bridges[bridge]; err != nil {
			all = append(all, "network policies do not hold between pods on bridge "+bridge+": "+err.Error())
		}
	}
	if c.placeErr != nil {
		all = append(all, "network policies are not up to date: where the packets of the pod can be seen is not known: "+c.placeErr.Error())
	}
	if c.target != nil && c.target.err != nil {
		all = append(all, "network policies are not up to date in the pod's network namespace: "+c.target.err.Error())
	}
	return strings.Join(all, "; ")
}
