// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// LinksIn lists the links in a namespace that the kernel knows by a number (nsid), whether or not a
// path leads there: the namespace of a pair's other end, for instance.
func LinksIn(nsid int) ([]netlink.Link, error) {
	messages, err := Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(nsid))))
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if err != nil {
		return nil, fmt.Errorf("list the links of namespace %d: %w", nsid, err)
	}
	var all []netlink.Link
	for _, m := range messages {
		link, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, fmt.Errorf("decode a link of namespace %d: %w", nsid, err)
		}
		all = append(all, link)
	}
	return all, nil
}
