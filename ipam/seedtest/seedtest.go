// SPDX-License-Identifier: Apache-2.0

// Package seedtest gives randomized tests a seed, which can repeat a run, and the number of cases
// to draw. Both come from environment variables. Go's test cache notices them: with another value a
// test runs again.
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
	seed := number(t, "BERTH_TEST_SEED", uint64(time.Now().UnixNano()))
	t.Logf("BERTH_TEST_SEED=%d repeats this run", seed)
	return seed
}

// Draws returns how many cases to draw: short with go test -short, otherwise long. BERTH_TEST_DRAWS
// sets another number, for tests that run for hours.
func Draws(t testing.TB, short, long uint64) uint64 {
	t.Helper()
	if testing.Short() {
		long = short
	}
	return number(t, "BERTH_TEST_DRAWS", long)
}

func number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
