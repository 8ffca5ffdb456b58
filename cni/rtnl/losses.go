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

// OfNode is the index that Losses gives for what is no link's.
const OfNode = 0

// Losses returns a channel that has OfNode after a routing rule of any program, or a route of ours, was
// deleted, by whomever: systemd-networkd deletes all that it does not know when it starts. It has OfNode, too, after forwarding or
// answering by proxy was switched off, as sysctl --system does, and the index of a link where it was for one alone. The channel ends with the
// context, or after missed got an error. An element stands for all that nobody has read.
func Losses(ctx context.Context, missed func(error)) (<-chan int, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, fmt.Errorf("watch routes, rules and settings: %w", err)
	}
	program := lossFilter()
	if err := unix.SetsockoptSockFprog(s.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: unsafe.SliceData(program)}); err != nil {
		s.Close()
		return nil, fmt.Errorf("watch routes and rules: %w", err)
	}
	context.AfterFunc(ctx, s.Close)
	losses := make(chan int, 64)
	go func() {
		defer close(losses)
		for {
			messages, _, err := s.Receive()
			if err != nil {
				missed(err)
				return
			}
			for _, m := range messages {
				index := OfNode
				if m.Header.Type == unix.RTM_NEWNETCONF {
					// Of all links it is -1. The filter has seen that it is there.
					index = max(OfNode, int(int32(binary.NativeEndian.Uint32(m.Data[8:]))))
				}
				select {
				case losses <- index:
				default:
				}
			}
		}
	}()
	return losses, nil
}

// lossFilter lets the deletions through that Losses tells of. A routing daemon may change many thousand other routes
// at once. Each message of the kernel has one change: a header of 16 bytes (type at 4), and for routes struct rtmsg
// (protocol at 5). For settings it has struct netconfmsg, of 4 bytes, and attributes of 8: the link's index, and a setting, or the first one of a
// new link.
func lossFilter() []unix.SockFilter {
	const atType, atProtocol, atSetting = 4, 16 + 5, 16 + 4 + 8 + 4
	// The filter reads numbers as they are on the wire, the kernel writes its own order.
	number := func(n uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
	}
	const (
		load32        = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		load16, load8 = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal, answer = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: load16, K: atType},
		{Code: equal, Jt: 6, Jf: 0, K: number(unix.RTM_DELRULE)},
		{Code: equal, Jt: 0, Jf: 2, K: number(unix.RTM_NEWNETCONF)},
		{Code: load32, K: atSetting},
		{Code: equal, Jt: 3, Jf: 4, K: 0},
		{Code: equal, Jt: 0, Jf: 3, K: number(unix.RTM_DELROUTE)},
		{Code: load8, K: atProtocol},
		{Code: equal, Jt: 0, Jf: 1, K: Protocol},
		{Code: answer, K: 1 << 16},
		{Code: answer, K: 0},
	}
}
