// SPDX-License-Identifier: Apache-2.0

// Package conntrack lists connections as the kernel tracks them and ends them, in the
// network namespace of the calling thread. It decides nothing: which connections must end is of its
// callers. Connections of the kernel's zone 0 are listed only; others are of programs that gave
// them a zone.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Flow is a connection.
type Flow struct {
	Protocol byte
	// Original is what the first packet had before the kernel translated it, Reply what answers
	// have. So the source of Reply is where the connection really leads.
	Original, Reply Tuple

	// tuple and id are the kernel's name for it.
	tuple, id []byte
}

// Tuple is a source and a destination. Ports are 0 where the protocol has none.
type Tuple struct{ Source, Destination netip.AddrPort }

// attempts is how often the table is read that changed too much meanwhile.
const attempts = 5

// List yields the connections of a family, AF_INET or AF_INET6, until yield returns false. One
// may come twice where the kernel's table changes meanwhile. Flows are valid for good.
func List(family int, yield func(*Flow) bool) error {
	var err error
	for range attempts {
		req := request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
		var broken error
		err = req.ExecuteIter(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_NEW, func(m []byte) bool {
			f, zone, err := parse(m)
			if err != nil {
				broken = err
				return false
			}
			return zone != 0 || yield(f)
		})
		if err == nil && broken != nil {
			return fmt.Errorf("read a tracked connection: %w", broken)
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("list tracked connections (does the kernel have nf_conntrack_netlink?): %w", err)
	}
	return nil
}

// End makes the kernel forget a connection, which may be gone.
func End(f *Flow) error {
	family := unix.AF_INET6
	if f.Original.Source.Addr().Is4() {
		family = unix.AF_INET
	}
	req := request(family, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddData(nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, f.tuple))
	// A new one with the same addresses and ports is another.
	req.AddData(nl.NewRtAttr(nl.CTA_ID, f.id))
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("end the connection from %s to %s: %w", f.Original.Source, f.Original.Destination, err)
	}
	return nil
}

func request(family, operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	return req
}

var errShort = errors.New("a part is too short")

// parse reads what package netlink does not: ports of SCTP.
func parse(m []byte) (f *Flow, zone uint16, err error) {
	if len(m) < nl.SizeofNfgenmsg {
		return nil, 0, errShort
	}
	f = &Flow{}
	err = rtnl.Attributes(m[nl.SizeofNfgenmsg:], func(kind int, value []byte) (err error) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			f.tuple = append([]byte(nil), value...)
			f.Protocol, f.Original, err = parseTuple(value)
		case nl.CTA_TUPLE_REPLY:
			_, f.Reply, err = parseTuple(value)
		case nl.CTA_ID:
			f.id = append([]byte(nil), value...)
		case nl.CTA_ZONE:
			if len(value) < 2 {
				return errShort
			}
			zone = binary.BigEndian.Uint16(value)
		}
		return err
	})
	return f, zone, err
}

func parseTuple(b []byte) (protocol byte, t Tuple, err error) {
	var source, destination netip.Addr
	var sourcePort, destinationPort uint16
	err = rtnl.Attributes(b, func(kind int, value []byte) error {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return rtnl.Attributes(value, func(kind int, value []byte) error {
				addr, ok := netip.AddrFromSlice(value)
				if !ok {
					return errShort
				}
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					source = addr
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					destination = addr
				}
				return nil
			})
		case nl.CTA_TUPLE_PROTO:
			return rtnl.Attributes(value, func(kind int, value []byte) error {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(value) == 1:
					protocol = value[0]
				case kind == nl.CTA_PROTO_SRC_PORT && len(value) == 2:
					sourcePort = binary.BigEndian.Uint16(value)
				case kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
					destinationPort = binary.BigEndian.Uint16(value)
				}
				return nil
			})
		}
		return nil
	})
	return protocol, Tuple{netip.AddrPortFrom(source, sourcePort), netip.AddrPortFrom(destination, destinationPort)}, err
}
