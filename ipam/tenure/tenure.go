// SPDX-License-Identifier: Apache-2.0

// Package tenure logs who has an address, and until when: one line for each change, at the default
// log level, with the same keys in every program. "kubectl berth history" reads these lines.
package tenure

import (
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Change is a change of the holder or owner of an address. Its text is the message of the line.
type Change string

const (
	// Bound: a pod has the address.
	Bound Change = "A pod got a floating IP"
	// Kept: no pod has the address, and its owner keeps it.
	Kept Change = "A pod gave up a floating IP, which its owner keeps"
	// Freed: neither a pod nor an owner has the address.
	Freed Change = "A floating IP was freed"
)

// Keys of the line, in their order. All lines have all of them.
const (
	KeyAddress   = "address"
	KeyPool      = "pool"
	KeyNamespace = "namespace"
	KeyPod       = "pod"
	KeyPodUID    = "podUID"
	KeyNode      = "node"
	KeyOwnerKind = "ownerKind"
	KeyOwner     = "owner"
	KeyWhy       = "why"
)

// Log logs a change. ip is the record with the pod: the new record for Bound, otherwise the former
// one. Log does not use the logger of a context, because kube-scheduler's logger adds its own
// values under some of the keys.
func Log(change Change, ip *v1alpha1.FloatingIP, why string) {
	klog.Background().Info(string(change), values(ip, why)...)
}

func values(ip *v1alpha1.FloatingIP, why string) []any {
	spec := &ip.Spec
	var namespace, kind, owner, uid string
	if spec.Owner != nil {
		namespace, kind, owner = spec.Owner.Namespace, spec.Owner.Kind, spec.Owner.Name
	}
	pod := spec.LastPod
	if spec.Pod != nil {
		pod, uid = spec.Pod.Name, string(spec.Pod.UID)
	}
	return []any{
		KeyAddress, spec.Address, KeyPool, spec.Pool, KeyNamespace, namespace, KeyPod, pod, KeyPodUID, uid,
		KeyNode, spec.Node, KeyOwnerKind, kind, KeyOwner, owner, KeyWhy, why,
	}
}
