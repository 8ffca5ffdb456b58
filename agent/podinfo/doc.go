// SPDX-License-Identifier: Apache-2.0

// Package podinfo asks the API about the pods of this node: the pod of a CNI call, its request for
// floating IPs, its own addresses, and whether it still runs. It owns a watch of this node's pods.
// It reads FloatingIPs one by one and does not watch them: field selectors on custom resources are
// not indexed, so the API server would handle every event for every node. It writes the conditions
// of FloatingIPs of its node's pods.
//
// An address is a pod's own only if the FloatingIP, read live, names the UID of the
// pod and this node. The pod's annotation names the FloatingIPs to read, in order,
// and proves nothing.
//
// # Caveats
//
// The watch may lag. So podinfo asks the API for a pod that the watch does not know yet. But if the
// watch says that a pod is gone, podinfo does not ask.
package podinfo
