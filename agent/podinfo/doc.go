// SPDX-License-Identifier: Apache-2.0

// Package podinfo answers what the API says about the pods of this node: who
// is the pod of a CNI call, does it ask for a floating IP, which addresses are
// its own, and is it still there. It owns a watch of this node's pods and reads
// FloatingIPs one by one; it never lists or watches those, because field
// selectors on custom resources are not indexed and every node would cost the
// API server every event. It writes nothing.
//
// An address is a pod's own only if the FloatingIP, read live, names the UID of
// the pod and this node. What is written on the pod says where to look, and in
// which order.
//
// # Caveats
//
// The watch may lag: what it does not know yet is asked for, and what it says
// is gone is gone.
package podinfo
