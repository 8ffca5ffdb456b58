// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/state"
)

// Carried lists the addresses that this node may answer for: the ones of every record, unless they were
// withdrawn and do not come back, of links without a record, and of the node itself. It asks nobody. An address of a pod that
// the API did not have any more before the call is not carried later if it is missing here: an ADD asks
// for the pod again after it wrote its record. Interfaces with a MAC of their own whose record was lost
// are not seen.
func (a *Agent) Carried() (*inquiry.Carried, error) {
	// Links come before records: an ADD that begins meanwhile writes its record before it makes its link.
	orphans, err := a.orphans(nil)
	if err != nil {
		return nil, fmt.Errorf("look for links without a record: %w", err)
	}
	carried := &inquiry.Carried{Addresses: []netip.Addr{}}
	for _, o := range orphans {
		carried.Addresses = append(carried.Addresses, o.Addresses...)
	}
	for _, record := range a.Store.List() {
		if record.Phase == state.Withdrawn && !a.adds.has(record.Key()) {
			if _, waits := a.unseen.Load(record.Key()); !waits {
				continue
			}
		}
		for _, address := range record.Addresses() {
			carried.Addresses = append(carried.Addresses, address.Address)
		}
	}
	if a.NodeAddresses != nil {
		own, err := a.NodeAddresses()
		if err != nil {
			return nil, fmt.Errorf("look for addresses of the node itself: %w", err)
		}
		carried.Addresses = append(carried.Addresses, own...)
	}
	slices.SortFunc(carried.Addresses, netip.Addr.Compare)
	carried.Addresses = slices.Compact(carried.Addresses)
	return carried, nil
}
