// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/berth-dev/berth/agent/overlay/rules"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// leasesFolder is where the plugin host-local keeps addresses.
const leasesFolder = "/var/lib/cni/networks/" + NetworkName

// Sweep removes the overlay from a node where it was turned off, links, routes and rules, when
// none of its pods is left. While there are some it returns how many.
func Sweep() (pods int, err error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return 0, fmt.Errorf("list links: %w", err)
	}
	for _, bridge := range links {
		if bridge.Attrs().Name != Bridge {
			continue
		}
		for _, port := range links {
			if port.Attrs().MasterIndex == bridge.Attrs().Index {
				pods++
			}
		}
		if pods > 0 {
			return pods, nil
		}
		if err := rtnl.DeleteLink(bridge); err != nil {
			return 0, err
		}
	}
	_, err = apply(ways{}, plan{})
	return 0, errors.Join(err, removeVTEPs(false, false), rules.Remove(), netfilter.Sweep())
}

// Leftovers lists the overlay's objects on a node that carry no mark of Berth: links, and the list
// of pods' addresses; routes and the nftables table carry one. root is the folder of the node's
// file system.
func Leftovers(root string) ([]leftover.Item, error) {
	var items []leftover.Item
	for _, name := range []string{link4, link6, Bridge} {
		link, err := rtnl.LinkOrNil(name)
		if err != nil {
			return items, err
		}
		// Flannel's VTEPs have the same names.
		if link == nil || name != Bridge && link.Attrs().Alias != alias {
			continue
		}
		items = append(items, leftover.Item{Name: "link " + name, Remove: func() error {
			now, err := rtnl.LinkOrNil(name)
			if err != nil || now == nil {
				return err
			}
			return rtnl.DeleteLink(now)
		}})
	}
	folder := filepath.Join(root, leasesFolder)
	_, err := os.Lstat(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return items, nil
	}
	return append(items, leftover.Item{Name: "folder " + folder, Remove: func() error { return os.RemoveAll(folder) }}), err
}
