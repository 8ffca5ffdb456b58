// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/ipam/iprange"
)

// v4 is the i-th address of 10.0.0.0/8.
func v4(i int) netip.Addr {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], 10<<24+uint32(i))
	return netip.AddrFrom4(addr)
}

// fill puts n addresses in use, from the one with number first.
func fill(book *Allocator, first, n int) {
	for i := first; i < first+n; i++ {
		book.Observe(Record{
			Addr: v4(i), PodUID: fmt.Sprint("pod-", i), UID: fmt.Sprint("ip-", i), Version: 1,
			Owner: Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "n", Name: "web", PodName: fmt.Sprint("web-", i)},
		})
	}
}

// BenchmarkReserveRelease shows that the cost does not grow as the pool fills: its
// sub-benchmarks take about the same time.
func BenchmarkReserveRelease(b *testing.B) {
	const size = 65534
	for _, of := range []struct {
		percent         int
		maxPerNamespace uint64
	}{{0, 0}, {50, 0}, {90, 0}, {99, 0}, {90, size}} {
		percent := of.percent
		name := fmt.Sprintf("%dpercent", percent)
		if of.maxPerNamespace > 0 {
			name += "-capped"
		}
		b.Run(name, func(b *testing.B) {
			book := New(nil)
			book.SetPools([]Pool{{Name: "a", Ranges: iprange.Set{{First: v4(1), Last: v4(size)}}, Capacity: size, MaxPerNamespace: of.maxPerNamespace}})
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

// BenchmarkRanges measures eight wants with n ranges each, of which only the last has a
// free address. The book answers it under its lock, once for each reach. podrequest admits
// 256 ranges.
func BenchmarkRanges(b *testing.B) {
	for _, n := range []int{1, 64, 256, 3250} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			book := New(nil)
			pool := Pool{Name: "a"}
			for i := range 64 {
				pool.Ranges = append(pool.Ranges, iprange.Range{First: v4(i*1000 + 1), Last: v4(i*1000 + 900)})
				pool.Capacity += 900
			}
			book.SetPools([]Pool{pool})
			for i := range 64 {
				fill(book, i*1000+1, 900-i/63)
			}
			want := from(book, "a")
			for i := range n {
				addr := v4(i*19 + 3)
				want.Ranges = append(want.Ranges, iprange.Single(addr))
			}
			free := v4(63_900)
			want.Ranges = append(want.Ranges, iprange.Single(free))
			var wants []Want
			for range 8 {
				wants = append(wants, want)
			}
			for b.Loop() {
				if book.Feasible(Claimant{PodUID: "p"}, wants, nil) == nil {
					b.Fatal("it is feasible")
				}
			}
		})
	}
}
