// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/state"
)

// Carried lists the addresses that this node may answer for: the ones of every record, unless they were
// withdrawn and do not come back, of links without a record, and of the node itself. It asks nobody. An address of a pod that
// the API did not have any more before the call is not carried later if it is missing here: an ADD asks
// for the pod again after it wrote its record. Interfaces with a MAC of their own whose record was lost
// are not seen.
func (a *Agent) Carried(ctx context.Context, hears bool) (*inquiry.Carried, error) {
	all := map[netip.Addr]inquiry.CarriedAddress{}
	// Links come before records: an ADD that begins meanwhile writes its record before it makes its link.
	orphans, err := a.orphans(nil)
	if err != nil {
		return nil, fmt.Errorf("look for links without a record: %w", err)
	}
	for _, o := range orphans {
		for _, addr := range o.Addresses {
			all[addr] = inquiry.CarriedAddress{Address: addr}
		}
	}
	if a.NodeAddresses != nil {
		own, err := a.NodeAddresses()
		if err != nil {
			return nil, fmt.Errorf("look for addresses of the node itself: %w", err)
		}
		for _, addr := range own {
			all[addr] = inquiry.CarriedAddress{Address: addr}
		}
	}
	for _, record := range a.Store.List() {
		if record.Phase == state.Withdrawn && !a.adds.has(record.Key()) {
			if _, waits := a.unseen.Load(record.Key()); !waits {
				continue
			}
		}
		for _, address := range record.Addresses() {
			all[address.Address] = inquiry.CarriedAddress{Address: address.Address}
		}
		if record.Phase == state.Added {
			a.addMACs(all, record)
		}
	}
	carried := &inquiry.Carried{Addresses: []inquiry.CarriedAddress{}}
	for _, addr := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		carried.Addresses = append(carried.Addresses, all[addr])
	}
	if hears {
		carried.Hears = a.hears()
	}
	return carried, nil
}

// addMACs says of a record's addresses where and by which MACs the network reaches them. What cannot be read is missing.
func (a *Agent) addMACs(all map[netip.Addr]inquiry.CarriedAddress, record *state.Container) {
	targets, _ := a.targets(record, toDefend)
	for _, t := range targets {
		c := inquiry.CarriedAddress{Address: t.Address}
		if link, err := net.InterfaceByIndex(t.Link); err == nil {
			c.Link, c.MACs = link.Name, append(c.MACs, link.HardwareAddr.String())
		}
		if own := t.Own.String(); own != "" && !slices.Contains(c.MACs, own) {
			c.MACs = append(c.MACs, own)
		}
		all[t.Address] = c
	}
}

// hears says on which links the node hears others, and the names of the nodes that it heard lately.
func (a *Agent) hears() []inquiry.Segment {
	all := a.answerer.Hearings()
	for i := range all {
		heard := all[i].Nodes
		all[i].Nodes = []inquiry.Neighbour{}
		for _, n := range heard {
			// A machine may have taken over the name of another.
			if last := len(all[i].Nodes) - 1; time.Since(n.Heard) <= inquiry.HeardLately && (last < 0 || all[i].Nodes[last].Name != n.Name) {
				all[i].Nodes = append(all[i].Nodes, inquiry.Neighbour{Name: n.Name})
			}
		}
	}
	return all
}
