// SPDX-License-Identifier: Apache-2.0

// Package conntrack lists and ends the connections that the kernel tracks in the network namespace
// of the calling thread. It also makes the kernel track older connections. It lists connections of
// the kernel's zone 0 only: a connection in another zone belongs to the program that gave it the
// zone.
//
// The kernel treats all packets of a connection like the first packet. So these connections have to
// end:
//
//   - all of an address, when the address gets its next pod ([EndOf]);
//   - to a port of the node, when the port leads to another pod or to none ([EndWhere], by package
//     hostport);
//   - of a pod to what is outside the cluster, when the pod is to leave with another address
//     ([EndWhere], by package egress);
//   - whose first packet network policies forbid, which is marked and not forgotten ([SetMark], by
//     package agent/policy/connections).
package conntrack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Flow is a connection.
type Flow struct {
	Protocol byte
	// Original has the addresses of the first packet before the kernel translated it. Reply has the
	// addresses of the replies, so the connection really leads to the source of Reply.
	Original, Reply Tuple
	// Mark is the connection mark, whose bits several programs share.
	Mark uint32
	// PickedUp says that the kernel did not see the begin of a TCP connection: the first packet that
	// it saw was a later one, of either side, or Adopt created the entry.
	PickedUp bool

	// tuple and id identify the connection in the kernel.
	tuple, id []byte
}

// Tuple is a source and a destination. Ports are 0 if the protocol has none.
type Tuple struct{ Source, Destination netip.AddrPort }

// attempts is how often the table is read if it changes too much meanwhile.
const attempts = 5

// List yields the connections of families, AF_INET or AF_INET6, until yield returns false. A
// connection may come twice if the kernel's table changes meanwhile. List keeps no flows, because
// there may be a million; the yielded flows stay valid.
func List(families []int, yield func(*Flow) bool) error {
	var errs []error
	more := true
	for _, family := range families {
		if more {
			errs = append(errs, list(family, func(f *Flow) bool { more = yield(f); return more }))
		}
	}
	return errors.Join(errs...)
}

func Families(addrs iter.Seq[netip.Addr]) []int {
	var all []int
	for addr := range addrs {
		if family := rtnl.FamilyOf(addr); !slices.Contains(all, family) {
			all = append(all, family)
		}
	}
	return all
}

// list yields the connections that pass a filter.
func list(family int, yield func(*Flow) bool, filter ...*nl.RtAttr) error {
	var err error
	for range attempts {
		req := request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
		for _, attribute := range filter {
			req.AddData(attribute)
		}
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
	req := request(rtnl.FamilyOf(f.Original.Source.Addr()), nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddData(nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, f.tuple))
	// A new connection with the same addresses and ports has another ID.
	req.AddData(nl.NewRtAttr(nl.CTA_ID, f.id))
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("end the connection from %s to %s: %w", f.Original.Source, f.Original.Destination, err)
	}
	return nil
}

// EndWhere ends the connections of families for which a function returns true.
func EndWhere(families []int, which func(*Flow) bool) error {
	var failed error
	err := List(families, func(f *Flow) bool {
		if which(f) {
			failed = cmp.Or(failed, End(f))
		}
		return true
	})
	return errors.Join(err, failed)
}

// markMask is CTA_MARK_MASK of the kernel's uapi/linux/netfilter/nfnetlink_conntrack.h.
const markMask = 21

// SetMark sets the bits of a mask in the mark of a connection, which may be gone, and leaves the
// other bits.
func SetMark(f *Flow, mark, mask uint32) error {
	req := request(rtnl.FamilyOf(f.Original.Source.Addr()), nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_ACK)
	req.AddData(nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, f.tuple))
	req.AddData(nl.NewRtAttr(nl.CTA_MARK, binary.BigEndian.AppendUint32(nil, mark)))
	req.AddData(nl.NewRtAttr(markMask, binary.BigEndian.AppendUint32(nil, mask)))
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("mark the connection from %s to %s: %w", f.Original.Source, f.Original.Destination, err)
	}
	return nil
}

// CTA_FILTER and its parts are from the kernel's uapi/linux/netfilter/nfnetlink_conntrack.h. Linux
// has them since 5.8; older kernels ignore them.
const (
	filter                      = 25
	filterOriginal, filterReply = 1, 2
	filterSource                = 1 << 0
)

// EndOf ends all connections from or to addresses, also behind a translation: they belong to the
// last pods of the addresses.
func EndOf(addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := endOf(a); err != nil {
			return fmt.Errorf("end the connections of the last pod that had %s: %w", a, err)
		}
	}
	return nil
}

func endOf(a netip.Addr) error {
	found := map[string]*Flow{}
	for kind, flags := range map[int]int{nl.CTA_TUPLE_ORIG: filterOriginal, nl.CTA_TUPLE_REPLY: filterReply} {
		tuple := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
		ip := tuple.AddRtAttr(nl.CTA_TUPLE_IP|unix.NLA_F_NESTED, nil)
		ip.AddRtAttr(sourceOf(a), a.AsSlice())
		only := nl.NewRtAttr(filter|unix.NLA_F_NESTED, nil)
		only.AddRtAttr(flags, nl.Uint32Attr(filterSource))
		err := list(rtnl.FamilyOf(a), func(f *Flow) bool {
			if f.Original.Source.Addr() == a || f.Reply.Source.Addr() == a {
				found[string(f.tuple)] = f
			}
			return true
		}, tuple, only)
		if err != nil {
			return err
		}
	}
	var errs []error
	for _, f := range found {
		errs = append(errs, End(f))
	}
	return errors.Join(errs...)
}

func request(family, operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	return req
}

var errShort = errors.New("a part is too short")

// parse reads a flow, with SCTP's ports, which package netlink omits.
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
		case nl.CTA_MARK:
			if len(value) < 4 {
				return errShort
			}
			f.Mark = binary.BigEndian.Uint32(value)
		case nl.CTA_PROTOINFO:
			f.PickedUp, err = isPickedUp(value)
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

// isPickedUp reports whether the kernel did not see the begin of a connection: then it does not
// know the windows, and is liberal.
func isPickedUp(b []byte) (is bool, err error) {
	err = rtnl.Attributes(b, func(kind int, value []byte) error {
		if kind != nl.CTA_PROTOINFO_TCP {
			return nil
		}
		return rtnl.Attributes(value, func(kind int, value []byte) error {
			if kind == tcpFlagsOriginal && len(value) > 0 {
				is = value[0]&beLiberal != 0
			}
			return nil
		})
	})
	return is, err
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

// The times after which the kernel forgets a connection of Adopt without packets. After the first
// packet the kernel's own times count.
const (
	adoptedTCP   = 24 * time.Hour
	adoptedOther = 2 * time.Minute
)

// Adopt makes the kernel track a connection that began untracked, so that the kernel does not take
// the side of the next packet for the side that began. It returns false if the kernel tracks the
// connection already, begun by either side. If replace is true, and the kernel tracks the
// untranslated connection as begun by the other side, Adopt ends this entry first. It does not do
// so if the kernel saw a TCP connection begin, because then the kernel is right.
func Adopt(protocol byte, original Tuple, replace bool) (adopted bool, err error) {
	reply := Tuple{Source: original.Destination, Destination: original.Source}
	for range attempts {
		if err = create(protocol, original, reply); !errors.Is(err, unix.EEXIST) {
			break
		}
		if !replace {
			return false, nil
		}
		known, err := get(protocol, original)
		if known == nil && err == nil {
			// If the destination is translated, only packets of the other side find the connection.
			known, err = get(protocol, reply)
		}
		if err != nil {
			return false, err
		}
		if known == nil {
			continue
		}
		if known.Original != reply || known.Reply != original || protocol == unix.IPPROTO_TCP && !known.PickedUp {
			return false, nil
		}
		// Before the next attempt a packet may come and begin the connection anew.
		if err := End(known); err != nil {
			return false, err
		}
	}
	if err != nil {
		return false, fmt.Errorf("track the connection from %s to %s: %w", original.Source, original.Destination, err)
	}
	return true, nil
}

// These are from the kernel's uapi/linux/netfilter.
const (
	seenReply, assured, confirmed = 1 << 1, 1 << 2, 1 << 3 // enum ip_conntrack_status
	beLiberal                     = 0x08                   // IP_CT_TCP_FLAG_BE_LIBERAL
	tcpFlagsOriginal              = 4                      // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL
	tcpFlagsReply                 = 5
)

func create(protocol byte, original, reply Tuple) error {
	req := request(rtnl.FamilyOf(original.Source.Addr()), nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(tupleOf(nl.CTA_TUPLE_ORIG, protocol, original))
	req.AddData(tupleOf(nl.CTA_TUPLE_REPLY, protocol, reply))
	req.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, seenReply|assured|confirmed)))
	timeout := adoptedOther
	if protocol == unix.IPPROTO_TCP {
		timeout = adoptedTCP
		info := nl.NewRtAttr(nl.CTA_PROTOINFO|unix.NLA_F_NESTED, nil)
		tcp := info.AddRtAttr(nl.CTA_PROTOINFO_TCP|unix.NLA_F_NESTED, nil)
		tcp.AddRtAttr(nl.CTA_PROTOINFO_TCP_STATE, []byte{nl.TCP_CONNTRACK_ESTABLISHED})
		// The kernel does the same for picked-up connections, because it does not know their windows.
		for _, kind := range []int{tcpFlagsOriginal, tcpFlagsReply} {
			tcp.AddRtAttr(kind, []byte{beLiberal, beLiberal})
		}
		req.AddData(info)
	}
	req.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, uint32(timeout.Seconds()))))
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func get(protocol byte, packet Tuple) (*Flow, error) {
	// The kernel marks its response as part of several, and ends them only if asked to acknowledge.
	req := request(rtnl.FamilyOf(packet.Source.Addr()), nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK)
	req.AddData(tupleOf(nl.CTA_TUPLE_ORIG, protocol, packet))
	found, err := req.Execute(unix.NETLINK_NETFILTER, nl.IPCTNL_MSG_CT_NEW|unix.NFNL_SUBSYS_CTNETLINK<<8)
	if errors.Is(err, unix.ENOENT) || err == nil && len(found) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the connection from %s to %s: %w", packet.Source, packet.Destination, err)
	}
	f, _, err := parse(found[0])
	if err != nil {
		return nil, fmt.Errorf("read a tracked connection: %w", err)
	}
	return f, nil
}

func tupleOf(kind int, protocol byte, t Tuple) *nl.RtAttr {
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	destination := nl.CTA_IP_V6_DST
	if t.Source.Addr().Is4() {
		destination = nl.CTA_IP_V4_DST
	}
	tuple := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	ip := tuple.AddRtAttr(nl.CTA_TUPLE_IP|unix.NLA_F_NESTED, nil)
	ip.AddRtAttr(sourceOf(t.Source.Addr()), t.Source.Addr().AsSlice())
	ip.AddRtAttr(destination, t.Destination.Addr().AsSlice())
	ports := tuple.AddRtAttr(nl.CTA_TUPLE_PROTO|unix.NLA_F_NESTED, nil)
	ports.AddRtAttr(nl.CTA_PROTO_NUM, []byte{protocol})
	ports.AddRtAttr(nl.CTA_PROTO_SRC_PORT, port(t.Source.Port()))
	ports.AddRtAttr(nl.CTA_PROTO_DST_PORT, port(t.Destination.Port()))
	return tuple
}

func sourceOf(a netip.Addr) int {
	if a.Is4() {
		return nl.CTA_IP_V4_SRC
	}
	return nl.CTA_IP_V6_SRC
}
