// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// answerPatience is how long an ADD waits until this node may answer for the pod's addresses. The runtime's next ADD waits
// on.
const answerPatience = 10 * time.Second

// holdings lists the addresses of the record that are at targets.
func (a *Agent) holdings(record *state.Container, targets []conflict.Target) []answerer.Holding {
	var all []answerer.Holding
	for k := range record.Attachments {
		attachment := &record.Attachments[k]
		_, defended := a.Drivers[attachment.Driver].(defended)
		for _, addr := range attachment.Addresses {
			i := slices.IndexFunc(targets, func(t conflict.Target) bool { return t.Address == addr.Address })
			if i < 0 {
				continue
			}
			held := record.Held[addr.Address]
			all = append(all, answerer.Holding{
				Address: addr.Address, Pod: record.Pod.Identity(), Link: targets[i].Link, Uplink: attachment.Uplink, Gateway: addr.Gateway, OwnMAC: targets[i].Own,
				Failover: held.Failover, Defended: defended, Version: answering.Version(held.Version), Last: answering.Node{Name: held.LastNode, UID: held.LastNodeUID},
			})
		}
	}
	return all
}

func has(attachment *state.Attachment, addr netip.Addr) bool {
	return slices.ContainsFunc(attachment.Addresses, func(a api.Address) bool { return a.Address == addr })
}

// take has the other nodes and hosts of a record's networks asked whether they answer for its addresses. ctx ends with the cause
// podinfo.ErrPodReplaced when the pod loses them.
func (a *Agent) take(ctx context.Context, record *state.Container, targets []conflict.Target) (addrs []netip.Addr) {
	for _, h := range a.holdings(record, targets) {
		a.answerer.Take(h)
		addrs = append(addrs, h.Address)
	}
	if errors.Is(context.Cause(ctx), podinfo.ErrPodReplaced) {
		// Its Leave may have come before.
		a.leave(record)
	}
	return addrs
}

// mayAnswer waits until this node may answer for addresses that it has taken. It returns the ones that hosts outside of the cluster have.
func (a *Agent) mayAnswer(ctx context.Context, addrs []netip.Addr) (foreign []conflict.Conflict, err error) {
	patient, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	foreign, err = a.answerer.Wait(patient, addrs)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return foreign, fmt.Errorf("%w: %w", ErrNotYet, err)
	}
	return foreign, nil
}

// ErrNotYet is returned by ADD while another node may answer for an address of the pod.
var ErrNotYet = errors.New("this node cannot answer for an address of the pod yet")

// leave says that this node does not answer for the addresses of the record any more, unless it does for another container.
func (a *Agent) leave(record *state.Container) {
	if len(record.Addresses()) == 0 || len(a.sharing(record)) > 0 {
		return
	}
	a.answerer.Leave(record.Pod.Identity(), addressesOf(record)...)
}

// carry tells the answerer of a complete record.
func (a *Agent) carry(ctx context.Context, record *state.Container, answers bool) {
	if len(record.Addresses()) == 0 {
		return
	}
	targets, release, err := a.toProbe(record)
	defer release()
	if err != nil {
		// The next survey finds it.
		klog.FromContext(ctx).V(2).Info("Cannot find the network of addresses", "ips", addressesOf(record), "err", err)
	}
	a.carryAt(record, targets, answers)
}

// carryAt is carry where the links are known.
func (a *Agent) carryAt(record *state.Container, targets []conflict.Target, answers bool) {
	for _, h := range a.holdings(record, targets) {
		a.answerer.Carry(h, answers, answering.Version(record.Held[h.Address].Newest))
	}
	if now := a.Store.Get(record.Key()); now == nil || now.Phase == state.Deleting || now.Phase == state.Withdrawn {
		// Its Leave may have come before. What an ADD takes stays.
		a.leave(record)
	}
}

// follow tells the answerer on which links the node answers for the addresses of a complete record that lacks nothing, where it does not
// know that.
func (a *Agent) follow(record *state.Container) {
	// The repair of the record reports missing links.
	targets, _ := a.targets(record, toDefend)
	a.carryAt(record, slices.DeleteFunc(targets, a.knows), true)
}

// knows returns whether the answerer has an address on its link.
func (a *Agent) knows(t conflict.Target) bool {
	link, has := a.answerer.Link(t.Address)
	return has && link == t.Link
}

// askAgain has the answerer ask for the addresses of the interfaces of a complete record that lack something, before the node
// answers for them again. Of what is missing, rest is that of interfaces for which no other node can be asked.
func (a *Agent) askAgain(record *state.Container, missing error) (rest, err error) {
	if record.Phase != state.Added {
		return missing, nil
	}
	targets, release, err := a.toProbe(record)
	defer release()
	if err != nil {
		return nil, err
	}
	var doubted []conflict.Target
	rest = a.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		lacks := d.CheckNode(i)
		if lacks == nil {
			return nil
		}
		of := slices.DeleteFunc(slices.Clone(targets), func(t conflict.Target) bool { return !has(&i.Attachment, t.Address) })
		if len(of) == 0 {
			return lacks
		}
		doubted = append(doubted, of...)
		return nil
	})
	a.carryAt(record, slices.DeleteFunc(doubted, func(t conflict.Target) bool { return a.knows(t) && a.waits(t.Address) }), false)
	return rest, nil
}

// carryAll tells the answerer of all complete records after a start.
func (a *Agent) carryAll(ctx context.Context) {
	a.joinUplinks(ctx)
	lacking := map[state.Key]bool{}
	for _, record := range a.incomplete(ctx) {
		lacking[record.Key()] = true
	}
	for _, record := range a.Store.List() {
		if record.Phase == state.Added {
			a.carry(ctx, record, !lacking[record.Key()])
		}
	}
}

// Carrier says that a link of this node has lost its carrier, or has it again. It returns at once.
func (a *Agent) Carrier(link string, up bool) { a.answerer.Carrier(link, up) }

// TakeOver has this node answer for an address for which a pod waits, whoever else seems to answer: somebody says that no other
// node does. Its error says why nothing comes of that.
func (a *Agent) TakeOver(ctx context.Context, addr netip.Addr) error {
	pods := []string{}
	for _, record := range (answers{a}).carrying(addr) {
		pods = append(pods, record.Pod.String())
	}
	if err := a.answerer.Word(addr); err != nil {
		of := ""
		if len(pods) > 0 {
			of = " of pod " + strings.Join(pods, ", ")
		}
		return fmt.Errorf("node %s does not wait for the address %s%s: %w", a.Node.Name, addr, of, err)
	}
	klog.FromContext(ctx).Info("Somebody says that no other node answers for an address; the node answers for it", "ip", addr, "pods", pods)
	return nil
}

// Uplinks lists the links of this node to networks of floating IPs. It does not block for long.
func (a *Agent) Uplinks() ([]string, error) {
	floating, err := a.Networks.Floating()
	names := map[string]bool{}
	if err == nil {
		names[floating.Uplink] = true
	}
	for _, record := range a.Store.List() {
		for i := range record.Attachments {
			if len(record.Attachments[i].Addresses) > 0 {
				names[record.Attachments[i].Uplink] = true
			}
		}
	}
	delete(names, "")
	if len(names) == 0 {
		return nil, err
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// incomplete lists the complete records whose interfaces lack something by which the node answers for their addresses.
func (a *Agent) incomplete(ctx context.Context) []*state.Container {
	checks := a.surveyChecks()
	var all []*state.Container
	for _, record := range a.Store.List() {
		if ctx.Err() != nil {
			return nil
		}
		if record.Phase == state.Added && len(record.Addresses()) > 0 && !a.agrees(record, checks) && a.eachInterface(record, nettype.Driver.CheckNode) != nil {
			all = append(all, record)
		}
	}
	return all
}

// asserted returns whether another node has asserted an address of the record by a newer record of the API. Until the API has said
// that it is this node's, or the pod is gone, the answerer alone opens it.
func asserted(record *state.Container) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(record.Held)), isAsserted)
}

func isAsserted(held state.Held) bool { return held.Newest > held.Version }

// answers is the node as the answerer changes it.
type answers struct{ *Agent }

// isAssigned returns whether the node carries an address for itself or for a Service.
func (a answers) isAssigned(addr netip.Addr) bool { return a.Assigned != nil && a.Assigned.Has(addr) }

// Answers returns whether this node may answer for an address. One that the answerer does not know may be of a record whose link was
// not found, or of an interface without a record, whose container may answer itself: the node has a route to it.
func (a answers) Answers(addr netip.Addr) (bool, error) {
	if _, known := a.answerer.Link(addr); !known {
		for _, record := range a.carrying(addr) {
			if record.Phase != state.Withdrawn {
				a.reconciler.CheckSoon(record.Key())
				return true, nil
			}
		}
		routed, err := wire.Routed()
		if err != nil {
			return false, err
		}
		for _, addrs := range routed {
			if slices.Contains(addrs, addr) {
				a.reconciler.OrphansSoon()
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

// carrying lists the records that have an address.
func (a *Agent) carrying(addr netip.Addr) []*state.Container {
	return slices.DeleteFunc(a.Store.List(), func(c *state.Container) bool {
		return !slices.Contains(addressesOf(c), addr)
	})
}

func addressesOf(record *state.Container) []netip.Addr {
	var all []netip.Addr
	for _, addr := range record.Addresses() {
		all = append(all, addr.Address)
	}
	return all
}

// Close keeps hosts from getting answers for the addresses of the interfaces that have the address and, where another node has
// it, for all of their pods: a pod has all of them, or none.
func (a answers) Close(ctx context.Context, addr netip.Addr, newest answering.Version, cause answering.Cause, why string) error {
	if a.isAssigned(addr) {
		return a.Assigned.Close(ctx, addr)
	}
	ended := ErrNotYet
	if cause == answering.Newer {
		ended = podinfo.ErrPodReplaced
	}
	var errs []error
	for _, record := range a.carrying(addr) {
		a.adds.end(record.Key(), fmt.Errorf("%w: %s", ended, why))
		errs = append(errs, a.withAddresses(ctx, record, "", func(now *state.Container) error {
			if now.Phase == state.Withdrawn {
				return nil
			}
			err := a.closeLocked(now, func(i *nettype.Interface) bool { return cause == answering.Newer || has(&i.Attachment, addr) })
			if err == nil && cause == answering.Newer {
				klog.FromContext(ctx).Info("The node does not answer for the addresses of a pod any more, until the API server says whose they are", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
					"podUID", now.Pod.UID, "containerID", now.ContainerID, "ips", addressesOf(now), "ip", addr, "reason", why)
			}
			if err == nil || errors.Is(err, answerer.ErrCannotClose) {
				err = errors.Join(err, a.noteNewest(now, addr, newest))
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// IsCut is for package answerer.
func (answers) IsCut(uplink string) (bool, error) { return wire.IsCut(uplink) }

// closeLocked closes interfaces of a record, for a caller that holds the locks of its addresses. Its error is ErrCannotClose where
// all that can be closed is.
func (a *Agent) closeLocked(now *state.Container, which func(i *nettype.Interface) bool) error {
	var cannot error
	err := a.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
		if !which(i) {
			return nil
		}
		err := d.Close(i)
		if errors.Is(err, foreign.ErrCannotClose) {
			cannot = errors.Join(cannot, fmt.Errorf("%w: %w", answerer.ErrCannotClose, err))
			return nil
		}
		return err
	})
	if err == nil {
		err = cannot
	}
	if err != nil {
		return fmt.Errorf("close the addresses of pod %s: %w", now.Pod, err)
	}
	return nil
}

// noteNewest keeps with a complete record by which one of the API another node has asserted an address.
func (a *Agent) noteNewest(now *state.Container, addr netip.Addr, newest answering.Version) error {
	if now.Phase != state.Added {
		return nil
	}
	_, err := a.Store.Update(now.Key(), func(c *state.Container) bool {
		if c.Phase != state.Added || c.Held[addr].Newest == uint64(newest) {
			return false
		}
		if c.Held == nil {
			c.Held = map[netip.Addr]state.Held{}
		}
		held := c.Held[addr]
		held.Newest = uint64(newest)
		c.Held[addr] = held
		return true
	})
	return err
}

// waits returns whether the answerer has yet to say that this node may answer for an address.
func (a *Agent) waits(addr netip.Addr) bool { return a.answerer.Waits(addr) }

// waitsFor returns whether that is so of an address of an interface.
func (a *Agent) waitsFor(i *nettype.Interface) bool {
	return slices.ContainsFunc(i.Addresses, func(addr api.Address) bool { return a.waits(addr.Address) })
}

// isAsked returns whether the answerer knows an address of an interface, and so has it opened.
func (a *Agent) isAsked(i *nettype.Interface) bool {
	return slices.ContainsFunc(i.Addresses, func(addr api.Address) bool {
		_, known := a.answerer.Link(addr.Address)
		return known
	})
}

// Open has the node answer again for the addresses of complete records, on the interfaces for all of whose addresses it may.
func (a answers) Open(ctx context.Context, addr netip.Addr) error {
	if a.isAssigned(addr) {
		a.Assigned.Open(addr)
		return nil
	}
	var errs []error
	for _, record := range a.carrying(addr) {
		if record.Phase != state.Added {
			continue
		}
		if asserted(record) {
			if slices.ContainsFunc(addressesOf(record), func(other netip.Addr) bool { return isAsserted(record.Held[other]) && a.waits(other) }) {
				continue
			}
			_, err := a.Store.Update(record.Key(), func(c *state.Container) bool {
				for addr, held := range c.Held {
					held.Version, held.Newest = max(held.Version, uint64(a.answerer.Standing(addr).Version)), 0
					c.Held[addr] = held
				}
				return true
			})
			errs = append(errs, err)
		}
		err := a.setupAgain(ctx, record, a.waitsFor)
		if err != nil {
			a.reconciler.CheckLater(record.Key())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Reachable tries whether the API server answers anything.
func (a answers) Reachable(ctx context.Context) error {
	if a.APIReachable == nil {
		return nil
	}
	return a.APIReachable(ctx)
}

// Whose asks the API about the pod that this node has the address for, and withdraws the address where it is another's.
func (a answers) Whose(ctx context.Context, addr netip.Addr) (mine bool, version answering.Version, last answering.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	if a.isAssigned(addr) {
		return a.Assigned.Whose(ctx, addr)
	}
	pod, held, err := a.Pods.Holder(ctx, addr)
	none := errors.Is(err, podinfo.ErrNotHolder)
	if err != nil && !none {
		return false, 0, answering.Node{}, err
	}
	mine = !none
	for _, record := range a.carrying(addr) {
		if !none && record.Pod.Is(pod) || record.Phase == state.Withdrawn {
			continue
		}
		reason, err := a.lostWhy(ctx, record)
		if err != nil {
			return false, 0, answering.Node{}, err
		}
		if reason == "" {
			continue
		}
		if err := a.withdraw(ctx, record, reason); err != nil {
			return false, 0, answering.Node{}, err
		}
	}
	return mine, answering.Version(held.Version), answering.Node{Name: held.LastNode.Name, UID: string(held.LastNode.UID)}, nil
}
