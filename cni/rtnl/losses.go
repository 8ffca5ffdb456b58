// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Losses returns a channel that has an element after a routing rule of any program, or a route of ours, was
// deleted, by whomever: systemd-networkd deletes all that it does not know when it starts. The channel ends with the
// context, or after missed got an error.
func Losses(ctx context.Context, missed func(error)) (<-chan struct{}, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("watch routes and rules: %w", err)
	}
	program := lossFilter()
	if err := unix.SetsockoptSockFprog(s.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: unsafe.SliceData(program)}); err != nil {
		s.Close()
		return nil, fmt.Errorf("watch routes and rules: %w", err)
	}
	context.AfterFunc(ctx, s.Close)
	losses := make(chan struct{}, 1)
	go func() {
		defer close(losses)
		for {
			if _, _, err := s.Receive(); err != nil {
				missed(err)
				return
			}
			select {
			case losses <- struct{}{}:
			default: // one element stands for all
			}
		}
	}()
	return losses, nil
}

// lossFilter lets the deletions through that Losses tells of. A routing daemon may change many thousand other routes
// at once. Each message of the kernel has one change: a header of 16 bytes (type at 4), and for routes struct rtmsg
// (protocol at 5).
func lossFilter() []unix.SockFilter {
	const atType, atProtocol = 4, 16 + 5
	// The filter reads numbers as they are on the wire, the kernel writes its own order.
	number := func(n uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
	}
	const (
		load16, load8 = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal, answer = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: load16, K: atType},
		{Code: equal, Jt: 3, Jf: 0, K: number(unix.RTM_DELRULE)},
		{Code: equal, Jt: 0, Jf: 3, K: number(unix.RTM_DELROUTE)},
		{Code: load8, K: atProtocol},
		{Code: equal, Jt: 0, Jf: 1, K: Protocol},
		{Code: answer, K: 1 << 16},
		{Code: answer, K: 0},
	}
}
