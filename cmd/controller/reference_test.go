// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/berth-dev/berth/cmd/internal/reference"
)

func TestReference(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	reference.Page(t, "../..", "berth-controller.md", reference.Command(newCommand()))
}
