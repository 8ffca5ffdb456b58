// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"testing"
	"time"
)

func TestBusy(t *testing.T) {
	tests := map[string]struct {
		text string
		want time.Duration
		ok   bool
	}{
		"all but idle, iowait and steal": {"cpu  100 20 300 4000 500 6 7 800 99 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n", 4330 * time.Millisecond, true},
		"short":                          {"cpu  100 20 300", 0, false},
		"no number":                      {"cpu  100 20 x 4000 500 6 7 800 0 0\n", 0, false},
		"empty":                          {"", 0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := busy(tc.text)
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("busy() = %s, %v, want %s", got, err, tc.want)
			}
		})
	}
}
