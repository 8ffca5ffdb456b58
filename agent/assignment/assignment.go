// SPDX-License-Identifier: Apache-2.0

// Package assignment has a node carry the addresses that its NodeAssignment gives it, for itself or
// for Services, and writes there what pods of the node are to be told. It watches that one object.
// Before the node takes an address, it asks its FloatingIP, which alone says whose the address is,
// and then the network: other hosts, and the other nodes by package answerer, as for the addresses
// of pods. It brings back what others take away, and removes addresses that are assigned no more.
// While the API server has not told the NodeAssignment since the start, and when the agent ends,
// all stays as it is.
package assignment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/announce"
	"github.com/berth-dev/berth/agent/keylock"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// EventNodeAddressNotPut (Warning on Node): the node does not have an address that a pool gives it,
// for the reason in the note. The agent tries again. Do: see
// docs/how-to/node-addresses.md#when-the-node-does-not-have-it.
const EventNodeAddressNotPut = "NodeAddressNotPut"

// EventServiceAddressNotCarried (Warning on Node): the node does not carry the address of a Service
// that berth-controller gave it to carry, for the reason in the note. The agent tries again. Do: as
// the note says.
const EventServiceAddressNotCarried = "ServiceAddressNotCarried"

const (
	// resync is how often all is compared: an event may be lost, and a host may leave an address.
	resync = time.Minute
	// debounce is the wait after a change, for others to come.
	debounce = 100 * time.Millisecond
	// conflictPause is the wait before a host that has an address is asked again.
	conflictPause = 15 * time.Second
	// patience limits one look, with its requests to the API server and its probes.
	patience = time.Minute
)

// Options of a Carrier.
type Options struct {
	// Node is the name of this node.
	Node        string
	Assignments *client.NodeAssignments
	Records     Records
	// Uplink returns the node's link to the pools' networks.
	Uplink func() (string, error)
	// Services has the kernel carry addresses of Services.
	Services *wire.Wirer
	// Tell records a warning about the node: [EventNodeAddressNotPut], or
	// [EventServiceAddressNotCarried].
	Tell func(event string, problem error)
	// Answerer is set before Run.
	Answerer Answerer
	// Follows, if given, returns whether pods leave from the ports of a NodeAssignment. It blocks for
	// the kernel.
	Follows func(*v1alpha1.NodeAssignment) bool
	// Looked, if given, is told that the node may have other addresses than before, or another
	// NodeAssignment. It does not block.
	Looked func()
}

// Records asks the API server about FloatingIPs, and notes conflicts there. Methods block for some
// requests.
type Records interface {
	// OwnsAddress returns the record by which this node itself has the address, and ServesAddress the
	// one by which it carries the address for a Service, or for pods that leave by it. Their error is
	// podinfo.ErrNotCarrier where the FloatingIP does not say so.
	OwnsAddress(ctx context.Context, addr netip.Addr) (podinfo.Record, error)
	ServesAddress(ctx context.Context, addr netip.Addr) (podinfo.Record, error)
	// ReportConflict and ClearConflict note whether a host outside of the cluster has an address. The
	// pod is none for an address of the node itself.
	ReportConflict(ctx context.Context, pod api.Pod, addr netip.Addr, what string) error
	ClearConflict(ctx context.Context, pod api.Pod, addr netip.Addr) error
}

// Carrier has the node carry its addresses. Run is called once; the other methods may be called in
// parallel, and return at once.
type Carrier struct {
	Options

	informer cache.SharedIndexInformer
	soon     wakeup.Signal
	opened   wakeup.Signal
	untold   wakeup.Signal
	stands   wakeup.Signal
	// locks are of addresses whose part of the kernel changes, given the addresses that the Answerer
	// was told of, and carried the links of the ones that the node carries.
	locks     keylock.Locks
	given     locked.Map[netip.Addr, carriage]
	carried   locked.Map[netip.Addr, carried]
	announcer *announce.Announcer[netip.Addr]
	// of has what is remembered of each address; losing it is harmless. Only Run uses it.
	of map[netip.Addr]*memory
}

// carried is an address that the node carries, on a link.
type carried struct {
	carriage

	link int
}

type memory struct {
	// confirmed: the FloatingIP said that the address is the node's, and the node has had it since.
	confirmed bool
	// told is the last problem that an event told.
	told string
	// inUse is the problem of an address that another host has, which is asked again at again.
	inUse error
	again time.Time
	// record is the FloatingIP's, and waits is since when the node waits for others, zero where it
	// does not.
	record podinfo.Record
	waits  time.Time
}

// New returns a Carrier that is idle until Run.
func New(o Options) *Carrier {
	c := &Carrier{
		Options: o, informer: cache.NewSharedIndexInformer(client.NewSourceOf[*v1alpha1.NodeAssignmentList](o.Assignments, o.Node), &v1alpha1.NodeAssignment{}, 0, cache.Indexers{}),
		soon: wakeup.New(), opened: wakeup.New(), untold: wakeup.New(), stands: wakeup.New(), of: map[netip.Addr]*memory{},
	}
	c.announcer = announce.New(c.announceOnce)
	return c
}

// Carried returns the addresses with Berth's mark on the node: of the node itself, and of Services.
func Carried() ([]netip.Addr, error) {
	own, err := nodeaddress.Carried()
	if err != nil {
		return nil, err
	}
	services, err := wire.Services()
	return append(own, services...), err
}

// Recheck has the kernel compared soon.
func (c *Carrier) Recheck() { c.soon.Send() }

// Announce has all addresses announced: the link has another MAC.
func (c *Carrier) Announce() {
	c.carried.Do(func(all map[netip.Addr]carried) {
		for addr := range all {
			c.announcer.Soon(addr)
		}
	})
}

// announceOnce announces an address that the node carries still.
func (c *Carrier) announceOnce(ctx context.Context, addr netip.Addr) (carried bool, err error) {
	unlock, err := c.locks.Lock(ctx, addr.String())
	if err != nil {
		return false, err
	}
	defer unlock()
	at, carried := c.carried.Get(addr)
	if !carried {
		return false, nil
	}
	return true, at.announce(at.link)
}

// Run carries the addresses until the context ends; the node has them after that, too. Its caller
// runs it in the network namespace of the node.
func (c *Carrier) Run(ctx context.Context) error {
	registration, err := c.watch()
	if err != nil {
		return fmt.Errorf("prepare the watch of the NodeAssignment: %w", err)
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { c.informer.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "the node's NodeAssignment", registration.HasSyncedChecker()) {
		return nil
	}
	c.soon.Send() // There may be none.
	group.Go(func() { c.announcer.Run(ctx) })
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.opened:
		case <-c.soon:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(debounce):
			case <-c.opened:
			}
		}
		c.look(ctx)
	}
}

// watch has changes of the NodeAssignment looked at, once its informer runs.
func (c *Carrier) watch() (cache.ResourceEventHandlerRegistration, error) {
	if err := c.informer.SetTransform(view.DropManagedFields); err != nil {
		return nil, err
	}
	return c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(after any) { c.changed(&v1alpha1.NodeAssignment{}, after.(*v1alpha1.NodeAssignment)) },
		UpdateFunc: func(before, after any) {
			c.changed(before.(*v1alpha1.NodeAssignment), after.(*v1alpha1.NodeAssignment))
		},
		DeleteFunc: func(any) { c.soon.Send() },
	})
}

// changed has the parts of the NodeAssignment looked at that changed.
func (c *Carrier) changed(before, after *v1alpha1.NodeAssignment) {
	c.untold.Send()
	c.stands.Send()
	if before.UID != after.UID || before.Generation != after.Generation ||
		!slices.Equal(before.Status.Carried, after.Status.Carried) || !slices.Equal(before.Status.Refused, after.Status.Refused) {
		c.soon.Send()
	}
}

// look makes the kernel and the API server agree with the NodeAssignment.
func (c *Carrier) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	assignment := c.assignment()
	status, err := c.carry(ctx, c.wantedOf(assignment))
	if err == nil && assignment != nil && (assignment.Status.ObservedGeneration > 0 || sharesPorts(assignment)) {
		status.ObservedGeneration = assignment.Status.ObservedGeneration
		if c.Follows == nil || c.Follows(assignment) {
			status.ObservedGeneration = assignment.Generation
		}
	}
	if c.Looked != nil {
		c.Looked()
	}
	if err == nil && assignment != nil {
		err = c.report(ctx, assignment, status)
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot give the node its addresses, will try again")
	}
}

// Assignment returns the node's NodeAssignment as the watch has it, nil where there is none, and
// false while the watch has not told since the start.
func (c *Carrier) Assignment() (assignment *v1alpha1.NodeAssignment, known bool) {
	// In this order: it may be told in between.
	known = c.informer.HasSynced()
	return c.assignment(), known
}

// assignment returns the node's NodeAssignment as the watch has it, nil where there is none.
func (c *Carrier) assignment() *v1alpha1.NodeAssignment {
	object, exists, err := c.informer.GetStore().GetByKey(c.Node)
	if err != nil || !exists {
		return nil
	}
	return object.(*v1alpha1.NodeAssignment)
}

// wanted is an address that the node should carry, in the network of a VLAN.
type wanted struct {
	carriage

	addr    netip.Addr
	vlan    int
	gateway netip.Addr
}

// carriage is an address of one use in the kernel.
type carriage interface {
	fmt.Stringer
	// has returns whether the node carries it on the link as it should.
	has(link int) (bool, error)
	// mark notes that the node may carry it, and unmark ends that.
	mark() error
	unmark() error
	// ask returns the record by which the FloatingIP says so.
	ask(ctx context.Context) (podinfo.Record, error)
	// isOnLink returns whether hosts of a link could have it.
	isOnLink() bool
	// isShared returns whether two nodes that answer for it do no harm.
	isShared() bool
	// found notes which other host has it, nil for none, and returns an error about one.
	found(ctx context.Context, other *conflict.Conflict) error
	// check returns an error where the node cannot carry it on the link, as far as can be seen before,
	// once it is marked.
	check(link int) error
	// put has the node carry it on the link once it is marked.
	put(link int) error
	// stop has the node not answer for it.
	stop() error
	announce(link int) error
	// problem returns the event about a reason why the node does not carry it.
	problem(err error) (event, text string)
}

// wantedOf reads the addresses of an assignment. It leaves out uses of a later version. Pure.
func (c *Carrier) wantedOf(assignment *v1alpha1.NodeAssignment) []wanted {
	if assignment == nil {
		return nil
	}
	var all []wanted
	for _, a := range assignment.Spec.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		subnet, wrong := netip.ParsePrefix(a.Network.Subnet)
		if err != nil || wrong != nil || !subnet.Contains(addr) {
			continue
		}
		gateway, _ := netip.ParseAddr(a.Network.Gateway) // There may be none.
		switch a.Use {
		case v1alpha1.UseNode:
			all = append(all, wanted{own{c, nodeaddress.Address{Address: addr, Subnet: subnet.Masked()}}, addr, int(a.Network.VLAN), gateway})
		case v1alpha1.UseService:
			s := wire.Service{Address: addr, Subnet: subnet.Masked(), Routed: a.Network.Mode == v1alpha1.NetworkRouted}
			if a.Since != nil {
				s.Since = a.Since.Time
			}
			all = append(all, wanted{service{c, s, nil}, addr, int(a.Network.VLAN), gateway})
		case v1alpha1.UseEgress:
			s := wire.Service{Address: addr, Subnet: subnet.Masked(), Led: true}
			all = append(all, wanted{service{c, s, leadOf(assignment, &a, addr)}, addr, int(a.Network.VLAN), gateway})
		}
	}
	return all
}

// carry has the node carry these addresses and none else with Berth's mark. It returns the ones
// that it carries and the ones that it does not.
func (c *Carrier) carry(ctx context.Context, all []wanted) (status v1alpha1.NodeAssignmentStatus, err error) {
	left, err := c.removeOthers(ctx, all)
	if err == nil {
		err = c.lead(all)
	}
	if err != nil {
		return status, err
	}
	takings := make([]*taking, 0, len(all))
	for _, w := range all {
		if c.of[w.addr] == nil {
			c.of[w.addr] = &memory{}
		}
		t := &taking{wanted: w, memory: c.of[w.addr]}
		t.err = c.begin(ctx, t)
		takings = append(takings, t)
	}
	for _, t := range takings {
		if t.err == nil {
			t.err = c.take(ctx, t)
		}
		if errors.Is(t.err, errWaits) && t.inUse != nil {
			t.err = t.inUse // until the network has said that nobody has it
		}
		switch {
		case t.err == nil:
			status.Carried = append(status.Carried, t.addr.String())
			t.told, t.waits = "", time.Time{}
		case c.isQuiet(t):
			c.carried.Delete(t.addr)
		case ctx.Err() != nil:
			return status, errors.Join(left, t.err)
		default:
			c.carried.Delete(t.addr)
			status.Refused = append(status.Refused, c.tell(ctx, t))
		}
	}
	return status, left
}

// removeOthers takes all addresses with Berth's mark from the node but these. It returns with left
// what stays on it.
func (c *Carrier) removeOthers(ctx context.Context, all []wanted) (left, err error) {
	marked, err := nodeaddress.List()
	if err != nil {
		return nil, err
	}
	services, err := wire.Services()
	if err != nil {
		return nil, err
	}
	var errs []error
	removed := func(addr netip.Addr, err error) {
		if err != nil {
			errs = append(errs, err)
			return
		}
		c.carried.Delete(addr)
		c.leave(addr)
		klog.FromContext(ctx).Info("The node does not carry an address any more", "address", addr)
	}
	for _, a := range marked {
		if !slices.ContainsFunc(all, func(w wanted) bool { own, is := w.carriage.(own); return is && own.Address == a }) {
			removed(a.Address, nodeaddress.Remove(a))
		}
	}
	for _, a := range services {
		if !slices.ContainsFunc(all, func(w wanted) bool { _, is := w.carriage.(service); return is && w.addr == a }) {
			removed(a, c.Services.RemoveService(a))
		}
	}
	for addr := range c.of {
		if !slices.ContainsFunc(all, func(w wanted) bool { return w.addr == addr }) {
			delete(c.of, addr)
			if len(errs) == 0 {
				c.leave(addr) // It may have lost its mark when another node asserted it.
			}
		}
	}
	return errors.Join(errs...), nil
}

// taking is a look at one address. After err the node does not have it, or not as it should.
type taking struct {
	wanted
	*memory

	at     int // the link
	uplink string
	has    bool
	err    error
}

// begin returns nil if the address, which it marks, is the node's to carry. Otherwise it ends the
// mark.
func (c *Carrier) begin(ctx context.Context, t *taking) error {
	var err error
	if t.uplink, err = c.Uplink(); err != nil {
		return err
	}
	if t.at, err = nodeaddress.LinkFor(t.uplink, t.vlan); err != nil {
		return err
	}
	if t.has, err = t.carriage.has(t.at); err != nil {
		return err
	}
	if err := t.mark(); err != nil {
		return err
	}
	// Before another node falls silent for this one.
	if err := t.check(t.at); err != nil {
		return errors.Join(err, c.stop(ctx, t.addr, t.carriage, true))
	}
	// If somebody took it from the node, the API server need not be asked; if the node gave it to
	// another one, it is.
	if t.isOnLink() && !t.has {
		t.confirmed = c.Has(t.addr)
	}
	if t.has || t.confirmed {
		return nil
	}
	// After the mark, because the NodeAssignment may be older: whoever gives the address to another
	// holder writes the FloatingIP first, and then asks this node for its marks.
	if t.record, err = t.ask(ctx); err != nil {
		return errors.Join(err, t.unmark())
	}
	return nil
}

// errInUse is of an address that another host has.
var errInUse = errors.New("another host has it")

// isQuiet returns whether nobody is told yet that the node does not carry the address: another one
// is to fall silent first, or the NodeAssignment to follow the FloatingIP.
func (c *Carrier) isQuiet(t *taking) bool {
	if !errors.Is(t.err, errWaits) && !errors.Is(t.err, podinfo.ErrNotCarrier) {
		t.waits = time.Time{}
		return false
	}
	if t.waits.IsZero() {
		t.waits = time.Now()
		time.AfterFunc(foreignAfter, c.soon.Send)
		time.AfterFunc(quiet, c.soon.Send)
	}
	return time.Since(t.waits) < quiet
}

// take has the node carry the address, as soon as no other node answers for it, unless another host
// has it.
func (c *Carrier) take(ctx context.Context, t *taking) error {
	if time.Now().Before(t.again) {
		return t.refuse()
	}
	other, err := c.put(ctx, t)
	if err != nil {
		return err
	}
	if other != nil || !t.has {
		if t.inUse = t.found(ctx, other); t.inUse != nil {
			t.again = time.Now().Add(conflictPause)
			time.AfterFunc(conflictPause, c.soon.Send)
			return t.refuse()
		}
	}
	t.confirmed = true
	return nil
}

// put has the kernel carry the address, unless it returns the other host that has it.
func (c *Carrier) put(ctx context.Context, t *taking) (other *conflict.Conflict, err error) {
	unlock, err := c.locks.Lock(ctx, t.addr.String())
	if err != nil {
		return nil, err
	}
	defer unlock()
	// It may have been closed since begin looked.
	if t.has, err = t.carriage.has(t.at); err != nil {
		return nil, err
	}
	if other, err = c.settle(ctx, t); err != nil || other != nil {
		return other, err
	}
	if err := t.put(t.at); err != nil {
		c.carried.Delete(t.addr)
		c.leave(t.addr)
		return nil, err
	}
	if !t.has {
		klog.FromContext(ctx).Info("The node carries an address", "address", t.wanted, "vlan", t.vlan)
	}
	before, was := c.carried.Get(t.addr)
	c.carried.Set(t.addr, carried{t.carriage, t.at})
	if !t.has || !was || before.link != t.at {
		c.announcer.Soon(t.addr)
	}
	return nil, nil
}

// refuse has the node not take the address, which another host has. The mark of one that was the
// node's before stays.
func (t *taking) refuse() error {
	if t.confirmed {
		return t.inUse
	}
	return errors.Join(t.inUse, t.unmark())
}

// messageSize is the most of a message that a NodeAssignment takes.
const messageSize = 1024

// tell records an event about a new problem of an address. It returns the problem for the
// NodeAssignment.
func (c *Carrier) tell(ctx context.Context, t *taking) v1alpha1.RefusedAddress {
	event, text := t.problem(t.err)
	if text != t.told {
		t.told = text
		klog.FromContext(ctx).Info("The node does not carry an address that it was given", "address", t.wanted, "err", t.err)
		c.Tell(event, errors.New(text))
	}
	refused := v1alpha1.RefusedAddress{Address: t.addr.String(), Reason: v1alpha1.RefusedNotPossible, Message: t.err.Error()}
	switch {
	case errors.Is(t.err, errInUse), errors.Is(t.err, errWaits) && len(c.Answerer.Standing(t.addr).MACs) > 0:
		refused.Reason = v1alpha1.RefusedInUse
	case errors.Is(t.err, errWaits) && c.Answerer.Asks(t.addr):
		refused.Reason = v1alpha1.RefusedNotYet
	}
	if len(refused.Message) > messageSize {
		refused.Message = strings.ToValidUTF8(refused.Message[:messageSize], "")
	}
	return refused
}

// report writes the addresses that the node carries, and the ones that it does not, if they
// changed.
func (c *Carrier) report(ctx context.Context, seen *v1alpha1.NodeAssignment, status v1alpha1.NodeAssignmentStatus) error {
	if slices.Equal(seen.Status.Carried, status.Carried) && slices.Equal(seen.Status.Refused, status.Refused) && seen.Status.ObservedGeneration == status.ObservedGeneration {
		return nil
	}
	// Of nil nothing would be written.
	parts := map[string]any{"carried": append([]string{}, status.Carried...), "refused": append([]v1alpha1.RefusedAddress{}, status.Refused...)}
	if status.ObservedGeneration > 0 {
		parts["observedGeneration"] = status.ObservedGeneration
	}
	return c.patch(ctx, seen, parts)
}

// patch writes parts of the status.
func (c *Carrier) patch(ctx context.Context, seen *v1alpha1.NodeAssignment, parts map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": seen.UID}, "status": parts})
	if err != nil {
		return fmt.Errorf("encode the status of NodeAssignment %s: %w", seen.Name, err)
	}
	_, err = c.Assignments.Patch(ctx, seen.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // The watch tells.
	}
	if err != nil {
		return fmt.Errorf("write the status of NodeAssignment %s: %w", seen.Name, err)
	}
	return nil
}
