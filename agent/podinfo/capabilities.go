// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/api"
)

// netAdmin is the capability with which a process can change the network of its namespace.
const netAdmin corev1.Capability = "NET_ADMIN"

// NetAdmins returns the names of a pod's containers that may change its network, from the watch,
// without blocking.
func (n *Node) NetAdmins(pod api.Pod) []string {
	p, known := n.watched(pod)
	if !known {
		return nil
	}
	var names []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if isNetAdmin(c.SecurityContext) {
			names = append(names, c.Name)
		}
	}
	for _, c := range p.Spec.EphemeralContainers {
		if isNetAdmin(c.SecurityContext) {
			names = append(names, c.Name)
		}
	}
	return names
}

func isNetAdmin(s *corev1.SecurityContext) bool {
	if s == nil {
		return false
	}
	if s.Privileged != nil && *s.Privileged {
		return true
	}
	return s.Capabilities != nil && slices.ContainsFunc(s.Capabilities.Add, func(c corev1.Capability) bool {
		name := strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
		return name == string(netAdmin) || name == "ALL"
	})
}

// trimSecurity keeps the part of a security context by which its container may change the network.
func trimSecurity(s *corev1.SecurityContext) *corev1.SecurityContext {
	if !isNetAdmin(s) {
		return nil
	}
	return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{netAdmin}}}
}
