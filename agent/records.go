// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/keylock"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/reconcile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/agent/traffic"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// records are the containers of this node as its store has them, with the locks under which they
// and the kernel change. Options has the store and the drivers. Methods are safe in parallel.
type records struct {
	*Options

	locks      keylock.Locks
	reconciler *reconcile.Reconciler
	ports      *hostports.Ports
	// kept is sent when the kernel was changed for an address.
	kept wakeup.Signal
	// traffic has what the links of floating IPs counted.
	traffic *traffic.Memory
}

// kernelPatience limits the wait for another call that changes the kernel for the same
// address and write its record.
const kernelPatience = 10 * time.Second

func containerLock(id string) string { return "container/" + id }

// lockContainer locks a container for a call that runs plugins. Callers take this lock
// first.
func (r *records) lockContainer(ctx context.Context, id string) (func(), error) {
	unlock, err := r.locks.Lock(ctx, containerLock(id))
	if err != nil {
		return nil, fmt.Errorf("wait for another call for container %s: %w", id, err)
	}
	return unlock, nil
}

// locked calls do while it has the locks of addresses, which it always takes in the same order.
// do may change the phase of their records and their kernel state. It runs no plugin, brings no
// network policies into the kernel and asks no API: a withdrawal waits for these locks only. Where
// a withdrawal ended ctx before, do is not called.
func (r *records) locked(ctx context.Context, addrs []api.Address, do func() error) error {
	patient, cancel := context.WithTimeout(ctx, kernelPatience)
	defer cancel()
	keys := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		keys = append(keys, "address/"+addr.Address.String())
	}
	slices.Sort(keys)
	defer r.kept.Send()
	for _, key := range slices.Compact(keys) {
		unlock, err := r.locks.Lock(patient, key)
		if err != nil {
			return fmt.Errorf("wait for another call for the pod's addresses: %w", err)
		}
		defer unlock()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return do()
}

// withAddresses calls do with the record as the store has it once its addresses are locked (see
// locked). It does nothing where the record is gone, has left the phase, if that is given, or is
// another pod's or one of other addresses by now.
func (r *records) withAddresses(ctx context.Context, record *state.Container, phase state.Phase, do func(now *state.Container) error) error {
	return r.locked(ctx, record.Addresses(), func() error {
		now := r.Store.Get(record.Key())
		if now == nil || phase != "" && now.Phase != phase || now.Pod != record.Pod || !slices.Equal(now.Addresses(), record.Addresses()) {
			return nil
		}
		return do(now)
	})
}

// driverOf returns the driver of an attachment, nil where plugins do all the work.
func (r *records) driverOf(record *state.Container, i int) (nettype.Driver, error) {
	name := record.Attachments[i].Driver
	if name == "" {
		return nil, nil
	}
	if d := r.Drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("the record of container %s names the driver %q, which this agent does not have: run the agent's version that wrote it", record.ContainerID, name)
}

// interfaceNow is interfaceOf with the addresses that routing daemons are to announce.
func (r *records) interfaceNow(record *state.Container, i int) *nettype.Interface {
	one := nettype.InterfaceOf(record, i)
	one.Advertised = r.advertised(record, i)
	return one
}

// eachInterface calls do for every interface of the record that a driver wires, and
// returns all errors.
func (r *records) eachInterface(record *state.Container, do func(d nettype.Driver, i *nettype.Interface) error) error {
	var errs []error
	for i := range record.Attachments {
		d, err := r.driverOf(record, i)
		if err == nil && d != nil {
			err = do(d, r.interfaceNow(record, i))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isRouted returns whether the record has addresses that routers lead to this node.
func isRouted(record *state.Container) bool {
	return slices.ContainsFunc(record.Addresses(), func(a api.Address) bool { return a.Routed })
}

// advertised returns the addresses of an attachment that routing daemons announce from this node,
// and since when the pod has each: with its record complete, all that routers lead here, but none
// while the pod is to be Ready for it and is not. It returns nil where that is not known.
func (r *records) advertised(record *state.Container, i int) map[netip.Addr]time.Time {
	if record.Phase != state.Added || !isRouted(record) {
		return nil
	}
	all := map[netip.Addr]time.Time{}
	ready, known := true, true
	if record.WhenReady {
		ready, known = r.Pods.IsReady(record.Pod)
	}
	if !known {
		return nil
	}
	for _, addr := range record.Attachments[i].Addresses {
		if addr.Routed && ready {
			all[addr.Address] = record.Held[addr.Address].Since
		}
	}
	return all
}

// onSegment is a driver whose addresses are on layer 2 networks, where another host may
// have them. The addresses of other drivers are not probed.
type onSegment interface {
	// Targets lists the interface's addresses before it is set up, each with the node's link to its
	// network, which may be made for it. Beside an error it has the addresses whose link was found.
	// Links that were made stay until the caller calls release, which is nil for a driver that makes
	// none.
	Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error)
}

// defended is a driver that knows the MACs by which the network reaches its addresses, so that the
// claim of another host can be told from one of the pod.
type defended interface {
	// Carried lists the addresses of an interface that is set up, as Targets does. It makes no
	// links.
	Carried(i *nettype.Interface) ([]conflict.Target, error)
}

// toProbe lists the addresses of the record that the network is asked for before its interfaces are
// set up. release ends the keeping of links that drivers made.
func (r *records) toProbe(record *state.Container) (targets []conflict.Target, release func(), err error) {
	release = func() {}
	err = r.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		return ifCan(d, func(s onSegment) error {
			found, one, err := s.Targets(i)
			targets = append(targets, found...)
			if before := release; one != nil {
				release = func() { before(); one() }
			}
			return err
		})
	})
	return targets, release, err
}

// toDefend lists the addresses of the record whose interfaces are set up. The repair of the record
// reports links that are missing.
func (r *records) toDefend(record *state.Container) (targets []conflict.Target) {
	_ = r.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		return ifCan(d, func(s defended) error {
			found, err := s.Carried(i)
			targets = append(targets, found...)
			return err
		})
	})
	return targets
}

// ifCan calls do where a driver can do more than every driver must.
func ifCan[T any](d nettype.Driver, do func(T) error) error {
	if one, ok := d.(T); ok {
		return do(one)
	}
	return nil
}

// close closes interfaces of a record, for a caller that holds the locks of its addresses. Its
// error is ErrCannotClose where all that can be closed is.
func (r *records) close(now *state.Container, which func(i *nettype.Interface) bool) error {
	var cannot error
	err := r.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
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

// netnsGone returns true where the path of a container's network namespace is empty
// or names no file.
func netnsGone(path string) (bool, error) {
	if path == "" {
		return true, nil
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	return false, nil
}

// podGone is the reason of a withdrawal.
const podGone = "the pod is deleted, replaced or finished"

// attachmentOf returns the attachment to an interface of a container, and its record; nil
// where no record has it.
func (r *records) attachmentOf(containerID, ifName string) (record *state.Container, i int) {
	for _, record := range r.Store.List() {
		if record.ContainerID != containerID {
			continue
		}
		for i, attachment := range record.Attachments {
			if attachment.IfName == ifName {
				return record, i
			}
		}
	}
	return nil, 0
}

// carrying lists the records that have an address.
func (r *records) carrying(addr netip.Addr) []*state.Container {
	return slices.DeleteFunc(r.Store.List(), func(c *state.Container) bool {
		return !slices.Contains(addressesOf(c), addr)
	})
}

// withSameAddress lists the other records with an address of the record.
func (r *records) withSameAddress(record *state.Container) []*state.Container {
	return slices.DeleteFunc(r.Store.List(), func(old *state.Container) bool {
		return old.Key() == record.Key() || !shareAddress(old, record)
	})
}

// sharing lists the other records with an address of the record that this node may still
// carry for them.
func (r *records) sharing(record *state.Container) []*state.Container {
	return slices.DeleteFunc(r.withSameAddress(record), func(old *state.Container) bool { return old.Phase == state.Withdrawn })
}

func shareAddress(x, y *state.Container) bool {
	addrs := addressesOf(y)
	return slices.ContainsFunc(addressesOf(x), func(addr netip.Addr) bool { return slices.Contains(addrs, addr) })
}

// onOneInterface returns an error where another interface of the record's container has its
// addresses: ADD would take them from an interface that its pod uses. Only an ADD of berth-ipam
// shares a container with other records, so one of the two is such a record.
func (r *records) onOneInterface(record *state.Container) error {
	for _, other := range r.Store.List() {
		again := other.Key() == record.Key() && ofCaller(other) == ofCaller(record)
		if other.ContainerID == record.ContainerID && !again && (ofCaller(other) || ofCaller(record)) && shareAddress(other, record) {
			return fmt.Errorf("%w: the floating IPs of pod %s are on its interface %s already, and %s asks for them, too: give them to one interface",
				foreign.ErrConfig, record.Pod, nettype.FloatingOf(other.Attachments).IfName, nettype.FloatingOf(record.Attachments).IfName)
		}
	}
	return nil
}

// updateAttachment changes an attachment in the record and in the store, where others may change
// other parts of it meanwhile.
func (r *records) updateAttachment(record *state.Container, i int, change func(*state.Attachment)) error {
	change(&record.Attachments[i])
	_, err := r.Store.Update(record.Key(), func(c *state.Container) bool {
		change(&c.Attachments[i])
		return true
	})
	return err
}

// noteNewest keeps with a complete record by which one of the API another node has asserted an
// address.
func (r *records) noteNewest(now *state.Container, addr netip.Addr, newest answering.Version) error {
	if now.Phase != state.Added {
		return nil
	}
	_, err := r.Store.Update(now.Key(), func(c *state.Container) bool {
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

// lostWhy returns the reason why the record's pod lost its addresses, or an empty
// string while it holds them.
func (r *records) lostWhy(ctx context.Context, record *state.Container) (string, error) {
	for _, addr := range record.Addresses() {
		err := r.Pods.Holds(ctx, record.Pod, addr)
		if errors.Is(err, podinfo.ErrNotHolder) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
	}
	alive, err := r.Pods.Alive(ctx, record.Pod)
	if err == nil && !alive {
		return podGone, nil
	}
	return "", err
}

// tellPod records an event about a pod; action names the agent's action. It does not block.
func (r *records) tellPod(pod api.Pod, e event.Event, action string) {
	if r.Events != nil {
		e.Record(r.Events, &corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
		}, nil, action)
	}
}

// wiring says which program makes the interface of an attachment.
func wiring(record *state.Container, i int) nettype.Wiring {
	return nettype.Of(record.Attachments[i].Driver).Wired
}

// ofCaller returns whether another program than the agent runs the record's plugins.
func ofCaller(record *state.Container) bool {
	return wiring(record, 0) == nettype.ByCaller
}

func addressesOf(record *state.Container) []netip.Addr {
	var all []netip.Addr
	for _, addr := range record.Addresses() {
		all = append(all, addr.Address)
	}
	return all
}

// listed lists addresses in a sentence.
func listed(addrs []netip.Addr) string {
	all := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		all = append(all, addr.String())
	}
	return strings.Join(all, ", ")
}

func interfaceNames(record *state.Container) []string {
	var all []string
	for _, attachment := range record.Attachments {
		all = append(all, attachment.IfName)
	}
	return all
}

// hasScarce returns whether the record has resources that another pod may get when its pod is gone:
// floating IPs or host ports.
func hasScarce(record *state.Container) bool {
	return len(record.Addresses()) > 0 || len(record.HostPorts) > 0
}

func has(attachment *state.Attachment, addr netip.Addr) bool {
	return slices.ContainsFunc(attachment.Addresses, func(a api.Address) bool { return a.Address == addr })
}

// asserted returns whether another node has asserted an address of the record by a newer record of
// the API. Until the API has said that it is this node's, or the pod is gone, the answerer alone
// opens it.
func asserted(record *state.Container) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(record.Held)), isAsserted)
}

// By its own version the pod's twin has taken the address over.
func isAsserted(held state.Held) bool { return held.Newest > 0 && held.Newest >= held.Version }
