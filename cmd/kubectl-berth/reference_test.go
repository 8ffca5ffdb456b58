// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/internal/referencetest"
)

func TestReference(t *testing.T) {
	referencetest.Page(t, "../..", "kubectl-berth.md", referencetest.Command(newCommand(genericiooptions.NewTestIOStreamsDiscard())))
}
