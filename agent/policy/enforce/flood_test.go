// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/agent/netnstest"
)

const discard = 9

// flood sends datagrams until the test ends, and counts the datagrams that the kernel took or
// refused.
func flood(t *testing.T, from *netnstest.Host, to string) *atomic.Int64 {
	t.Helper()
	var socket net.PacketConn
	from.Run(func() (err error) { socket, err = net.ListenPacket("udp4", ":0"); return err })
	done, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(done); _ = socket.Close(); <-ended })
	var sent atomic.Int64
	target := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), discard))
	go func() {
		defer close(ended)
		pace := time.NewTicker(200 * time.Microsecond)
		defer pace.Stop()
		for {
			select {
			case <-done:
				return
			case <-pace.C:
			}
			_, _ = socket.WriteTo([]byte("flood"), target)
			sent.Add(1)
		}
	}()
	return &sent
}

// hear counts the datagrams that come to a host.
func hear(t *testing.T, h *netnstest.Host) *atomic.Int64 {
	t.Helper()
	var socket net.PacketConn
	h.Run(func() (err error) { socket, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", discard)); return err })
	t.Cleanup(func() { _ = socket.Close() })
	var came atomic.Int64
	go func() {
		for buffer := make([]byte, 1500); ; {
			if _, _, err := socket.ReadFrom(buffer); err != nil {
				return
			}
			came.Add(1)
		}
	}()
	return &came
}

// Nothing comes to an isolated pod from before its ADD, and nothing from it from the end of its ADD
// on, while the agent lists its containers all the time.
func TestFlood(t *testing.T) {
	for kind, addresses := range map[string][2]string{
		"routed": {"10.1.0.1", "10.1.0.2"}, "bridge": {"10.244.0.11", "10.244.0.12"}, "macvlan": {"10.0.60.21", "10.0.60.22"},
	} {
		t.Run(kind, func(t *testing.T) {
			w := newTopology(t)
			silence := allow("db", "db")
			silence.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
			w.set(silence)
			other, db := w.newPod("other", addresses[1]), w.newPod("db", addresses[0])
			w.add(other, kind)
			heard, came := hear(t, other.Host), hear(t, db.Host)
			in := flood(t, other.Host, addresses[0])
			listing := make(chan struct{})
			go func() {
				for i := 0; ; i++ {
					select {
					case <-listing:
						return
					default:
						w.enforcer.refresh(t.Context(), w)
					}
				}
			}()
			w.add(db, kind)
			out := flood(t, db.Host, addresses[1])
			for _, sent := range []*atomic.Int64{in, out} {
				goal := sent.Load() + 500
				w.eventually(fmt.Sprintf("%d datagrams are sent", goal), func() bool { return sent.Load() >= goal })
			}
			close(listing)
			if heard.Load() > 0 || came.Load() > 0 {
				t.Errorf("%d datagrams came to the pod, %d from it", came.Load(), heard.Load())
			}
			w.unset(silence)
			w.eventually("the flood comes without a policy", func() bool { return heard.Load() > 0 && came.Load() > 0 })
		})
	}
}
