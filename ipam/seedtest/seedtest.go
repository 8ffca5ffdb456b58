// SPDX-License-Identifier: Apache-2.0

// Package seedtest gives tests that draw at random a seed which repeats a run, and says how much
// they draw. Go's cache of results counts both variables: with another value a test runs anew.
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

// Draws returns how many cases to draw: short of them with go test -short, and else long.
// BERTH_TEST_DRAWS has it be another number, for hours of a test.
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
