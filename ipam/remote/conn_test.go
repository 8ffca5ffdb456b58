// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"strings"
	"testing"
)

func TestOneLine(t *testing.T) {
	long := strings.Repeat("ü", maxWords)
	for message, want := range map[string]string{
		"":                       "no reason given",
		" \n\t":                  "no reason given",
		"quota\r\n  of 5\x1b[1m": "quota of 5 [1m",
		"a" + long:               "a" + long[:maxWords-2] + "…",
	} {
		if got := oneLine(message); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}
