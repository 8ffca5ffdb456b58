// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
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
	client, err := openAsker(w.Cluster.Client())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	question, err := client.question(target)
	if err != nil {
		return nil, err
	}
	if err := client.send(question); err != nil {
		return nil, fmt.Errorf("send ARP request: %w", err)
	}
	macs, err = arpReplies(client.fd, target)
	slices.Sort(macs)
	return slices.Compact(macs), err
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
		if reply, _, ok := frame.ParseARP(buffer[:n]); ok && reply.Operation == frame.ARPReply && reply.Sender == target {
			macs = append(macs, reply.SenderMAC.String())
		}
	}
	return macs, nil
}
