// SPDX-License-Identifier: Apache-2.0

// Package enforce keeps the network policies of a node in its kernel. It connects these parts:
// package cluster follows the objects, an Index compiles them, package place finds where a pod's
// packets can be seen, and a Backend (packages table and iptables) writes rulesets there. It owns
// the order and time of all steps.
//
// # Pods
//
// Pods says which pods policies govern. An ungoverned pod is only a peer of others, by its
// addresses: its ADD does not wait, only an old table is removed from its namespace, and it gets no
// events. Preview reports the rules for the case that all pods are governed.
//
// # Tables
//
// The node has a table, and so does the network namespace of each pod with interfaces that the node
// does not see. Each table is a target of a queue: changes during a write are written next, all
// together; a target is written by one worker at a time; a failed write is tried again. A ruleset
// with the same pointer as before costs nothing.
//
// # Connections
//
// After a write a sweep checks the connections of the target, in a queue of its own: there may be a
// million, and neither a denial nor an ADD waits for the sweep. The sweep uses the last written
// ruleset; a write meanwhile causes another sweep. A new peer of an accepting rule forbids no open
// connection: it needs a sweep only to let ended connections continue.
//
// # The life of a container
//
// All knowledge about a container is in a single state. It first comes from an ADD. Listings do not
// count, because they may be older, until a listing begins after the end of the ADD. From then on
// the state comes from listings. A container that is missing in a listing is going: it no longer
// counts, and is forgotten when its table is removed.
//
// # ADD
//
// Prepare is called before the first interface of a container, and closes the gate of a pod that
// policies select. Enforce is called after the last interface, writes the pod's rules into the
// kernel, and opens the gate. So no forbidden packet is ever accepted. Both fail until the policies
// are known. A pod that no policy selects does not wait.
//
// # Restart
//
// The rules in the kernel stay until all policies, the objects that they need and all pods of the
// node are known; then each table is replaced in one transaction. A pod keeps its table until its
// place is found. Running pods whose record was lost are taken from the API.
//
// # Locks
//
// Index and cluster are read and changed within cluster.Do only. No lock is held during requests to
// the kernel or the API server.
package enforce
