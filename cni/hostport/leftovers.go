// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
)

// Leftovers lists the links that route loopback addresses, which must end before the table
// with the guard goes. The table itself is among those of package netfilter.
func Leftovers() ([]leftover.Item, error) {
	conn, err := netfilter.Open()
	if err != nil {
		return nil, err
	}
	t := newTable()
	exists, _, err := t.look(conn)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		// A kernel without nf_tables.
		return nil, nil
	}
	if err != nil || !exists {
		return nil, err
	}
	had, err := t.content(conn)
	if err != nil {
		return nil, err
	}
	var items []leftover.Item
	for _, link := range had.linkNames() {
		items = append(items, leftover.Item{
			Name:   "the routing of loopback addresses on link " + link,
			Remove: func() error { return routeLoopback(link, false) },
		})
	}
	return items, nil
}
