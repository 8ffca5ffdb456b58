// SPDX-License-Identifier: Apache-2.0

// Package transfer has the commands that save all of Berth's objects, create them again
// from a backup, and create them from Galaxy's. What they would write is a plan of package
// package backup or migrate; this package reads, prints and applies it.
package transfer
