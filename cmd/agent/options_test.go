// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// An agent has at least half a minute to start again before its node falls silent.
func TestSilenceAfter(t *testing.T) {
	for after, refused := range map[time.Duration]bool{-time.Minute: true, 0: false, 29 * time.Second: true, 30 * time.Second: false, time.Hour: false} {
		o := newOptions()
		o.NodeName, o.NodeIP, o.SilenceAfter = "node", "10.0.60.11", after
		if err := o.Validate(); (err != nil) != refused || refused && !strings.Contains(err.Error(), "--silence-after must be 0 or at least 30s") {
			t.Errorf("Validate() with --silence-after=%s: %v", after, err)
		}
	}
}
