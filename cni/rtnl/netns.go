// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNetNS is returned if a container's network namespace cannot be opened.
var ErrNetNS = errors.New("network namespace not accessible")

func GetNS(path string) (ns.NetNS, error) {
	netns, err := ns.GetNS(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrNetNS, path, err)
	}
	return netns, nil
}

// FindNS opens a container's namespace; it returns nil if there is no namespace at the path.
func FindNS(path string) (ns.NetNS, error) {
	if path == "" {
		return nil, nil
	}
	netns, err := GetNS(path)
	var gone ns.NSPathNotExistErr
	var other ns.NSPathNotNSErr
	if errors.As(err, &gone) || errors.As(err, &other) {
		return nil, nil
	}
	return netns, err
}

func InNetNS(path string, do func() error) error {
	netns, err := GetNS(path)
	if err != nil {
		return err
	}
	defer netns.Close()
	return netns.Do(func(ns.NetNS) error { return do() })
}

// LinksIn lists the links in a namespace with a number (nsid), for example of a pair's other end.
// The namespace need not have a path.
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
