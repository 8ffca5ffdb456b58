// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrNoHostEnd is returned by HostEnd for an interface whose packets do not pass a link of
// the node.
var ErrNoHostEnd = errors.New("the interface has no end on the node")

// HostEnd asks the kernel for the name of the node's end of a container's interface. netns is the
// path of the container's network namespace.
func (s *Shaper) HostEnd(netns, ifName string) (string, error) {
	container, err := rtnl.GetNS(netns)
	if err != nil {
		return "", err
	}
	defer container.Close()
	inside, err := rtnl.LinkInside(container, ifName)
	if err != nil {
		return "", err
	}
	if inside == nil {
		return "", fmt.Errorf("%w: the container has no interface %s", ErrNoHostEnd, ifName)
	}
	if inside.Type() != "veth" {
		return "", fmt.Errorf("%w: %s is of type %s", ErrNoHostEnd, ifName, inside.Type())
	}
	outside, err := netlink.LinkByIndex(inside.Attrs().ParentIndex)
	if err != nil || !rtnl.IsPair(inside, outside) {
		// Each namespace has its own indexes, and the other end may be in a third namespace.
		return "", fmt.Errorf("%w: the other end of %s is elsewhere", ErrNoHostEnd, ifName)
	}
	return outside.Attrs().Name, nil
}
