// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/berth-dev/berth/cmd/internal/referencetest"
)

func TestReference(t *testing.T) {
	for _, name := range []string{"NODE_NAME", "HOST_IP"} {
		t.Setenv(name, "")
	}
	referencetest.Page(t, "../..", "berth-speaker.md", referencetest.Command(newCommand()))
}
