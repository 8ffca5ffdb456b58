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
		room, live uint64
		want       int
	}{
		{512 << 20, 0, 400},
		{512 << 20, 1 << 20, 400},
		{512 << 20, 102 << 20, 400},
		{512 << 20, 128 << 20, 300},
		{512 << 20, 200 << 20, 150},
		{512 << 20, 256 << 20, 100},
		{512 << 20, 512 << 20, 100},
		{512 << 20, 2 << 30, 100},
		{16 << 20, 3 << 20, 400},
		{16 << 20, 4 << 20, 300},
		{16 << 20, 8 << 20, 100},
		{16 << 20, 30 << 20, 100},
	} {
		if got := percent(test.room, test.live); got != test.want {
			t.Errorf("with room for %d MiB and %d live it is %d, want %d", test.room>>20, test.live>>20, got, test.want)
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
	if err := Adjust(512 << 20); err != nil {
		t.Fatal(err)
	}
	wantGOGC(t, most)
	large := make([]byte, 300<<20)
	wantGOGC(t, usual)
	runtime.KeepAlive(large)
	wantGOGC(t, most)
}
