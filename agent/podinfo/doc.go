// SPDX-License-Identifier: Apache-2.0

// Package podinfo asks the API about the pods of this node: the pod of a CNI call,
// its request for floating IPs, its own addresses, and whether it still runs. It
// owns a watch of this node's pods and reads FloatingIPs one by one. It never lists
// or watches FloatingIPs: field selectors on custom resources are not indexed, so
// every node would cost the API server every event. It writes the conditions of FloatingIPs of its
// node's pods.
//
// An address is a pod's own only if the FloatingIP, read live, names the UID of the
// pod and this node. The pod's annotation names the FloatingIPs to read, in order,
// and proves nothing.
//
// # Caveats
//
// The watch may lag. So podinfo asks the API for a pod that the watch does not know
// yet, but it believes the watch that a pod is gone.
package podinfo
