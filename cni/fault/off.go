// SPDX-License-Identifier: Apache-2.0

//go:build !faultpoints

package fault

// Point marks the place after the named side effect.
func Point(name string) {}
