// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/agent/overlay/rules"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/podlink"
	"github.com/berth-dev/berth/cni/rtnl"
)

// leasesFolder is where the plugin host-local keeps addresses.
const leasesFolder = "/var/lib/cni/networks/" + NetworkName

// Sweep removes links, routes and rules of an overlay that was turned off, if none of its pods is
// left. Otherwise it returns the number of pods.
func Sweep() (pods int, err error) {
	links, err := podlink.Links()
	if err != nil || len(links) > 0 {
		return len(links), err
	}
	_, err = apply(ways{}, plan{})
	return 0, errors.Join(err, removeVTEPs(false, false), rules.Remove(), netfilter.Sweep())
}

// Leftovers lists the overlay's objects on a node that carry no mark of Berth: VTEPs, and the list
// of pods' addresses. Pods' links, routes and the nftables table carry a mark. root is the folder
// of the node's file system.
func Leftovers(root string) ([]leftover.Item, error) {
	var items []leftover.Item
	for _, name := range []string{link4, link6} {
		link, err := rtnl.LinkOrNil(name)
		if err != nil {
			return items, err
		}
		// Flannel's VTEPs have the same names.
		if link == nil || link.Attrs().Alias != alias {
			continue
		}
		items = append(items, leftover.Item{Name: "link " + name, Remove: func() error { return rtnl.DeleteLink(link) }})
	}
	folder := filepath.Join(root, leasesFolder)
	_, err := os.Lstat(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return items, nil
	}
	return append(items, leftover.Item{Name: "folder " + folder, Remove: func() error { return os.RemoveAll(folder) }}), err
}
