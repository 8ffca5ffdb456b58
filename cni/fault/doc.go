// SPDX-License-Identifier: Apache-2.0

// Package fault names the places between two side effects, where a test can kill the process to
// check the recovery at the next start. Without the build tag faultpoints the package does nothing.
package fault

// Environment variables of programs with fault points.
const (
	// EnvLog names a file to which Point appends the name of every point.
	EnvLog = "BERTH_FAULT_LOG"
	// EnvKill names a file that holds "<name>" or "<name> <n>". At the n-th pass
	// of that point, Point kills this process and, in a plugin, its parent, the
	// agent. It empties the file before, so the next start lives.
	EnvKill = "BERTH_FAULT_KILL"
)
