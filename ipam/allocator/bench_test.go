// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
)

// v4 is the i-th address of 10.0.0.0/8.
func v4(i int) netip.Addr {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], 10<<24+uint32(i))
	return netip.AddrFrom4(addr)
}

// fill puts the first n addresses of a pool of size addresses from first in use.
func fill(book *Allocator, first, n int) {
	for i := first; i < first+n; i++ {
		book.Observe(Record{
			Addr: v4(i), PodUID: fmt.Sprint("pod-", i), UID: fmt.Sprint("ip-", i), Version: 1,
			Owner: Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "n", Name: "web", PodName: fmt.Sprint("web-", i)},
		})
	}
}

// BenchmarkReserveRelease is flat as the pool fills: the figures of the
// sub-benchmarks are to be compared with each other.
func BenchmarkReserveRelease(b *testing.B) {
	const size = 65534
	for _, percent := range []int{0, 50, 90, 99} {
		b.Run(fmt.Sprintf("%dpercent", percent), func(b *testing.B) {
			book := New(nil)
			book.SetPools([]Pool{{Name: "a", Ranges: []Range{{v4(1), v4(size)}}, Capacity: size}})
			fill(book, 1, size*percent/100)
			names := []string{"a"}
			for b.Loop() {
				addr, _, err := reserveFree(book, names, "pod")
				if err != nil {
					b.Fatal(err)
				}
				book.Release(addr, "pod")
			}
		})
	}
}

// BenchmarkClusterSize is the largest cluster that is meant to work: a million
// addresses in 10,000 pools, 150,000 of them in use. It reports what an address
// in use takes in memory and how long the book takes to be read.
func BenchmarkClusterSize(b *testing.B) {
	const pools, size, used = 10_000, 100, 15
	build := func() *Allocator {
		book := New(nil)
		var all []Pool
		for i := range pools {
			all = append(all, Pool{Name: fmt.Sprint("pool-", i), Ranges: []Range{{v4(i * 256), v4(i*256 + size - 1)}}, Capacity: size})
		}
		book.SetPools(all)
		for i := range pools {
			fill(book, i*256, used)
		}
		return book
	}
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			build()
		}
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	book := build()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.Run("reserve-release", func(b *testing.B) {
		i := 0
		for b.Loop() {
			i++
			addr, _, err := reserveFree(book, []string{fmt.Sprint("pool-", i%pools)}, "pod")
			if err != nil {
				b.Fatal(err)
			}
			book.Release(addr, "pod")
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(pools*used), "B/address")
	})
	runtime.KeepAlive(book)
}
