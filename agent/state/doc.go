// SPDX-License-Identifier: Apache-2.0

// Package state keeps the containers' networks of this node across restarts of the agent:
// for every container its attachments, the phase of the work and all that DEL needs. It
// owns one bbolt file and never looks at the kernel or the API.
//
// Invariants: a record is on disk before its first side effect, and is removed
// after the last one is undone; Put replaces a record whole; Open changes no file
// that this version does not understand.
//
// # Caveats
//
// The file is 8 MiB from the start, so that a disk that others fill keeps no record from being
// changed or removed.
//
// Open locks the file: a second agent on the same node fails to open it.
package state
