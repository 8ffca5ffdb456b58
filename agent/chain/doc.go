// SPDX-License-Identifier: Apache-2.0

// Package chain runs the plugins of a network configuration list: ADD in order
// with each result passed on, DEL backwards, CHECK, STATUS and GC. It owns no
// state: CNI's own library keeps results in files of its own, here the caller
// keeps them. It never chooses a network.
//
// What a plugin is given (plan.go) is computed without I/O; run.go executes.
//
// # Caveats
//
// Add does not undo what it did: the caller knows whether there is a record to
// undo by, and calls Del.
//
// Del runs every plugin even after one failed, so that one broken plugin does
// not leave the others' work in the kernel, and returns all errors.
package chain
