// SPDX-License-Identifier: Apache-2.0

// Package state keeps the attachments of this node across restarts of the
// agent: for every container interface what is to be done, was done or is being
// undone, and everything that DEL needs. It owns one bbolt file and never looks
// at the kernel or the API.
//
// Invariants: a record is on disk before the first side effect that it
// describes, and is removed after the last one is undone; a record is replaced
// whole; a file that this version does not understand is left as it is.
//
// # Caveats
//
// The file is locked: a second agent on the same node fails to open it.
package state
