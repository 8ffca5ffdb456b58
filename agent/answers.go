// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// answers is the node as the answerer changes it.
type answers struct {
	*holdings

	withdrawals *withdrawals
	repairs     *repairs
}

// isAssigned returns whether the node carries an address for itself or for a Service.
func (n *answers) isAssigned(addr netip.Addr) bool { return n.Assigned != nil && n.Assigned.Has(addr) }

// Answers returns whether this node may answer for an address. One that the answerer does not know
// may be of a record whose link was not found, or of an interface without a record, whose container
// may answer itself: the node has a route to it.
func (n *answers) Answers(addr netip.Addr) (bool, error) {
	if _, known := n.answerer.Link(addr); !known {
		for _, record := range n.carrying(addr) {
			if record.Phase != state.Withdrawn {
				n.reconciler.CheckSoon(record.Key())
				return true, nil
			}
		}
		routed, err := wire.Routed()
		if err != nil {
			return false, err
		}
		for _, addrs := range routed {
			if slices.Contains(addrs, addr) {
				n.reconciler.OrphansSoon()
				return true, nil
			}
		}
	}
	own, err := rtnl.LinkWith(addr)
	if err != nil || own != nil {
		return own != nil, err
	}
	return wire.AnswersAnywhere(addr)
}

// Close keeps hosts from getting answers for the addresses of the interfaces that have the address
// and, where another node has it, for all of their pods: a pod has all of them, or none.
func (n *answers) Close(ctx context.Context, addr netip.Addr, newest answering.Version, cause answering.Cause, why string) error {
	if n.isAssigned(addr) {
		return n.Assigned.Close(ctx, addr)
	}
	ended := ErrNotYet
	other := cause == answering.Newer || cause == answering.Twin
	if other {
		ended = podinfo.ErrPodReplaced
	}
	var errs []error
	for _, record := range n.carrying(addr) {
		n.withdrawals.adds.end(record.Key(), fmt.Errorf("%w: %s", ended, why))
		errs = append(errs, n.withAddresses(ctx, record, "", func(now *state.Container) error {
			if now.Phase == state.Withdrawn {
				return nil
			}
			err := n.close(now, func(i *nettype.Interface) bool { return other || has(&i.Attachment, addr) })
			if err == nil && other {
				klog.FromContext(ctx).Info("The node does not answer for the addresses of a pod any more, until the API server says whose they are", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
					"podUID", now.Pod.UID, "containerID", now.ContainerID, "ips", addressesOf(now), "ip", addr, "reason", why)
			}
			if err == nil || errors.Is(err, answerer.ErrCannotClose) {
				err = errors.Join(err, n.noteNewest(now, addr, newest))
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// IsCut is for package answerer.
func (*answers) IsCut(uplink string) (bool, error) { return wire.IsCut(uplink) }

// Open has the node answer again for the addresses of complete records, on the interfaces for all
// of whose addresses it may.
func (n *answers) Open(ctx context.Context, addr netip.Addr) error {
	if n.isAssigned(addr) {
		n.Assigned.Open(addr)
		return nil
	}
	var errs []error
	for _, record := range n.carrying(addr) {
		if record.Phase != state.Added || record.Standby {
			continue
		}
		if asserted(record) {
			if slices.ContainsFunc(addressesOf(record), func(other netip.Addr) bool { return isAsserted(record.Held[other]) && n.waits(other) }) {
				continue
			}
			_, err := n.Store.Update(record.Key(), func(c *state.Container) bool {
				for addr, held := range c.Held {
					held.Version, held.Newest = max(held.Version, uint64(n.answerer.Standing(addr).Version)), 0
					c.Held[addr] = held
				}
				return true
			})
			errs = append(errs, err)
		}
		err := n.repairs.setupAgain(ctx, record, n.waitsFor)
		if err != nil {
			n.reconciler.CheckLater(record.Key())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Reachable tries whether the API server answers anything.
func (n *answers) Reachable(ctx context.Context) error {
	if n.APIReachable == nil {
		return nil
	}
	return n.APIReachable(ctx)
}

// Whose asks the API about the pod that this node has the address for, and withdraws the address
// where it is another's.
func (n *answers) Whose(ctx context.Context, addr netip.Addr) (v answering.Verdict, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	if n.isAssigned(addr) {
		return n.Assigned.Whose(ctx, addr)
	}
	pod, held, err := n.Pods.Holder(ctx, addr)
	none := errors.Is(err, podinfo.ErrNotHolder)
	if err != nil && !none {
		return v, err
	}
	for _, record := range n.carrying(addr) {
		if record.Phase == state.Withdrawn {
			continue
		}
		if !none && record.Pod.Is(pod) {
			if err := n.noteTwin(record, addr, held); err != nil {
				return v, err
			}
			continue
		}
		reason, err := n.lostWhy(ctx, record)
		if err == nil && reason != "" {
			err = n.withdrawals.withdraw(ctx, record, reason)
		}
		if err != nil {
			return v, err
		}
	}
	return answering.Verdict{
		Mine: !none && !held.Stands, Stands: held.Stands, Twin: answering.Node{Name: held.Twin},
		Version: answering.Version(held.Version), Last: answering.Node{Name: held.LastNode.Name, UID: string(held.LastNode.UID)},
	}, nil
}

// noteTwin keeps with the record of a twin by which version the API says that it is one, or that it
// has the address itself.
func (n *answers) noteTwin(record *state.Container, addr netip.Addr, now podinfo.Record) error {
	if old := record.Held[addr]; !old.Twin || now.Stands && old.Version == now.Version {
		return nil
	}
	_, err := n.Store.Update(record.Key(), func(c *state.Container) bool {
		held := plan.HeldBy(now)
		held.Newest = c.Held[addr].Newest
		c.Held[addr], c.Standby = held, c.Standby && now.Stands
		return true
	})
	n.TellSoon()
	return err
}
