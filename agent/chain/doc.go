// SPDX-License-Identifier: Apache-2.0

// Package chain runs the plugins of a network configuration list: ADD in order, where each plugin
// gets the result of the one before, DEL backwards, CHECK, STATUS and GC. It never chooses a
// network. Results are in the caller's records; the input of DEL is in files, too, which outlive
// these (Cache).
//
// network.go computes the input of plugins without I/O; runner.go runs them.
//
// # Caveats
//
// Add undoes nothing after an error: its caller calls Del.
//
// Del runs every plugin even after one failed: a broken plugin must not leave the
// others' work in the kernel.
package chain
