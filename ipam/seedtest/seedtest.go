// SPDX-License-Identifier: Apache-2.0

// Package seedtest gives tests that draw at random a seed which repeats a run.
package seedtest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Seed returns BERTH_TEST_SEED, or else a seed from the time. The test prints it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BERTH_TEST_SEED: %v", err)
		}
	}
	t.Logf("BERTH_TEST_SEED=%d repeats this run", seed)
	return seed
}
