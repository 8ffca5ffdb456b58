// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// LinkFor returns the index of the node's link to a pool's network, which must be up: the uplink, a
// VLAN link on the uplink, or the bridge of either. It makes no link, and refuses a link that Berth
// made, because such a link goes with the last pod.
func LinkFor(uplink string, vlan int) (int, error) {
	index, err := wire.NetworkLink(uplink, vlan)
	if err != nil {
		return 0, err
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return 0, fmt.Errorf("find link %d: %w", index, err)
	}
	if master := link.Attrs().MasterIndex; master != 0 {
		over, err := netlink.LinkByIndex(master)
		if err != nil {
			return 0, fmt.Errorf("find the master of link %s: %w", link.Attrs().Name, err)
		}
		if over.Type() == "bridge" {
			link = over
		}
	}
	if name := link.Attrs().Name; strings.HasPrefix(name, netfilter.LinkPrefix) {
		return 0, fmt.Errorf("%w: link %s of VLAN %d on %s is Berth's, and goes with the last pod that uses it; make a link for the VLAN with the node's network configuration",
			wire.ErrUplink, name, vlan, uplink)
	}
	return link.Attrs().Index, wire.CheckUp(link)
}
