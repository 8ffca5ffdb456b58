// SPDX-License-Identifier: Apache-2.0

// Package agent gives the pods of one node their network and takes it away. It
// owns the order of side effects, and its parts do them: podinfo asks the API,
// state keeps records in a file, chain runs plugins, cni/veth/wire changes the
// kernel.
//
// # ADD
//
//  1. ask the API for the pod and, where the pod requests a floating IP, for the
//     addresses that it holds on this node; nothing is touched before
//  2. take the addresses from an older container of this node that still
//     carries them
//  3. write the record (adding)
//  4. run the plugins
//  5. ask again whether the pod still runs: a deletion between 1 and 3 found no
//     record to withdraw
//  6. write the result (added), announce
//
// The agent wires, withdraws and takes down the addresses of a pod together.
//
// After a failure in 4 to 6 the agent runs the plugins' DEL and then removes the
// record. Where DEL fails too, the record stays for the runtime's DEL, for GC and
// for the next start.
//
// # DEL
//
//  1. write the record (deleting)
//  2. run the plugins
//  3. remove the record
//
// # Losing an address
//
// When a pod is deleted, replaced or finished, or its FloatingIP names another pod
// or node, this node stops answering for the pod's addresses at once and does not
// wait for the runtime. The record stays (withdrawn) for the runtime's DEL.
//
// # After a crash
//
// The next start undoes an adding record, finishes a deleting one, and checks an
// added one against the API and the kernel: it repairs or withdraws it. So a crash
// between any two steps leaves either no trace or a record of it.
//
// # Caveats
//
// Calls for one container run one after another, and so do calls for one address.
// The agent holds no other lock while it waits for a plugin, the disk or the API.
package agent
