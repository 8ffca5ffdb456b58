// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/packet"

	"github.com/berth-dev/berth/cni/frame"
)

// AskHost asks the host with a MAC once whether it has an address; no other host gets the question. Where the node has no address
// of the family to ask with, it asks all, as Question does. It runs in the network namespace of the link.
func (a *Asker) AskHost(addr netip.Addr, mac net.HardwareAddr) error {
	f, err := a.toHost(addr, mac)
	if err != nil {
		return err
	}
	if f == nil {
		return a.Question([]netip.Addr{addr})
	}
	for _, s := range a.families {
		if s.is4 != addr.Is4() {
			continue
		}
		if _, err := s.conn.WriteTo(f, &packet.Addr{HardwareAddr: mac}); err != nil {
			return fmt.Errorf("send on link %s: %w", a.link.Name, err)
		}
	}
	return nil
}

// toHost returns the frame, nil where the node has no address to ask with.
func (a *Asker) toHost(addr netip.Addr, mac net.HardwareAddr) ([]byte, error) {
	if addr.Is4() {
		senders, err := a.Senders()
		if err != nil || len(senders) == 0 {
			return nil, err
		}
		return question(a.link.HardwareAddr, mac, senders, addr), nil
	}
	own, err := a.link.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of link %s: %w", a.link.Name, err)
	}
	for _, address := range own {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			return frame.Solicitation(a.link.HardwareAddr, mac, prefix.Addr(), addr), nil
		}
	}
	return nil, nil
}
