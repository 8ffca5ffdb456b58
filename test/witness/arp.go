// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// listenFor is how long further answers to an ARP request are collected when one
// has come. Nodes answer at once.
const listenFor = 500 * time.Millisecond

// OneAnswers checks that a broadcast ARP request of the client host for an IPv4
// address is answered from that MAC address and no other.
func (w *Witness) OneAnswers(ctx context.Context, address, mac string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	for {
		macs, err := w.whoHas(address)
		if err != nil {
			return err
		}
		switch {
		case slices.Equal(macs, []string{mac}):
			return nil
		case len(macs) > 0:
			return fmt.Errorf("ARP: who has %s was answered by %v, want %s alone", address, macs, mac)
		case ctx.Err() != nil:
			return fmt.Errorf("ARP: nobody answered who has %s: %w", address, context.Cause(ctx))
		}
	}
}

// whoHas sends one broadcast ARP request from the client host and returns the
// MAC addresses of all that answer in time, sorted.
func (w *Witness) whoHas(address string) (macs []string, err error) {
	target, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	err = w.Cluster.Client().Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		protocol := bits.ReverseBytes16(unix.ETH_P_ARP)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: protocol, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
		if err := unix.Sendto(fd, arpRequest(link.HardwareAddr, w.Cluster.Network().Client(), target), 0, to); err != nil {
			return fmt.Errorf("send ARP request: %w", err)
		}
		macs, err = arpReplies(fd, target)
		return err
	})
	slices.Sort(macs)
	return slices.Compact(macs), err
}

func arpRequest(mac net.HardwareAddr, source, target netip.Addr) []byte {
	src, tgt := source.As4(), target.As4()
	f := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	f = append(f, mac...)
	f = binary.BigEndian.AppendUint16(f, unix.ETH_P_ARP)
	f = append(f, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(f, mac...)
	f = append(f, src[:]...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return append(f, tgt[:]...)
}

// arpReplies reads the MAC addresses that claim the address.
func arpReplies(fd int, target netip.Addr) (macs []string, err error) {
	until := time.Now().Add(listenFor)
	buffer := make([]byte, 128)
	for left := listenFor; left > 0; left = time.Until(until) {
		wait := unix.NsecToTimeval(left.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			return nil, fmt.Errorf("limit the wait for ARP replies: %w", err)
		}
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive ARP replies: %w", err)
		}
		const opcode, senderMAC, senderIP, end = 20, 22, 28, 32
		if n < end || binary.BigEndian.Uint16(buffer[opcode:]) != 2 {
			continue
		}
		if addr, ok := netip.AddrFromSlice(buffer[senderIP:end]); ok && addr == target {
			macs = append(macs, net.HardwareAddr(buffer[senderMAC:senderIP]).String())
		}
	}
	return macs, nil
}
