// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// bindingOf says what an address that is recorded for a live pod is to it.
type bindingOf int

const (
	// itsOwn: the pod has it, or may yet be bound with it.
	itsOwn bindingOf = iota
	// misplaced: the pod has it, but the record names another node.
	misplaced
	// surplus: an attempt to schedule the pod claimed it, and a later one, or
	// another scheduler, bound the pod with others.
	surplus
)

// classify looks at an address that is recorded for a live pod; recorded are all
// that are.
//
// Of a bound pod nobody may change the annotation (manifests/admission), but a cluster
// without that policy must not be harmed either: one that the annotation does not name is
// surplus only if the pod has all that it asks for without it: as many as it requests, each
// named and recorded for it on its node. So a pod whose author shortened or changed the
// annotation loses nothing that it runs with.
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
	return surplus
}

// superseded says whether a live pod of the name that the address stands for is
// bound with others: all that its annotation names record it, and the address is
// not among them. find returns the live pod of a record, or nil; recorded are the
// addresses that record a pod.
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
