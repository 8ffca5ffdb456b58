// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// BridgeSetting is the number of a boolean setting of a bridge in linux/if_link.h.
type BridgeSetting uint16

// Settings of bridges by which the packets that they pass on visit the hooks of netfilter,
// named as in /sys/class/net/BRIDGE/bridge.
const (
	NFCallIPTables  BridgeSetting = nl.IFLA_BR_NF_CALL_IPTABLES
	NFCallIP6Tables BridgeSetting = nl.IFLA_BR_NF_CALL_IP6TABLES
)

func (s BridgeSetting) String() string {
	switch s {
	case NFCallIPTables:
		return "nf_call_iptables"
	case NFCallIP6Tables:
		return "nf_call_ip6tables"
	default:
		return fmt.Sprintf("bridge setting %d", uint16(s))
	}
}

// GetBridge reads a setting. known is false if the kernel has no such setting.
func GetBridge(bridge netlink.Link, setting BridgeSetting) (on, known bool, err error) {
	name := bridge.Attrs().Name
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(bridge.Attrs().Index)
	req.AddData(msg)
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return false, false, fmt.Errorf("read setting %s of bridge %s: %w", setting, name, err)
	}
	for _, m := range messages {
		value := m[unix.SizeofIfInfomsg:]
		for _, inner := range []int{unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA, int(setting)} {
			var found []byte
			err := Attributes(value, func(kind int, v []byte) error {
				if kind == inner {
					found = v
				}
				return nil
			})
			if err != nil {
				return false, false, fmt.Errorf("read setting %s of bridge %s: %w", setting, name, err)
			}
			value = found
		}
		if len(value) == 1 {
			return value[0] != 0, true, nil
		}
	}
	return false, false, nil
}

// SetBridge changes a setting, which needs CAP_NET_ADMIN. The file would need a writable /sys.
func SetBridge(bridge netlink.Link, setting BridgeSetting, on bool) error {
	value := byte(0)
	if on {
		value = 1
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(bridge.Attrs().Index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(int(setting), []byte{value})
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set %s of bridge %s to %d: %w", setting, bridge.Attrs().Name, value, err)
	}
	return nil
}
