// SPDX-License-Identifier: Apache-2.0

// Package agent gives the pods of one node their network and takes it away. It
// owns the order of side effects; its parts do them: podinfo asks the API,
// state is the file, chain runs plugins, cni/veth/wire is the kernel.
//
// # ADD
//
//  1. ask the API who the pod is and, where it requests a floating IP, which
//     addresses it holds here; nothing is touched until that is known
//  2. take the addresses from an older container of this node that still
//     carries them
//  3. write the record (adding)
//  4. run the plugins
//  5. ask once more whether the pod is still there: its deletion may have been
//     seen while there was no record to act on
//  6. write the result (added), announce
//
// A pod's addresses are wired, withdrawn and taken down together: all or none.
//
// A failure after 3 runs the plugins' DEL and then removes the record; where
// DEL fails too the record stays, for the runtime's DEL, for GC and for the
// next start.
//
// # DEL
//
//  1. write the record (deleting)
//  2. run the plugins
//  3. remove the record
//
// # Losing an address
//
// When a pod is deleted, replaced or finished, or a FloatingIP names somebody
// else, the node stops answering for the pod's addresses at once, whatever the
// runtime still does. The record stays (withdrawn), so the runtime's DEL finds
// what it needs.
//
// # After a crash
//
// A record that says adding is undone; deleting is finished; added is checked
// against the API and the kernel, and repaired or withdrawn. So a crash between
// any two steps leaves either no trace or a record that says what may be there.
//
// # Caveats
//
// Calls for one container run one after another, and so does everything that
// touches one address. No other lock is held while a plugin, the disk or the
// API is waited for.
package agent
