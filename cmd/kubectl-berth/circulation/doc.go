// SPDX-License-Identifier: Apache-2.0

// Package circulation has the commands that take addresses out of circulation and put them
// back, reserve, unreserve and release, and move-claim, which gives them to another
// claim. Each write is limited to the state of the object that
// the user saw, so nothing is taken from a pod that got the address meanwhile.
package circulation
