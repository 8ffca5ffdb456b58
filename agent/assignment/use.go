// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/egress"
	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// own is an address of the node itself.
type own struct {
	c *Carrier
	nodeaddress.Address
}

func (o own) has(link int) (bool, error) { return nodeaddress.Has(o.Address, link) }
func (o own) mark() error                { return nodeaddress.Mark(o.Address) }
func (o own) unmark() error              { return nodeaddress.Unmark(o.Address) }
func (o own) check(int) error            { return nil }
func (o own) put(link int) error         { return nodeaddress.Put(o.Address, link) }
func (o own) announce(link int) error    { return wire.AnnounceAt(link, o.Address.Address, false) }

func (o own) isOnLink() bool { return true }
func (o own) isShared() bool { return false }

func (o own) ask(ctx context.Context) (podinfo.Record, error) {
	return o.c.Records.OwnsAddress(ctx, o.Address.Address)
}

func (o own) stop() error { return nodeaddress.Remove(o.Address) }

func (o own) found(ctx context.Context, other *conflict.Conflict) error {
	if other == nil {
		if err := o.c.Records.ClearConflict(ctx, api.Pod{}, o.Address.Address); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot note the end of an address conflict")
		}
		return nil
	}
	if err := o.c.Records.ReportConflict(ctx, api.Pod{}, o.Address.Address, other.String()); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note an address conflict")
	}
	return fmt.Errorf("%w: %s; take the address from that host, or give the node another one: kubectl delete floatingip %s", errInUse, other, v1alpha1.NameOf(o.Address.Address))
}

func (o own) problem(err error) (event, text string) {
	return EventNodeAddressNotPut, fmt.Sprintf("The node does not have %s, which its pool gives it: %v", o.Address, err)
}

// service is an address of a Service, whose packets kube-proxy leads to its pods; or with lead one
// by which pods of several nodes leave.
type service struct {
	c *Carrier
	wire.Service

	lead *egress.Lead
}

func (s service) String() string             { return s.Address.String() }
func (s service) has(link int) (bool, error) { return wire.HasService(s.Service, link) }
func (s service) mark() error                { return s.c.Services.MarkService(s.Address) }
func (s service) unmark() error              { return s.c.Services.RemoveService(s.Address) }

func (s service) check(link int) error {
	if err := s.isForeign(); err != nil {
		return err
	}
	return s.c.Services.CheckService(s.Service, link)
}

// put has the node carry the address. A part that was made before an error goes with the next
// attempt, or with the assignment.
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
	return wire.AnnounceAt(link, s.Address, true)
}

func (s service) isOnLink() bool { return !s.Routed }
func (s service) isShared() bool { return s.lead != nil }

func (s service) ask(ctx context.Context) (podinfo.Record, error) {
	return s.c.Records.ServesAddress(ctx, s.Address)
}

func (s service) stop() error { return s.c.Services.StopService(s.Address) }

// found tells berth-controller by the NodeAssignment only: no FloatingIP of a Service names a node
// that may write its status.
func (s service) found(_ context.Context, other *conflict.Conflict) error {
	if other == nil {
		return nil
	}
	again := "create the Service anew"
	if s.lead != nil {
		again = "delete its FloatingIP"
	}
	return fmt.Errorf("%w: %s; take the address from that host, or exclude it from its pool and %s", errInUse, other, again)
}

func (s service) problem(err error) (event, text string) {
	holder := "Service"
	if s.lead != nil {
		holder = "IPClaim"
	}
	return EventServiceAddressNotCarried, fmt.Sprintf("The node does not carry %s for its %s: %v", s.Address, holder, err)
}

// ipvsLink is the link on which kube-proxy in mode ipvs has the addresses of all Services, on every
// node.
const ipvsLink = "kube-ipvs0"

// isForeign returns an error where the node has the address for itself, or would have it: nodes
// that do not carry it would answer for it, and every program of the node that listens on all
// addresses.
func (s service) isForeign() error {
	if s.Routed {
		return nil
	}
	ipvs, err := rtnl.LinkOrNil(ipvsLink)
	if err != nil {
		return err
	}
	if ipvs != nil && s.lead == nil {
		return fmt.Errorf("%w: kube-proxy of this node has the mode ipvs, in which every node answers for the addresses of all Services; run kube-proxy in mode nftables or iptables, or give the Service an address of a pool with mode Routed", wire.ErrServiceLink)
	}
	link, err := rtnl.LinkWith(s.Address)
	if err == nil && link != nil {
		err = fmt.Errorf("%w: link %s of this node has the address; take it away: ip addr del %s dev %s", wire.ErrServiceLink, link.Attrs().Name, s.Address, link.Attrs().Name)
	}
	return err
}
