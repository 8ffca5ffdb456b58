// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/berth-dev/berth/agent/policy/enforce"
)

// The overlay's pods are governed by default, since no other program wires them.
func TestGoverned(t *testing.T) {
	for _, c := range []struct {
		overlay     string
		given, want enforce.Pods
	}{
		{overlayOff, enforce.PodsFloatingIP, enforce.PodsFloatingIP},
		{"vxlan", enforce.PodsFloatingIP, enforce.PodsAll},
		{overlayOff, enforce.PodsAll, enforce.PodsAll},
		{"vxlan", enforce.PodsNone, enforce.PodsNone},
	} {
		if got := (&Options{Overlay: c.overlay, NetworkPolicyPods: c.given}).governed(); got != c.want {
			t.Errorf("--overlay=%s --network-policy-pods=%s: %s, want %s", c.overlay, c.given, got, c.want)
		}
	}
}
