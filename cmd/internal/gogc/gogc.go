// SPDX-License-Identifier: Apache-2.0

// Package gogc trades memory for CPU time while a program's heap is small: the garbage collector
// then runs rarely. It runs as often as in any Go program when the heap is large, and keeps to the
// memory limit of the program's container.
package gogc

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// usual and most are the bounds of GOGC, in percent of the live heap.
const usual, most = 100, 400

// Adjust sets GOGC after each collection, by the live heap, and GOMEMLIMIT to nine tenths of the
// memory limit of the process's cgroup. room is the size in bytes that the heap may reach before a
// collection that the usual GOGC would begin earlier. Adjust leaves alone each that is set in the
// environment. It fails if the limit cannot be read; GOGC is adjusted all the same. A program calls
// it once, as it starts.
func Adjust(room uint64) error {
	_, err := memlimit.Set()
	if os.Getenv("GOGC") == "" {
		follow(setting{room, usual})
	}
	return err
}

// setting is the GOGC that was set for a room.
type setting struct {
	room    uint64
	percent int
}

// follow adjusts GOGC now and after each later collection.
func follow(set setting) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	want := setting{set.room, percent(set.room, sample[0].Value.Uint64())}
	if want != set {
		debug.SetGCPercent(want.percent)
	}
	// The garbage collector finds this object, and the cleanup is called. A pointer keeps the
	// object out of the blocks that small objects without pointers share.
	runtime.AddCleanup(&struct{ self *int }{}, follow, want)
}

// percent returns GOGC for a live heap, in bytes. It is rounded to tens: each change stops the
// program for a moment.
func percent(room, live uint64) int {
	if live == 0 {
		return most
	}
	left := max(room, live) - live
	return min(max(int(left*100/live)/10*10, usual), most)
}
