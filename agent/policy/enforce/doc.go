// SPDX-License-Identifier: Apache-2.0

// Package enforce keeps the network policies of a node in its kernel. It joins the parts below:
// cluster follows the objects, an Index compiles them, place says where a pod's packets can be
// seen, and a Backend (packages table and iptables) brings rulesets there. It owns the order and
// time of all steps.
//
// # Pods
//
// Pods says which pods policies govern. An ungoverned pod is a peer of others by its addresses and
// nothing else: its ADD waits for nothing, its namespace is looked into only to remove a table of
// before, and no event is about it. Preview says what the rules would be if all were governed.
//
// # Tables
//
// There is one table for the node, and one in the network namespace of each pod with interfaces
// that the node does not see. Each is a target of a queue: changes during a write are written next,
// all at once, one target never by two at a time, and a failed write is tried again. A ruleset that
// is the same pointer as before costs nothing.
//
// # Connections
//
// After a write the connections of the target are looked at, in a queue of their own: there may be
// a million, and neither a denial nor an ADD waits for that. The look has the ruleset that was
// written last; after a write that comes meanwhile there is another one. After a change that lets
// more pass, as a new peer of a rule that accepts, there is none: it forbids no open connection.
// But connections that were ended may go on then.
//
// # The life of a container
//
// One state holds all that is known of a container. An ADD tells it, and until a listing begins
// after the end of the ADD, listings do not count: they may be older. From then on listings
// describe it. When no listing has it any more, it is going: it counts for nothing, and is
// forgotten when its table is removed.
//
// # ADD
//
// Prepare comes before the first interface of a container and closes the gate of a pod that
// policies select; Enforce comes after the last one, brings the pod's rules into the kernel, and
// opens the gate. So no packet is ever accepted that a policy forbids. Both fail until the policies
// are known. A pod that no policy selects waits for nothing.
//
// # Restart
//
// The rules in the kernel stand until all policies, all that they need and all pods of the node are
// known; then each table is replaced in one transaction. A pod whose place cannot be found keeps
// its table until it is. Pods that run without a record, because the record was lost, are taken
// from the API.
//
// # Locks
//
// Index and cluster are read and changed within cluster.Do only. No lock is held while the
// kernel or the API server is asked.
package enforce
