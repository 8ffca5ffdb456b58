// SPDX-License-Identifier: Apache-2.0

// Package galaxy reads the names and formats of Galaxy (tkestack/galaxy), the system
// that Berth can replace: its annotations on pods ([Aliases]), its records of address
// holders ([ParseKey]), and its pool configuration ([ParseConfig]). It is pure and does
// no I/O; package cmd/kubectl-berth/transfer/galaxyimport makes Berth's objects from it.
package galaxy
