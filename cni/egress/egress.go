// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Ways is how many ways of a family a node has.
const Ways = 3

// Way is how packets of some pods leave.
type Way struct {
	// Number is from 1 to Ways, and of the other Ways of the family by the same network. 0: the node
	// has too many networks, and the packets are dropped.
	Number int
	// Subnet and Gateway of the network by which they leave.
	Subnet  netip.Prefix
	Gateway netip.Addr
	// Address that they leave with, and Link the index of the node's link to the network. The zero
	// Addr, or 0: the node has none now, and the packets do not leave.
	Address netip.Addr
	Link    int
	// Ports are the ones that the node may use of an address that is no node's own: another node leads
	// the answers here. The zero value: the address is the node's own, with all its ports.
	Ports Ports
	// Except are destinations to which packets go as without us.
	Except []netip.Prefix
	// Pods are the addresses of the pods. None is of two Ways.
	Pods []netip.Addr
}

// Ports are ports of an address, or ids in ICMP, from the first to the last.
type Ports struct{ First, Last uint16 }

func (p Ports) isAll() bool { return p == Ports{} }

func (w *Way) String() string {
	if w.Ports.isAll() {
		return w.Address.String()
	}
	return fmt.Sprintf("%s, ports %d to %d", w.Address, w.Ports.First, w.Ports.Last)
}

// IsOpen returns whether packets leave.
func (w *Way) IsOpen() bool { return w.Number > 0 && w.Address.IsValid() && w.Link > 0 }

// Marks of packets, in netfilter.MarkMask and two more bits. They may never change: by them a new
// version finds the state of an old one.
const (
	wayBits  = 0x60
	markMask = netfilter.MarkMask | wayBits
)

// leaving is the mark of packets that leave by the way, and answer the one for the look-up of the
// way back of answers.
func leaving(number int) uint32 { return netfilter.Mark | uint32(max(number, 1))<<5 } //nolint:gosec // up to Ways
func answer(number int) uint32  { return netfilter.ArrivalMark | leaving(number) }

// Put has the kernel do so for these Ways, and for no others. It is idempotent; the caller makes
// calls one after another. Packets that are on their way meanwhile are dropped rather than that
// they leave with another address.
func Put(all []Way) error {
	var routings []*routing
	for _, family := range rtnl.Families {
		k, err := newRouting(family, all)
		if err != nil {
			return err
		}
		if err := k.prepare(); err != nil {
			return err
		}
		routings = append(routings, k)
	}
	if err := putTable(all); err != nil {
		return err
	}
	for _, k := range routings {
		if err := k.finish(); err != nil {
			return err
		}
	}
	return nil
}

func putTable(all []Way) error {
	t := tableOf(all)
	if len(all) == 0 {
		return t.remove()
	}
	if _, err := t.Sync(); err != nil {
		return fmt.Errorf("have pods leave with an address of the node: %w (does the kernel have nft_nat, nft_ct and nft_fib_inet?)", err)
	}
	return nil
}
