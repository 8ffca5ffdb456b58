// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "testing"

func TestOrdinal(t *testing.T) {
	for _, test := range []struct {
		pod     string
		ordinal int64
		ok      bool
	}{
		{"web-0", 0, true},
		{"web-12", 12, true},
		{"web-10000", 10000, true},
		{"web-2456", 2456, true},
		{"web-75496", 75496, true},
		{"web-75491", 75491, true},
		{"web-7f496", 0, false},
		{"web-", 0, false},
		{"web--1", 0, false},
		{"web-0-abcde", 0, false},
		{"other-0", 0, false},
		{"web-2147483648", 0, false},
	} {
		ordinal, ok := OrdinalOf("web", test.pod)
		if ok != test.ok || ok && ordinal != test.ordinal {
			t.Errorf("OrdinalOf(%q) = %d, %v, want %d, %v", test.pod, ordinal, ok, test.ordinal, test.ok)
		}
	}
}
