// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "testing"

func TestOrdinal(t *testing.T) {
	for _, test := range []struct {
		pod     string
		ordinal int64
		ok      bool
		named   bool
	}{
		{"web-0", 0, true, true},
		{"web-12", 12, true, true},
		{"web-10000", 10000, true, true},
		{"web-2456", 2456, true, true},
		{"web-75496", 75496, true, false}, // generated
		{"web-75491", 75491, true, true},
		{"web-7f496", 0, false, false},
		{"web-", 0, false, false},
		{"web--1", 0, false, false},
		{"web-0-abcde", 0, false, false},
		{"other-0", 0, false, false},
		{"web-2147483648", 0, false, false},
	} {
		ordinal, ok := OrdinalOf("web", test.pod)
		if ok != test.ok || ok && ordinal != test.ordinal {
			t.Errorf("OrdinalOf(%q) = %d, %v, want %d, %v", test.pod, ordinal, ok, test.ordinal, test.ok)
		}
		if got := IsNamedByOrdinal("web", test.pod); got != test.named {
			t.Errorf("IsNamedByOrdinal(%q) = %v", test.pod, got)
		}
	}
}
