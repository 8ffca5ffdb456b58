// SPDX-License-Identifier: Apache-2.0

// Package state keeps the networks of this node's containers across restarts of the agent: for
// every container its attachments, the phase of the work and the input of DEL. It owns a bbolt file
// and never looks at the kernel or the API.
//
// Invariants: a record is durable before the first side effect, and is removed after the last side
// effect is undone; Put replaces the whole record; Open changes no file that this version does not
// understand.
//
// A record describes containers and their network in the kernel, and ends with both. So the file
// belongs on a file system in memory, where a change needs no sync of a disk. On a disk it works,
// too: then each change takes some milliseconds, and EndBoot removes the records from before a
// restart of the node. After such a restart the input of DEL comes from the files of package chain
// on disk.
//
// # Caveats
//
// Open locks the file: a second agent on the same node fails to open it.
package state
