// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// bindingOf is the relation of an address to the live pod that it records.
type bindingOf int

const (
	// itsOwn: the pod has the address, or may still be bound with it.
	itsOwn bindingOf = iota
	// misplaced: the pod has it, but the record names another node.
	misplaced
	// leftover: one attempt to schedule the pod took the address, and a later attempt or
	// another scheduler bound the pod with others.
	leftover
)

// classify returns the relation of an address to the live pod that it records; recorded
// are all addresses that record the pod.
//
// An admission policy (manifests/admission) forbids changes of a bound pod's annotation,
// but a cluster may lack the policy. So an address that the annotation does not name is
// a leftover only if the pod has all its addresses without it: as many as it requests, each
// named by the annotation and recorded for the pod on its node. A pod with a shortened or
// changed annotation thus loses no address that it runs with.
func classify(ip *v1alpha1.FloatingIP, pod *v1.Pod, recorded []*v1alpha1.FloatingIP) bindingOf {
	if pod.Spec.NodeName == "" {
		return itsOwn
	}
	names, err := podrequest.NamesOf(pod)
	if slices.Contains(names, ip.Name) {
		if pod.Spec.NodeName == ip.Spec.Node {
			return itsOwn
		}
		return misplaced
	}
	confirmed := int64(0)
	for _, other := range recorded {
		if other.Spec.Node == pod.Spec.NodeName && slices.Contains(names, other.Name) {
			confirmed++
		}
	}
	if err != nil || confirmed != int64(len(names)) || confirmed != max(1, requested(&pod.Spec)) {
		return itsOwn
	}
	return leftover
}

// superseded reports whether the address is kept for a pod name and a live pod of that
// name is bound with others: all addresses that its annotation names record it, and this
// address is not among them. find returns the live pod of an address, or nil, and all
// addresses that record the pod.
func superseded(ip *v1alpha1.FloatingIP, siblings []*v1alpha1.FloatingIP, find func(*v1alpha1.FloatingIP) (pod *v1.Pod, recorded []*v1alpha1.FloatingIP)) bool {
	if ip.Spec.Owner.PodName == "" {
		return false
	}
	for _, other := range siblings {
		if other.Spec.Pod == nil || !samePurpose(other, ip) {
			continue
		}
		pod, recorded := find(other)
		if pod == nil || pod.Spec.NodeName == "" {
			continue
		}
		names, err := podrequest.NamesOf(pod)
		all := err == nil && len(names) > 0 && !slices.Contains(names, ip.Name)
		for _, name := range names {
			all = all && slices.ContainsFunc(recorded, func(r *v1alpha1.FloatingIP) bool {
				return r.Name == name && samePurpose(r, ip)
			})
		}
		if all {
			return true
		}
	}
	return false
}
