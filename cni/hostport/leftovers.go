// SPDX-License-Identifier: Apache-2.0

package hostport

import "github.com/berth-dev/berth/cni/leftover"

// Leftovers lists the links that route loopback addresses, which must end before the table with the
// guard goes. Package netfilter lists the table itself.
func Leftovers() ([]leftover.Item, error) {
	_, had, err := read()
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
