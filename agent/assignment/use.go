// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// own is an address of the node itself.
type own struct {
	c *Carrier
	nodeaddress.Address
}

func (o own) has(link int) (bool, error) { return nodeaddress.Has(o.Address, link) }
func (o own) mark() error                { return nodeaddress.Mark(o.Address) }
func (o own) unmark() error              { return nodeaddress.Unmark(o.Address) }
func (o own) put(link int) error         { return nodeaddress.Put(o.Address, link) }
func (o own) announce(link int) error    { return wire.AnnounceOwn(link, o.Address.Address) }

func (o own) ask(ctx context.Context, link int, m *memory) error {
	if err := o.c.Records.OwnsAddress(ctx, o.Address.Address); err != nil {
		return err
	}
	return o.askAgain(ctx, link, m)
}

func (o own) askAgain(ctx context.Context, link int, m *memory) error {
	return o.c.probe(ctx, o.Address.Address, link, m)
}

func (o own) problem(err error) (event, text string) {
	return EventNodeAddressNotPut, fmt.Sprintf("The node does not have %s, which its pool gives it: %v", o.Address, err)
}

// service is an address of a Service, whose packets kube-proxy leads to its pods. Another node may carry it at the same time, so
// nobody asks the network for it.
type service struct {
	c *Carrier
	wire.Service
}

func (s service) String() string             { return s.Address.String() }
func (s service) has(link int) (bool, error) { return wire.HasService(s.Service, link) }
func (s service) mark() error                { return s.c.Services.MarkService(s.Address) }
func (s service) unmark() error              { return s.c.Services.RemoveService(s.Address) }

// put has the node carry the address. A part that was made before an error goes with the next attempt, or with the assignment.
func (s service) put(link int) error {
	if err := s.isForeign(); err != nil {
		return errors.Join(err, s.c.Services.StopService(s.Address))
	}
	return s.c.Services.CarryService(s.Service, link)
}

func (s service) announce(link int) error {
	if s.Routed {
		return nil
	}
	return wire.AnnounceService(link, s.Address)
}

func (s service) ask(ctx context.Context, _ int, _ *memory) error {
	return s.c.Records.IsOfService(ctx, s.Address)
}

func (s service) askAgain(context.Context, int, *memory) error { return nil }

func (s service) problem(err error) (event, text string) {
	return EventServiceAddressNotCarried, fmt.Sprintf("The node does not carry %s for its Service: %v", s.Address, err)
}

// ipvsLink is the link on which kube-proxy in mode ipvs has the addresses of all Services, on every node.
const ipvsLink = "kube-ipvs0"

// isForeign returns an error where the node has the address for itself, or would have it: nodes that do not carry it would answer for it, and
// every program of the node that listens on all addresses.
func (s service) isForeign() error {
	if s.Routed {
		return nil
	}
	ipvs, err := rtnl.LinkOrNil(ipvsLink)
	if err != nil {
		return err
	}
	if ipvs != nil {
		return fmt.Errorf("%w: kube-proxy of this node has the mode ipvs, in which every node answers for the addresses of all Services; run kube-proxy in mode nftables or iptables, or give the Service an address of a pool with mode Routed", wire.ErrServiceLink)
	}
	link, err := rtnl.LinkWith(s.Address)
	if err == nil && link != nil {
		err = fmt.Errorf("%w: link %s of this node has the address; take it away: ip addr del %s dev %s", wire.ErrServiceLink, link.Attrs().Name, s.Address, link.Attrs().Name)
	}
	return err
}
