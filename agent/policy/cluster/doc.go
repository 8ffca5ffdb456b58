// SPDX-License-Identifier: Apache-2.0

// Package cluster knows the policies, namespaces and pods of the whole cluster, as far as the
// policies need them, and tells each change of them. Every node has it in memory, so it holds
// little: see Memory. It decides nothing about packets.
//
// # Watches
//
// NetworkPolicies always. ClusterNetworkPolicies where their kind is installed, which a watch of
// that one CustomResourceDefinition tells. Namespaces and the node's own pods from the first policy
// on, and the pods of all nodes, and FloatingIPs, from the first policy on that selects peers, and
// nodes besides from the first one on that selects these. After the last such policy they go on for
// some time, because a policy that is replaced may be away for a moment, and are dropped then.
//
// A policy is told only when all that it needs is known: one that came a moment ago does not cut
// its pods off from peers that are still being read, and meanwhile all others go on. Known objects
// stay while the API server does not answer.
//
// # Which pods count
//
// Policies do not hold for pods in the network of their node, and their addresses are the node's,
// so these are not held. Nor are pods that have finished: their address may be another pod's by
// now. That is, in phase Succeeded or Failed, or being deleted and all of their containers have
// ended: the kubelet writes the phase a moment after it, and nothing runs that could send. A pod
// that is being deleted and of which a container runs counts, also on a node that is lost: it may
// run on there.
//
// A pod has the addresses of its status, which has one of each family, and the floating IPs whose
// FloatingIPs name it: those of other pools and on further networks, and all of them from its
// binding on, before the kubelet has told its status.
//
// # Memory
//
// Of a pod is held: its name, UID and addresses, and a pointer to its labels and named ports, which
// the pods of one workload share. The labels by which the pods of a StatefulSet differ, name and
// index, follow from a pod's name and are not held. Objects are read from a stream, one by one:
// neither a list of all nor a second copy is ever in memory, also when all is read again.
//
// An informer of client-go needs more: of 150,000 pods it held 70 MB with the smallest objects that
// it can store, labels shared, and 175 MB while it read them; this package holds 23 MB, and 58 MB
// while it reads. With metadata only, and without addresses, an informer held 127 MB.
//
// # Caveats
//
// Other addresses on further interfaces are in annotations only, which may be forged.
package cluster
