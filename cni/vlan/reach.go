// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// The functions of this file work on links in the namespace of a node link's other end, which the
// kernel knows by a number (nsid), even without a path.

func deleteIn(nsid int, link netlink.Link) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(nsid))))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("delete link %s of namespace %d: %w", link.Attrs().Name, nsid, err)
	}
	return nil
}

// onLower lists the macvlan and ipvlan links among links that are on a link of the node and belong
// to a use: all links on the lower link that no other use names, because a container may rename its
// link and make another link of the old name.
func onLower(links []netlink.Link, u use, lower int, others []use) []netlink.Link {
	var all []netlink.Link
	for _, l := range links {
		if l.Type() != string(Macvlan) && l.Type() != string(IPvlan) || l.Attrs().ParentIndex != lower {
			continue
		}
		if l.Attrs().Name == u.ifName || !slices.ContainsFunc(others, func(o use) bool { return o.ifName == l.Attrs().Name }) {
			all = append(all, l)
		}
	}
	return all
}
