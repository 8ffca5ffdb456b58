// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/berth-dev/berth/cmd/internal/reference"
)

func TestReference(t *testing.T) {
	for _, name := range []string{"NODE_NAME", "HOST_IP"} {
		t.Setenv(name, "")
	}
	reference.Page(t, "../..", "berth-agent.md", reference.Command(newCommand(&cleanup{})))
}
