// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/berth-dev/berth/cmd/internal/referencetest"
)

func TestReference(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	referencetest.Page(t, "../..", "berth-failover.md", referencetest.Command(newCommand()))
}
