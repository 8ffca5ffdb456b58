// SPDX-License-Identifier: Apache-2.0

// Package failover decides when pods are moved from a node that died: which node is suspect, whom
// to ask about it, and which pods to delete. It is a pure state machine: a caller tells a Cluster
// what happened, at which time, and does what Step returns, in that order. It asks nobody, writes
// nothing and knows no clock.
//
// That no two nodes answer for an address does not rest on it, but on package agent/answering:
// whoever deletes a pod by force, its next node asks the network first. So two Clusters that act at
// once do no harm.
//
// # Rules
//
//   - Suspect is a node no renewal of whose Lease was seen for 15 s, by the caller's monotonic
//     clock. The time in the Lease is
//     of another clock, and is not read. While the watch of Leases is broken, or the caller itself stood still, no time passes
//     for anybody, and after that it begins anew for all: a node that renews is seen to do so before one can be suspect. A watch
//     may be late without being broken; so a suspect node's Lease is read at the API server before anything else.
//   - Confirm. Up to three agents of other nodes in the same pools are asked whether the node
//     answers: the ones whose own
//     Leases were renewed last. Each asks two more nodes, which renewed last, too, and others than the next one asks. Gone is a node that nobody hears, if a witness had a control, another host that answered
//     meanwhile. That somebody hears it counts without one. A node is asked about again and again while it is suspect, ever later.
//   - Of a node that is gone, all pods move that asked for it and hold a floating IP by the record
//     of the API server. Of one whose
//     agent answers (it lost the API server) only those that Kubernetes gave up: they are being deleted, and Kubernetes itself has
//     tainted the node as unreachable. Without that taint the kubelet may be ending the pod in peace. Of one whose kernel answers
//     and whose agent does not (it hangs), none: nobody there would stop to answer for the addresses.
//     One that was heard before has to be found gone twice: its link may have flapped during the question.
//   - Brake. While more than one node and more than a third of all are suspect, nothing moves, and
//     for a minute after. A person
//     may end it; the nodes that are suspect then do not count any more until they return. Nodes that are cut off together become
//     suspect over ten seconds, as kubelets renew at different times. So nothing moves either while another node, or 2 % of all, is
//     overdue: it has not renewed for 11 s, and is not suspect yet.
//   - Taint before deleting. A node that died is Ready for 40 s or so, and the next pod could come
//     to it. The taint goes when
//     the node's Lease is renewed.
//   - Fence, where there is a fencer: a node that is gone, or hangs, is to be powered off, beside
//     the rounds, so that no pod of one
//     that is gone waits for it. Of a node that is off all pods move that asked for it, whatever answers for their addresses, and
//     Kubernetes is told, so that it detaches volumes. The brake holds for it, too. Each request follows a verdict of that moment, and
//     so rounds go on, also after the pods have moved. One that is under way is given up when the Lease is renewed, the brake begins, or
//     this process leads no more; and when the node turns out to serve, or nobody can say any more: it may serve. That the fencer failed
//     says nothing; that it powered the node off holds until the Lease is renewed.
//   - A machine that was switched on is left to start. A node that answers again after it was gone
//     may be starting; so may one of which
//     nobody could say anything for over a minute, under the brake or while nobody led, unless a person said that it is off. Such
//     a node is not powered off for five minutes, and one of which Kubernetes knows that the fencer powered it off, not before it has
//     renewed its Lease.
//
// Pods of a workload that starts them in order are deleted all at once: they are dead already, and
// the workload's controller makes them in its order.
package failover
