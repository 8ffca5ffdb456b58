// SPDX-License-Identifier: Apache-2.0

package floatingip

import "testing"

// The level depends on the ratio of free addresses.
func TestLevel(t *testing.T) {
	if level(0) >= level(1) || level(5) >= level(20) || level(500) >= level(2000) {
		t.Error("more room is not better")
	}
	if level(900) != level(1000) {
		t.Error("a little more room makes a difference")
	}
	if level(20)-level(5) != level(2000)-level(500) {
		t.Error("four times the room is not worth the same everywhere")
	}
}
