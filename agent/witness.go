// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/lifesign"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// witness says which addresses this node carries, and what it hears of other nodes.
type witness struct {
	*records

	holdings    *holdings
	withdrawals *withdrawals
	orphans     *orphans
}

// Errors of Witness.
var (
	// ErrWitnessOfItself is returned on the node that is asked about.
	ErrWitnessOfItself = errors.New("this is the node itself: ask another one")
	// ErrCarried is returned for an address that this node carries: it does not hear its own answers.
	ErrCarried = errors.New("this node carries the address: ask another one")
)

// Witness asks another node whether it lives: at its InternalIPs, on the segments of this one, and
// in the network of the addresses who answers for these. Without a node it asks for addresses
// alone. It changes nothing, and blocks for about a second.
func (w *witness) Witness(ctx context.Context, q inquiry.WitnessQuestion) (*inquiry.Testimony, error) {
	if q.Node == w.Node.Name {
		return nil, ErrWitnessOfItself
	}
	w.holdings.joinUplinks(ctx)
	links, err := w.linksOf(q)
	if q.Node == "" {
		err = errors.Join(err, w.carriesNone(ctx, q.Addresses))
	} else if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot say whether a node answers for its addresses", "node", q.Node, "err", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	var sighting answerer.Sighting
	var signs, controls lifesign.Signs
	var group sync.WaitGroup
	group.Go(func() { signs = lifesign.Look(ctx, q.Hosts, w.AgentPort) })
	group.Go(func() { controls = lifesign.Look(ctx, q.Controls, w.AgentPort) })
	group.Go(func() { sighting = w.holdings.answerer.Seek(ctx, q.Node, q.Addresses, links) })
	group.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if q.Node == "" {
		for _, link := range links {
			if err := w.holdings.answerer.Check(link); err != nil {
				return nil, err
			}
		}
	}
	t := &inquiry.Testimony{
		Control: sighting.Control && (len(q.Controls) == 0 || controls.Kernel),
		Host:    signs.Kernel, Agent: signs.Agent || sighting.Node, Addresses: []inquiry.AnsweredAddress{},
	}
	for _, addr := range q.Addresses {
		if macs := sighting.MACs[addr]; len(macs) > 0 {
			t.Addresses = append(t.Addresses, inquiry.AnsweredAddress{Address: addr, MACs: macs})
		}
	}
	return t, nil
}

// carriesNone returns ErrCarried where the node carries one of the addresses.
func (w *witness) carriesNone(ctx context.Context, addrs []netip.Addr) error {
	carried, err := w.Carried(ctx, false)
	if err != nil {
		return err
	}
	for _, c := range carried.Addresses {
		if slices.Contains(addrs, c.Address) {
			return fmt.Errorf("%s: %w", c.Address, ErrCarried)
		}
	}
	return nil
}

// linksOf returns the links to the network of the question's addresses, or of its gateways if there
// are none, where the node from now on hears the others: the ones by which the node has other
// addresses of their subnets, else the VLAN's on all uplinks, as a pool does not say which of them
// is its. It returns an error where the network of an address is not known to be at this node.
func (w *witness) linksOf(q inquiry.WitnessQuestion) ([]int, error) {
	subnets, all, of := w.subnets(q.VLAN), map[int]bool{}, q.Addresses
	if len(of) == 0 {
		of = q.Gateways
	}
	unknown := len(of) == 0
	for _, addr := range of {
		known := false
		for subnet, link := range subnets {
			if subnet.Contains(addr) {
				known, all[link] = true, true
			}
		}
		unknown = unknown || !known
	}
	if unknown {
		uplinks, err := w.holdings.Uplinks()
		joined := false
		for _, uplink := range uplinks {
			link, other := wire.NetworkLink(uplink, q.VLAN)
			if other != nil {
				err = errors.Join(err, other)
				continue
			}
			w.holdings.answerer.Join(link, uplink, q.Gateways...)
			joined, all[link] = true, true
		}
		if !joined {
			return nil, errors.Join(fmt.Errorf("the network of VLAN %d is on no uplink of this node", q.VLAN), err)
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// subnets returns the subnets of a VLAN in which the node has addresses, and the links to their
// networks.
func (w *witness) subnets(vlan int) map[netip.Prefix]int {
	all := map[netip.Prefix]int{}
	for _, record := range w.Store.List() {
		for _, addr := range record.Addresses() {
			if link, has := w.holdings.answerer.Link(addr.Address); has && addr.VLAN == vlan {
				all[addr.Subnet] = link
			}
		}
	}
	return all
}

// Carried lists the addresses that this node may answer for: the ones of every record, unless they
// were withdrawn and do not come back, of links without a record, and of the node itself. It asks
// nobody. An address of a pod that the API did not have any more before the call is not carried
// later if it is missing here: an ADD asks for the pod again after it wrote its record. Interfaces
// with a MAC of their own whose record was lost are not seen.
func (w *witness) Carried(ctx context.Context, hears bool) (*inquiry.Carried, error) {
	all := map[netip.Addr]inquiry.CarriedAddress{}
	// Links come before records: an ADD that begins meanwhile writes its record before it makes its
	// link.
	orphans, err := w.orphans.list(nil)
	if err != nil {
		return nil, fmt.Errorf("look for links without a record: %w", err)
	}
	for _, o := range orphans {
		for _, addr := range o.Addresses {
			all[addr] = inquiry.CarriedAddress{Address: addr}
		}
	}
	if w.NodeAddresses != nil {
		own, err := w.NodeAddresses()
		if err != nil {
			return nil, fmt.Errorf("look for addresses of the node itself: %w", err)
		}
		for _, addr := range own {
			all[addr] = inquiry.CarriedAddress{Address: addr}
		}
	}
	for _, record := range w.Store.List() {
		if record.Phase == state.Withdrawn && !w.withdrawals.adds.has(record.Key()) {
			if _, waits := w.withdrawals.unseen.Load(record.Key()); !waits {
				continue
			}
		}
		for _, address := range record.Addresses() {
			all[address.Address] = inquiry.CarriedAddress{Address: address.Address}
		}
		if record.Phase == state.Added {
			w.addMACs(all, record)
		}
	}
	carried := &inquiry.Carried{Addresses: []inquiry.CarriedAddress{}}
	for _, addr := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		carried.Addresses = append(carried.Addresses, all[addr])
	}
	if hears {
		carried.Hears = w.hears()
	}
	return carried, nil
}

// addMACs says of a record's addresses where and by which MACs the network reaches them. What
// cannot be read is missing.
func (w *witness) addMACs(all map[netip.Addr]inquiry.CarriedAddress, record *state.Container) {
	for _, t := range w.toDefend(record) {
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
func (w *witness) hears() []inquiry.Segment {
	all := w.holdings.answerer.Hearings()
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
