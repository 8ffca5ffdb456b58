// SPDX-License-Identifier: Apache-2.0

// Package wrongaddress finds pods that run with an address that is not theirs.
//
// The network of a pod is made once, by the CNI plugin that the node's runtime calls first. If this
// is not Berth's plugin, because a node has no agent or its configuration was replaced, the pod
// runs with an address of the other plugin. Its FloatingIP names another address, for which no node
// answers. The scheduler chooses only nodes with a ready agent, but the agent may disappear right
// after that, or another scheduler may have bound the pod.
//
// A [Finder] compares all pods at intervals, so it does not depend on events. It counts such pods
// and writes an event on each of them. If configured, it evicts the pods, so that their workload
// creates new ones.
package wrongaddress
