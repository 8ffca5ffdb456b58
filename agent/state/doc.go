// SPDX-License-Identifier: Apache-2.0

// Package state keeps the containers' networks of this node across restarts of the agent:
// for every container its attachments, the phase of the work and all that DEL needs. It
// owns one bbolt file, with a write-ahead log beside it, and never looks at the kernel or the API.
//
// Invariants: a record survives the agent before its first side effect, and is removed
// after the last one is undone; Put replaces a record whole; Open changes no file
// that this version does not understand.
//
// # What survives what
//
// What a method has written survives the end of the process, however it ends, when the method
// returns: it is in the kernel's memory of the files at least. It survives a loss of power, too,
// unless the method's name ends in Early. Then the disk has it some milliseconds later. What is lost
// is lost together with the kernel and so with every container of the node, and records of an
// earlier start of the kernel serve one thing: that plugins give back what they keep in files. An
// early record that is lost is one whose plugins ran milliseconds before, if at all, without
// their files being written to disk either; the runtime's DEL, which comes after the restart, cleans
// up without a record, too. A removal that is lost is made again, by a DEL of the same
// container.
//
// A loss of power tears no record and no transaction: bbolt writes each behind a sync of the disk,
// and the log is checked.
//
// # Caveats
//
// The file is 8 MiB from the start, and the log 64 KiB, so that a disk that others fill keeps no record from being
// changed or removed.
//
// Open locks the file: a second agent on the same node fails to open it.
package state
