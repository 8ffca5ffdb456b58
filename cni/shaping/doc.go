// SPDX-License-Identifier: Apache-2.0

// Package shaping limits the bandwidth of pods, each by itself and groups of pods together,
// and marks their packets with a DSCP. It works on the node's ends of the pods' interfaces,
// where pods cannot change it, and needs no program on the node.
//
// A direction is named as Kubernetes does, from the pod's view: ingress is toward the pod.
// For each limited direction there is a device, which is an ifb link with an HTB queue. The
// node's end of the pod's interface sends the packets of the direction through it:
//
//	veth of the pod, clsact egress hook  ──▶ bth-i… ──▶ the pod       (ingress of the pod)
//	veth of the pod, clsact ingress hook ──▶ bth-e… ──▶ the node      (egress of the pod)
//
// A pod with a limit of its own alone has devices of its own. The pods of a group share a device:
// its HTB has a class for each pod, which borrows from the group's class, so that pods that send at
// the same time get equal parts, and a class has the pod's own limit where it has one. A filter
// finds the class by the interface that a packet was redirected from.
//
// DSCPs are set by the nftables table inet berth-profiles, by the packet's source address.
//
// # Other programs
//
// The root queue of an interface stays as it is. The hook of another program is used, and
// never removed: the filters of this package come after all others, so that a filter that
// enforces a policy sees every packet. Where another filter ends the classification of a
// packet, or another program's hook has only one direction, the limit is not enforced and
// Sync says so (ErrConflict).
//
// # Caveats
//
// An interface without an end on the node that is a veth, such as one of macvlan or of
// SR-IOV, is not limited: its packets do not pass the node. The empty hook stays on an
// interface whose limit was taken away, because it may be another program's by then; it has
// no effect and goes with the interface.
package shaping
