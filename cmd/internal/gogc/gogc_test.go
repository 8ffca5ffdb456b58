// SPDX-License-Identifier: Apache-2.0

package gogc

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestPercent(t *testing.T) {
	for _, test := range []struct {
		live uint64
		want int
	}{
		{0, 400},
		{1 << 20, 400},
		{102 << 20, 400},
		{128 << 20, 300},
		{200 << 20, 150},
		{256 << 20, 100},
		{512 << 20, 100},
		{2 << 30, 100},
	} {
		if got := percent(test.live); got != test.want {
			t.Errorf("with %d MiB live it is %d, want %d", test.live>>20, got, test.want)
		}
	}
}

// wantGOGC collects garbage until GOGC has the value, and fails if it never gets it.
func wantGOGC(t *testing.T, want uint64) {
	t.Helper()
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	for range 10_000 {
		runtime.GC()
		runtime.Gosched() // to the goroutine that runs cleanups
		if metrics.Read(sample); sample[0].Value.Uint64() == want {
			return
		}
	}
	t.Errorf("GOGC is %d after ten thousand collections, want %d", sample[0].Value.Uint64(), want)
}

// GOGC follows the live heap, up and down.
func TestAdjust(t *testing.T) {
	before := debug.SetGCPercent(usual)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "")
	t.Setenv("AUTOMEMLIMIT", "off")
	if err := Adjust(); err != nil {
		t.Fatal(err)
	}
	wantGOGC(t, most)
	large := make([]byte, 300<<20)
	wantGOGC(t, usual)
	runtime.KeepAlive(large)
	wantGOGC(t, most)
}
