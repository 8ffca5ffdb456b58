// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net"
	"testing"
	"time"
)

// BenchmarkRoundTrip is the time for a datagram from a pod to a host outside and the answer, by the
// node's masquerade, with an address of the node, and with a block of ports of an address that
// another node leads back.
func BenchmarkRoundTrip(b *testing.B) {
	w := newTopology(b)
	for _, source := range []struct {
		name string
		use  func()
	}{
		{"masquerade", func() { w.put(nil) }},
		{"own", func() { w.put(w.ways(func(int, *Way) {})) }},
		{"block", func() { w.put(w.blocks()); newCarrier(w, "12").lead() }},
	} {
		source.use()
		for i, family := range []string{"IPv4", "IPv6"} {
			b.Run(source.name+"/"+family, func(b *testing.B) {
				w.pod.Run(func() error {
					conn, err := net.DialTimeout("udp", net.JoinHostPort(outside[i], "7007"), patience)
					if err != nil {
						return err
					}
					defer conn.Close()
					answer := make([]byte, 100)
					for b.Loop() {
						if _, err := conn.Write([]byte("?")); err != nil {
							return err
						}
						if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
							return err
						}
						if _, err := conn.Read(answer); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}
