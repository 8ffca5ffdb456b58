// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Devconf are settings of net.ipv4.conf.<link>.
type Devconf map[Setting]uint32

// Setting is the number of a setting of net.ipv4.conf in linux/ip.h.
type Setting int

// The settings of net.ipv4.conf that Berth changes, with their names there.
const (
	Forwarding    Setting = 1
	RPFilter      Setting = 8
	ARPAnnounce   Setting = 18
	ARPIgnore     Setting = 19
	SrcValidMark  Setting = 24
	RouteLocalnet Setting = 26
)

// SetIPv4 makes the settings through netlink, which needs CAP_NET_ADMIN. The files would need a
// writable /proc/sys.
func SetIPv4(link netlink.Link, settings Devconf) error {
	const iflaInetConf = 1 // linux/if_link.h
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	req.AddData(msg)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
	for setting, value := range settings {
		conf.AddRtAttr(int(setting), nl.Uint32Attr(value))
	}
	req.AddData(spec)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set the IPv4 settings of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}
