// SPDX-License-Identifier: Apache-2.0

// Package state keeps the containers' networks of this node across restarts of the agent:
// for every container its attachments, the phase of the work and all that DEL needs. It
// owns one bbolt file and never looks at the kernel or the API.
//
// Invariants: a record survives the agent before its first side effect, and is removed
// after the last one is undone; Put replaces a record whole; Open changes no file
// that this version does not understand.
//
// A record describes containers and their network in the kernel, and ends with both. So the file
// belongs on a file system in memory, where a change costs no sync of a disk. On a disk it works as
// well: each change then takes some milliseconds, and EndBoot removes the records of before a
// restart of the node. Package chain remembers in files on disk the input of DEL after a restart.
//
// # Caveats
//
// Open locks the file: a second agent on the same node fails to open it.
package state
