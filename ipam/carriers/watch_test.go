// SPDX-License-Identifier: Apache-2.0

package carriers

import "testing"

// Four silences in a row are believed, beside an answer of the gateway each, of a carrier that
// answered before.
func TestWatch(t *testing.T) {
	// A round is an answer of the carrier (a, or b after its MAC changed), silence beside the gateway
	// (-), or silence of both (x).
	for rounds, silent := range map[string]bool{
		"": false, "a": false, "a---": false, "a----": true, "a-----": true, "----": false, "a--a--": false,
		"a--x--": false, "axxxx": false, "a----x": false, "a----a": false, "b---a----": true, "x----": false,
	} {
		w, got := Watch{}, false
		whom := ""
		for _, round := range rounds {
			mac := ""
			if whom = string(round); round == 'a' || round == 'b' {
				mac = whom
			}
			got = w.Note(mac, round != 'x')
		}
		if got != silent {
			t.Errorf("%s: silent %t, want %t", rounds, got, silent)
		}
		// In doubt all hosts are asked.
		if asks := w.Whom(); (whom == "a") != (asks == "a") && whom != "x" {
			t.Errorf("%s: it asks %q", rounds, asks)
		}
	}
}
