// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/internal/reference"
)

func TestReference(t *testing.T) {
	reference.Page(t, "../..", "kubectl-berth.md", reference.Command(newCommand(genericiooptions.NewTestIOStreamsDiscard())))
}
