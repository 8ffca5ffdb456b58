// SPDX-License-Identifier: Apache-2.0

// Package shaping limits the bandwidth of single pods and of groups of pods, and marks their
// packets with a DSCP. It works on the node's ends of the pods' interfaces, where pods cannot
// change it, and needs no program on the node.
//
// Directions are named like in Kubernetes, from the pod's view: ingress is toward the pod. For each
// limited direction there is a device, which is an ifb link with an HTB queue. The node's end of
// the pod's interface sends the packets of the direction through it:
//
//	veth of the pod, clsact egress hook  ──▶ bth-i… ──▶ the pod       (ingress of the pod)
//	veth of the pod, clsact ingress hook ──▶ bth-e… ──▶ the node      (egress of the pod)
//
// A pod outside of a group has devices of its own. The pods of a group share a device: its HTB has
// a class for each pod, which borrows from the group's class, so that pods that send at the same
// time get equal parts. The class also has the pod's own limit, if any. A filter finds the class by
// the interface from which a packet was redirected.
//
// DSCPs are set by the nftables table inet berth-profiles, by the packet's source address.
//
// # Other programs
//
// The root queue of an interface stays unchanged. The package uses the hook of another program, and
// never removes it. Its filters come after all others, so that a filter that enforces a policy sees
// every packet. If another filter ends the classification of a packet, or another program's hook
// has only one direction, the limit is not enforced, and Sync returns ErrConflict.
//
// # Caveats
//
// An interface without a veth end on the node, such as of macvlan or SR-IOV, is not limited: its
// packets do not pass the node. After a limit was removed, the empty hook stays on the interface,
// because another program may use it by then; it has no effect and goes with the interface.
package shaping
