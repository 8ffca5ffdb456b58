// SPDX-License-Identifier: Apache-2.0

// Package fault names the places between two side effects. There a test can kill
// the process, to check the recovery at the next start. Without the build tag
// faultpoints the package does nothing.
package fault
