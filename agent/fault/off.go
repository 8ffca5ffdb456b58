// SPDX-License-Identifier: Apache-2.0

//go:build !faultpoints

package fault

// Point marks the place after the side effect that name describes.
func Point(name string) {}
