// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// The messages that package netlink does not have: a queue with a limit in bytes, and a filter by
// the interface from which a packet came.

// queueKind is the kind of a class's queue: first in, first out, with a limit in bytes.
const queueKind = "bfifo"

func setQueue(link netlink.Link, c class) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{
		Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index),
		Handle: netlink.MakeHandle(c.minor, 0), Parent: netlink.MakeHandle(rootMajor, c.minor),
	})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(queueKind)))
	// struct tc_fifo_qopt
	req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, nl.Uint32Attr(c.ceil.queue())))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set the queue of class %s: %w", netlink.HandleStr(netlink.MakeHandle(rootMajor, c.minor)), err)
	}
	return nil
}

// classifier is a filter of a device: packets from a link belong to a class.
type classifier struct {
	handle uint32
	from   string
	minor  uint16
}

const classifierPriority = 1

func classifierMessage(link netlink.Link, handle uint32) *nl.TcMsg {
	return &nl.TcMsg{
		Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Parent: netlink.MakeHandle(rootMajor, 0), Handle: handle,
		Info: netlink.MakeHandle(classifierPriority, nl.Swap16(unix.ETH_P_ALL)),
	}
}

// applyClassifiers makes the filters from links to classes, and with prune removes all others.
func applyClassifiers(link netlink.Link, have []classifier, of map[string]uint16, prune bool) error {
	right := map[string]bool{}
	for _, f := range have {
		minor, wanted := of[f.from]
		switch {
		case wanted && minor == f.minor && !right[f.from]:
			right[f.from] = true
		case wanted || prune:
			req := nl.NewNetlinkRequest(unix.RTM_DELTFILTER, unix.NLM_F_ACK)
			req.AddData(classifierMessage(link, f.handle))
			req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("u32")))
			if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !isGone(err) {
				return fmt.Errorf("remove the filter of link %q: %w", f.from, err)
			}
		}
	}
	for from, minor := range of {
		if right[from] {
			continue
		}
		req := nl.NewNetlinkRequest(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
		req.AddData(classifierMessage(link, 0))
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("u32")))
		options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		every := nl.TcU32Sel{Nkeys: 1, Flags: nl.TC_U32_TERMINAL, Keys: []nl.TcU32Key{{}}}
		options.AddRtAttr(nl.TCA_U32_SEL, every.Serialize())
		options.AddRtAttr(nl.TCA_U32_CLASSID, nl.Uint32Attr(netlink.MakeHandle(rootMajor, minor)))
		options.AddRtAttr(nl.TCA_U32_INDEV, nl.ZeroTerminated(from))
		req.AddData(options)
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("lead the packets of link %s to their class (does the kernel have the module cls_u32?): %w", from, err)
		}
	}
	return nil
}

// listClassifiers lists the filters of a device. The name of a link that is gone is empty.
func listClassifiers(link netlink.Link) ([]classifier, error) {
	messages, err := rtnl.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Parent: netlink.MakeHandle(rootMajor, 0)})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTFILTER)
	})
	if err != nil {
		return nil, fmt.Errorf("list its filters: %w", err)
	}
	var all []classifier
	for _, m := range messages {
		message := nl.DeserializeTcMsg(m)
		f := classifier{handle: message.Handle}
		err := rtnl.Attributes(m[message.Len():], func(kind int, options []byte) error {
			if kind != nl.TCA_OPTIONS {
				return nil
			}
			return rtnl.Attributes(options, func(kind int, value []byte) error {
				switch {
				case kind == nl.TCA_U32_CLASSID && len(value) == 4:
					f.minor = uint16(binary.NativeEndian.Uint32(value))
				case kind == nl.TCA_U32_INDEV:
					f.from = unix.ByteSliceToString(value)
				}
				return nil
			})
		})
		if err != nil {
			return nil, fmt.Errorf("read its filters: %w", err)
		}
		// The kernel lists hash tables as filters without a class.
		if f.minor != 0 {
			all = append(all, f)
		}
	}
	return all, nil
}
