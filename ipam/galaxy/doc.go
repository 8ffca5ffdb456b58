// SPDX-License-Identifier: Apache-2.0

// Package galaxy knows the names and formats of Galaxy (tkestack/galaxy), which
// Berth can take over from: what its users write on pods ([Aliases]), how it
// writes down who has an address ([ParseKey]), and its pool configuration
// ([ParseConfig]). All of it is pure and without I/O; package migrate makes
// Berth's objects of it.
package galaxy
