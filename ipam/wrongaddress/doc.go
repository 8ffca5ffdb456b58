// SPDX-License-Identifier: Apache-2.0

// Package wrongaddress finds pods that run with an address that is not theirs.
//
// The network of a pod is made once, by the CNI plugin that the node's runtime calls first. If that
// is not Berth's, because a node has no agent or its configuration was replaced, the pod runs with
// an address of that plugin, its FloatingIP says that it has another, and nobody answers for that.
// The scheduler chooses no node without a ready agent, but an agent can go in the moment after, or
// another scheduler may have bound the pod.
//
// A [Finder] compares all pods at intervals, so it needs no event and misses none. It says so
// on the pod, and counts. If it is told to, it evicts the pods, so that their workload makes
// them again.
package wrongaddress
