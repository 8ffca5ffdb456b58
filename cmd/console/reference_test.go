// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/berth-dev/berth/cmd/internal/referencetest"
)

func TestReference(t *testing.T) {
	referencetest.Page(t, "../..", "berth-console.md", referencetest.Command(newCommand()))
}
