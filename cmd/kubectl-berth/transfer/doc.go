// SPDX-License-Identifier: Apache-2.0

// Package transfer has the commands that save all of Berth's objects, create them again
// from a backup, and create them from Galaxy's. Packages backup and migrate plan the
// writes; this package reads, prints and applies them.
package transfer
