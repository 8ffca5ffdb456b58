// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/frame"
)

// announcements are the ARP requests and unsolicited neighbour advertisements, as one host hears
// them, by which another announces addresses.
type announcements map[string]chan struct{}

// hearAnnouncements has a host hear the announcements of the host with a MAC until the test ends.
func hearAnnouncements(t *testing.T, h *netnstest.Host, mac net.HardwareAddr, addresses ...string) announcements {
	t.Helper()
	heard := announcements{}
	for _, address := range addresses {
		heard[address] = make(chan struct{}, 100)
	}
	for _, protocol := range []int{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
		var conn *packet.Conn
		h.Run(func() error {
			link, err := net.InterfaceByName("eth0")
			if err == nil {
				conn, err = packet.Listen(link, packet.Raw, protocol, nil)
			}
			return err
		})
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			buffer := make([]byte, 2048)
			for {
				size, _, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				if addr, from := announcedBy(buffer[:size]); bytes.Equal(from, mac) && heard[addr.String()] != nil {
					heard[addr.String()] <- struct{}{}
				}
			}
		}()
	}
	return heard
}

// announcedBy returns the address that a frame announces, and the MAC; no address for every
// other frame. The node sends an ARP reply with each request.
func announcedBy(f []byte) (netip.Addr, net.HardwareAddr) {
	if a, to, ok := frame.ParseARP(f); ok && bytes.Equal(to, frame.Broadcast()) && a.Operation == frame.ARPRequest && a.Sender == a.Target {
		return a.Sender, a.SenderMAC
	}
	if a, ok := frame.ParseAdvertisement(f); ok && bytes.Equal(f[:2], []byte{0x33, 0x33}) {
		return a.Target, a.MAC
	}
	return netip.Addr{}, nil
}

// expect waits for the next announcement of an address.
func (a announcements) expect(t *testing.T, address string) {
	t.Helper()
	select {
	case <-a[address]:
	case <-time.After(2 * time.Minute):
		t.Fatalf("no announcement of %s is heard any more", address)
	}
}

// neighbourChanges has, for each address, the MACs by which a host knew it, one after another.
type neighbourChanges map[string]chan net.HardwareAddr

// learnedNeighbours tells of the changes until the test ends.
func learnedNeighbours(t *testing.T, h *netnstest.Host, addresses ...string) neighbourChanges {
	t.Helper()
	learned := neighbourChanges{}
	for _, address := range addresses {
		learned[address] = make(chan net.HardwareAddr, 100)
	}
	updates, done := make(chan netlink.NeighUpdate), make(chan struct{})
	t.Cleanup(func() { close(done) })
	h.Run(func() error { return netlink.NeighSubscribe(updates, done) })
	go func() {
		for u := range updates {
			if changes := learned[u.IP.String()]; changes != nil && u.Type == unix.RTM_NEWNEIGH {
				changes <- u.HardwareAddr
			}
		}
	}()
	return learned
}

// expect waits until the host knows an address by a MAC.
func (c neighbourChanges) expect(t *testing.T, address string, mac net.HardwareAddr) {
	t.Helper()
	patience := time.After(2 * time.Minute)
	for {
		select {
		case now := <-c[address]:
			if bytes.Equal(now, mac) {
				return
			}
		case <-patience:
			t.Fatalf("the client does not come to know %s by %s", address, mac)
		}
	}
}
