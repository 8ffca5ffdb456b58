// SPDX-License-Identifier: Apache-2.0

// Package fault names the places between two side effects, so that a test can
// end the process there and check what the next start makes of it. It does
// nothing unless the build has the tag faultpoints.
package fault
