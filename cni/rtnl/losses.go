// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// OfNode is the index in Losses for losses that concern no single link.
const OfNode = 0

// Losses returns a channel that gets OfNode after a routing rule of any program, or a route of
// ours, was deleted: for example, systemd-networkd deletes unknown rules and routes when it starts.
// It also gets OfNode after forwarding or answering by proxy was switched off, as sysctl --system
// does, or the index of the link if it was switched off for a single link. The channel ends with
// the context, or after missed got an error, also if its elements come faster than they are read.
func Losses(ctx context.Context, missed func(error)) (<-chan int, error) {
	index := func(m syscall.NetlinkMessage) int {
		if m.Header.Type != unix.RTM_NEWNETCONF {
			return OfNode
		}
		// The index is -1 for all links. The filter has checked that the message has it.
		return max(OfNode, int(int32(binary.NativeEndian.Uint32(m.Data[8:]))))
	}
	losses, err := subscribe(ctx, missed, lossFilter(), index, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, fmt.Errorf("watch routes, rules and settings: %w", err)
	}
	return losses, nil
}

// Moves returns a channel that gets the index of a link after the kernel told it to announce itself
// to its peers: its bond sends by another port, or its virtual machine has moved, which changes
// neither carrier nor MAC address. It ends like the channel of Losses.
func Moves(ctx context.Context, missed func(error)) (<-chan int, error) {
	// struct ifinfomsg: family, type, index.
	index := func(m syscall.NetlinkMessage) int { return int(int32(binary.NativeEndian.Uint32(m.Data[4:]))) }
	moves, err := subscribe(ctx, missed, moveFilter(), index, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("watch moves of links: %w", err)
	}
	return moves, nil
}

// errBehind is the error for a reader that is too slow: a dropped event might be important.
var errBehind = errors.New("events come faster than they are read")

func subscribe(ctx context.Context, missed func(error), program []unix.SockFilter, index func(syscall.NetlinkMessage) int, groups ...uint) (<-chan int, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptSockFprog(s.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: unsafe.SliceData(program)}); err != nil {
		s.Close()
		return nil, fmt.Errorf("filter its events: %w", err)
	}
	context.AfterFunc(ctx, s.Close)
	events := make(chan int, 256)
	go func() {
		defer close(events)
		for {
			messages, _, err := s.Receive()
			if err != nil {
				missed(err)
				return
			}
			for _, m := range messages {
				select {
				case events <- index(m):
				default:
					missed(errBehind)
					return
				}
			}
		}
	}()
	return events, nil
}

const (
	load32        = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	load16, load8 = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	equal, answer = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	// atType is the offset of a message's type, after its length.
	atType = 4
	// attributePlace makes the kernel load the offset of the attribute X after A, 0 if there is none
	// (SKF_AD_NLATTR of linux/filter.h).
	attributePlace = 0xfffff000 + 12
)

// number16 and number32 convert numbers for filters: filters read network byte order, but the
// kernel writes its own order.
func number16(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
}
func number32(n uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, n))
}

// moveFilter passes messages about links whose event (IFLA_EVENT) is a failover of a bond, or a
// notification of peers.
func moveFilter() []unix.SockFilter {
	const atAttributes, bondFailover, notifyPeers = 16 + unix.SizeofIfInfomsg, 3, 4
	return []unix.SockFilter{
		{Code: load16, K: atType},
		{Code: equal, Jt: 0, Jf: 8, K: number16(unix.RTM_NEWLINK)},
		{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.IFLA_EVENT},
		{Code: unix.BPF_LD | unix.BPF_IMM, K: atAttributes},
		{Code: load32, K: attributePlace},
		{Code: equal, Jt: 4, Jf: 0, K: 0},
		{Code: unix.BPF_MISC | unix.BPF_TAX},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_IND, K: unix.SizeofRtAttr},
		{Code: equal, Jt: 2, Jf: 0, K: number32(bondFailover)},
		{Code: equal, Jt: 1, Jf: 0, K: number32(notifyPeers)},
		{Code: answer, K: 0},
		{Code: answer, K: 1 << 16},
	}
}

// lossFilter passes the deletions for Losses, because a routing daemon may change many thousand
// other routes at once. Each message of the kernel has one change: a header of 16 bytes (type at
// 4), and for routes struct rtmsg (protocol at 5). For settings it has struct netconfmsg, of 4
// bytes, and attributes of 8 bytes: the link's index, and a setting, or the first setting of a new
// link.
func lossFilter() []unix.SockFilter {
	const atProtocol, atSetting = 16 + 5, 16 + 4 + 8 + 4
	return []unix.SockFilter{
		{Code: load16, K: atType},
		{Code: equal, Jt: 6, Jf: 0, K: number16(unix.RTM_DELRULE)},
		{Code: equal, Jt: 0, Jf: 2, K: number16(unix.RTM_NEWNETCONF)},
		{Code: load32, K: atSetting},
		{Code: equal, Jt: 3, Jf: 4, K: 0},
		{Code: equal, Jt: 0, Jf: 3, K: number16(unix.RTM_DELROUTE)},
		{Code: load8, K: atProtocol},
		{Code: equal, Jt: 0, Jf: 1, K: Protocol},
		{Code: answer, K: 1 << 16},
		{Code: answer, K: 0},
	}
}
