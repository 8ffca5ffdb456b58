// SPDX-License-Identifier: Apache-2.0

// Package agent gives the pods of one node their network and takes it away. It owns the order of
// side effects, and its parts do them: podinfo asks the API, plan makes records, profile limits
// bandwidth, policy/enforce enforces network policies, egress has ordinary pods leave with
// addresses of the node, hostports has the node's ports, state keeps records in a file, chain runs
// plugins, cni/veth/wire changes the kernel.
//
// Agent has the steps of calls. What they work on are types of this package, each with its state:
// records with their locks and drivers, attachments, the holdings that the answerer is told of,
// withdrawals, repairs, pluginLinks, orphans and lostRecords.
//
// # ADD
//
//  1. ask the API for the pod and, where the pod requests a floating IP, for the
//     addresses that it holds on this node; nothing is touched before
//  2. write the record (adding), with host ports that no other pod has
//  3. ask again whether the pod still runs: a deletion between 1 and 2 found no
//     record to withdraw
//  4. wait until the network policies are known; let nothing in where they select the pod
//  5. take the addresses from an older container of this node that still
//     carries them
//  6. settle with the other nodes of the addresses' networks that this one answers for them
//     (package
//     answerer), and that no other host has them; the asking began when the pod was bound to the node
//  7. for each attachment: wire its addresses and announce them, run the plugins; then
//     give the default route to the attachment that the pod chose for it
//  8. bring the network policies of the pod into the kernel, and let in allowed packets
//  9. have an ordinary pod leave the cluster with an address of the node, where a pool says so
//     (package egress)
//  10. give the container its bandwidth limits
//  11. open its host ports
//  12. have routing daemons announce the addresses that routers lead here (advertise in add.go)
//  13. write the result (added)
//
// A record is a container with its attachments, one for each network. The addresses of an
// attachment are wired, withdrawn and taken down together, in the agent's own process, by
// the driver of the network type that the record names (package nettype). Plugins may be chained
// to it. An attachment without addresses has no driver: the plugins of its network do all the work.
// They do so, too, where they have the addresses from berth-ipam, whose calls IPAM answers
// (ipam.go); the driver then only silences the interface when the addresses are withdrawn.
//
// Then the pod is told what it got (Untold in views.go): by berth-controller, so that an agent
// needs no right on pods.
//
// The steps are a list in the code (steps in add.go). After a failure in 3 to 13 the agent does a
// DEL.
//
// The record of 2 survives the agent, whenever it is killed, before anything else happens.
//
// # DEL
//
//  1. write the record (deleting), stop advertising and answering for the addresses and close the
//     host ports
//  2. for each attachment, last first: run the plugins, each with a time limit of its
//     own, and remove the interface
//  3. remove the record; the rules of network policies for its addresses go with it
//
// Where the first write fails, because the file system is full, the agent stops answering all the
// same and does no more. Where a step fails, the record stays for the runtime's next DEL, for GC
// and for the reconciler, which tries again without the runtime.
//
// # Losing an address
//
// When a pod is deleted, replaced or finished, or its FloatingIP names another pod
// or node, this node stops answering for the pod's addresses at once, in every phase. It
// waits neither for the runtime nor for an ADD or DEL under way, and ends such an ADD.
// The record of a complete attachment stays (withdrawn) for the runtime's DEL, for GC, or until its
// container has no network namespace any more.
//
// When a link loses its carrier, the interfaces on it are closed: hosts outside get no answer for
// their addresses until the reconciliation has put the answers back. Nothing else of them changes.
//
// With a dead man's switch (package deadman) the kernel falls silent for addresses of pods that
// asked for failover where no agent has run for a time. The next agent closes them before anything
// else, and they are asked for as after a carrier was lost.
//
// When another host of the network claims an address, the agent asks the API whose it is. It
// announces an address that is still the pod's again, and withdraws one that has moved.
//
// # Live migration
//
// A pod that is the twin in its FloatingIP (FloatingIPSpec.Twin) is the target of a live migration:
// ADD makes its link, and the node neither routes to it, nor asks, answers or announces (Standby in
// its record), until the guest sends its first frame or KubeVirt says that the machine runs here
// (twin.go). Then package answerer settles with the source's node, which closes the address first.
// The pod is told of the take-over, for berth-controller to follow. Only pods of berth-veth with
// addresses of a layer 2 network can stand by.
//
// # Reconciliation
//
// After a start, every minute and after a change of the node's links the agent compares each record
// with the kernel: all in one survey, where their drivers can do that, and then those that seem to
// lack something, each by itself. One that fails delays no other, and a plugin that hangs delays no
// check. It undoes an adding record and finishes a deleting one that no call works on, repeats the
// withdrawal of a withdrawn one, and puts back a piece of the node's side that an added one lacks
// once the API has said that the pod still holds its addresses. Where other nodes can be asked, it
// does not put it back itself: package answerer does, once it has asked them and has the API's
// word, or silence. So it is after a link was back, was made anew, and after a start, and for
// addresses that a pod gets back. A crash between any two steps leaves either no trace or a record
// of it.
//
// The survey also remembers when the links of floating IPs last carried packets (package traffic).
//
// A complete record whose container has no network namespace any more is finished, so that plugins
// give back leases.
//
// Where plugins of other projects made an interface, the record has its index, and the comparison
// looks whether it is still in the container (pluginlinks.go). A further one that is gone is marked
// in the record and finished: DEL and ADD of that attachment alone. So it is after a crash between
// the two. The first one is only told to its pod.
//
// Records end with the node's kernel, and so does everything that they describe except files of
// plugins, such as leases. After a restart of the node the agent runs the plugins' DEL for the
// attachments that package chain has noted, without a namespace, and the addresses are free for the
// pods' new containers.
//
// # Locks
//
// Calls for one container run one after another. The lock of an address is held only while
// the kernel is changed for it, never while a plugin runs, network policies come into the kernel or
// the API is asked.
package agent
