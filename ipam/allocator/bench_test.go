// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkReserveRelease is flat as the pool fills: the figures of the
// sub-benchmarks are to be compared with each other.
func BenchmarkReserveRelease(b *testing.B) {
	const size = 65534
	for _, percent := range []int{0, 50, 90, 99} {
		b.Run(fmt.Sprintf("%dpercent", percent), func(b *testing.B) {
			book := New()
			book.SetPools([]Pool{{Name: "a", Ranges: ranges("10.0.0.1", "10.0.255.254"), Capacity: size}})
			for i := range size * percent / 100 {
				var addr [4]byte
				binary.BigEndian.PutUint32(addr[:], 10<<24+1+uint32(i))
				book.Observe(Record{Addr: netip.AddrFrom4(addr), PodUID: "x", UID: "x", Version: 1, Owner: Owner{Name: fmt.Sprint(i)}})
			}
			names := []string{"a"}
			b.ResetTimer()
			for b.Loop() {
				addr, _, err := book.ReserveFree(names, "pod")
				if err != nil {
					b.Fatal(err)
				}
				book.Release(addr, "pod")
			}
		})
	}
}
