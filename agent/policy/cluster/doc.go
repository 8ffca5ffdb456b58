// SPDX-License-Identifier: Apache-2.0

// Package cluster knows the policies, namespaces and pods of the whole cluster, as far as the
// policies need them, and reports each change. Every node has them in memory, so the package keeps
// little of each: see Memory. It decides nothing about packets.
//
// # Watches
//
// The package always watches NetworkPolicies, and the CustomResourceDefinition of
// ClusterNetworkPolicies. It watches ClusterNetworkPolicies while this kind is installed. It
// watches namespaces and the node's own pods from the first policy on; pods of all nodes and
// FloatingIPs from the first policy on that selects peers; nodes from the first policy on that
// selects nodes. After the last such policy a watch continues for some time, because a policy that
// is being replaced may be missing for a moment.
//
// A policy is reported only when all objects that it needs are known. So a new policy does not cut
// its pods off from peers that are still being read, and all other policies stay in force. Known
// objects stay while the API server does not respond.
//
// # Which pods count
//
// Pods in the network of their node do not count: policies do not hold for them, and their
// addresses are the node's. Finished pods do not count, either: their address may be another pod's
// by now. A pod has finished in phase Succeeded or Failed. It also has finished if it is being
// deleted and all of its containers have ended: nothing can send any more, and the kubelet writes
// the phase a moment later. A pod that is being deleted and has a running container counts, also on
// a lost node: it may still run there.
//
// A pod has the addresses of its status, one of each family, and the floating IPs whose FloatingIPs
// name it. FloatingIPs add addresses of other pools and further networks, and are known from the
// binding on, before the kubelet writes the status.
//
// # Memory
//
// For each pod the package keeps its name, UID and addresses, and a pointer to its labels and named
// ports, which the pods of a workload share. It does not keep the labels by which the pods of a
// StatefulSet differ, name and index, because they follow from the pod's name. Objects are read
// from a stream, one by one: neither a full list nor a second copy is ever in memory.
//
// An informer of client-go needs more: of 150,000 pods it held 70 MB with the smallest objects that
// it can store, labels shared, and 175 MB while it read them; this package holds 23 MB, and 58 MB
// while it reads. With metadata only, and without addresses, an informer held 127 MB.
//
// # Caveats
//
// Addresses of further interfaces that are no floating IPs do not count: only annotations have
// them, which may be forged.
package cluster
