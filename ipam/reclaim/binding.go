// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// bindingOf is the relation of an address to the live pod that it records.
type bindingOf int

const (
	// itsOwn: the pod has the address, or may still be bound with it.
	itsOwn bindingOf = iota
	// misplaced: the pod has the address, but the record names another node.
	misplaced
	// leftover: one attempt to schedule the pod took the address, and a later attempt or
	// another scheduler bound the pod with others.
	leftover
)

// classify returns the relation of an address to the live pod that it records. recorded are all
// addresses that record the pod. classify ignores the pod's annotation, because a user may change
// it.
//
// An address is a leftover only after the kubelet has written the pod's IPs, and if it is not one
// of them. An address recorded for the pod's node is a leftover if the IPs have as many other
// recorded addresses as the pod requests. (Of several addresses of one family the kubelet writes
// only the first.) An address recorded for another node is a leftover if the pod has all its
// addresses on its own node.
func classify(ip *v1alpha1.FloatingIP, pod *v1.Pod, recorded []*v1alpha1.FloatingIP) bindingOf {
	here, told := int64(0), int64(0)
	for _, other := range recorded {
		if other.Spec.Node != pod.Spec.NodeName {
			continue
		}
		here++
		if isTold(other, pod) {
			told++
		}
	}
	isHere, wants := ip.Spec.Node == pod.Spec.NodeName, max(1, requested(&pod.Spec))
	switch {
	case pod.Spec.NodeName == "":
		return itsOwn
	case !isHere && (here < wants || isTold(ip, pod)):
		return misplaced
	case isHere && told != wants || isTold(ip, pod) || len(pod.Status.PodIPs) == 0:
		return itsOwn
	}
	return leftover
}

// isTold reports whether an address is one of the pod's IPs, which its kubelet writes.
func isTold(ip *v1alpha1.FloatingIP, pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(told v1.PodIP) bool { return told.IP == ip.Spec.Address })
}

// superseded reports whether the address is kept for a pod name, and a live pod of that name is
// bound with other addresses: as many as it requests record it on its node. find returns the live
// pod of an address, or nil, and all addresses that record the pod.
func superseded(ip *v1alpha1.FloatingIP, siblings []*v1alpha1.FloatingIP, find func(*v1alpha1.FloatingIP) (pod *v1.Pod, recorded []*v1alpha1.FloatingIP)) bool {
	if ip.Spec.Owner.PodName == "" {
		return false
	}
	for _, other := range siblings {
		if other.Spec.Pod == nil || other.Name == ip.Name || !samePurpose(other, ip) {
			continue
		}
		pod, recorded := find(other)
		if pod == nil || pod.Spec.NodeName == "" {
			continue
		}
		others := int64(0)
		for _, r := range recorded {
			if r.Name != ip.Name && r.Spec.Node == pod.Spec.NodeName && samePurpose(r, ip) {
				others++
			}
		}
		if others >= max(1, requested(&pod.Spec)) {
			return true
		}
	}
	return false
}
