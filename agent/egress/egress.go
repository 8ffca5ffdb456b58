// SPDX-License-Identifier: Apache-2.0

// Package egress has the ordinary pods of a node leave the cluster with an address of the node, or
// from its ports of an IPClaim's, as its NodeAssignment says. Pods of a namespace with a claim of
// which the node has no ports do not leave. It knows the node's pods from ADD on, so a pod's first
// packet is right; and it follows the labels of namespaces. It gives the node no address: package
// assignment does, and while the node does not have one, the pods do not leave. While the API
// server has not told the NodeAssignment, the claims and the namespaces since the start, the kernel
// stays as it is, and ordinary pods wait. When the agent ends, all stays.
package egress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/egress"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// EventEgressClosed (Warning on Pod): the pod cannot reach what is outside the cluster, because its
// node does not have the address that the pod leaves with. Do: see
// docs/how-to/egress.md#when-pods-do-not-leave.
const EventEgressClosed = "EgressClosed"

// EventEgressPortsExhausted (Warning on IPClaim): the pods of a node have as many connections to
// one destination and port as the node has ports of the claim's address, and can begin no more to
// it. Do: see docs/how-to/egress.md#one-address-of-a-namespace.
const EventEgressPortsExhausted = "EgressPortsExhausted"

const (
	// resync is how often the kernel is compared: another program may change it.
	resync = time.Minute
	// settle is the wait after a change, for others to come.
	settle = 100 * time.Millisecond
	// patience limits the wait of an ADD for the NodeAssignment and the namespaces.
	patience = 10 * time.Second
)

// Options of an Egress.
type Options struct {
	// Assignment returns the node's NodeAssignment, nil where there is none, and false while that is
	// not known.
	Assignment func() (assignment *v1alpha1.NodeAssignment, known bool)
	// Claims is an informer of the IPClaims by which pods leave. Run runs it.
	Claims cache.SharedIndexInformer
	// Namespaces is an informer of all namespaces, which its owner runs.
	Namespaces cache.SharedIndexInformer
	// Namespace reads one from the API server.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// Sends asks the API server whether the node may send from the ports of an address that begin with
	// first.
	Sends func(ctx context.Context, addr netip.Addr, first uint16) (bool, error)
	// Followed is told that the kernel follows another NodeAssignment than before. It does not block.
	Followed func()
	Kernel   Kernel
	// Events and Metrics may be nil.
	Events  event.Recorder
	Metrics *Metrics
}

// Kernel changes the kernel. Methods block for it only, and are called one at a time.
type Kernel interface {
	// Link returns the index of the link that has the node's address of a pool, 0 where the node does
	// not have it now.
	Link(way egress.Way, vlan int) (int, error)
	// Put, Pods, EndConnections and Full are package cni/egress's, and EndOf is conntrack.EndOf.
	Put(all []egress.Way) error
	Pods() (map[netip.Addr]string, error)
	EndConnections(all []egress.Way, pods, former []netip.Addr) error
	Full(all []egress.Way) ([]int, error)
	EndOf(addrs []netip.Addr) error
}

// Pods are the node's.
type Pods interface {
	// OrdinaryPods lists the containers of pods without floating IPs whose network is complete and
	// does not end. It does not block.
	OrdinaryPods() []Pod
	// WaitForPods returns true when OrdinaryPods is complete, and false where the context ends before.
	WaitForPods(ctx context.Context) bool
}

// Egress keeps the kernel as the NodeAssignment, the namespaces and the pods say. Its methods are
// safe in parallel.
type Egress struct {
	Options

	soon wakeup.Signal
	// ready is closed when everything is known.
	ready chan struct{}
	pods  Pods

	// mu makes changes of the kernel one after another, and guards the fields below.
	mu sync.Mutex
	// adding are the containers of ADDs that are not complete, by their ID.
	adding map[string]Pod
	// read are namespaces that were read ahead of the watch.
	read map[string]*corev1.Namespace
	// put is what the kernel last got, and known says that it is known.
	put   []pool
	known bool
	// follows is the NodeAssignment that the kernel follows, and full has the claims of whose ports
	// too few are free.
	follows types.UID
	at      int64
	full    map[string]bool
}

// New returns an Egress that is idle until Run.
func New(o Options) *Egress {
	return &Egress{Options: o, soon: wakeup.New(), ready: make(chan struct{}), adding: map[string]Pod{}, read: map[string]*corev1.Namespace{}}
}

// Soon has all compared soon: the NodeAssignment, the node's addresses or its pods changed.
func (e *Egress) Soon() { e.soon.Send() }

// Run keeps the kernel as it must be until the context ends. Its caller runs it in the network
// namespace of the node.
func (e *Egress) Run(ctx context.Context, pods Pods) error {
	e.pods = pods
	registration, err := e.Namespaces.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { e.Soon() }, DeleteFunc: func(any) { e.Soon() },
		UpdateFunc: func(was, is any) {
			before, ok := was.(*corev1.Namespace)
			after, ok2 := is.(*corev1.Namespace)
			if !ok || !ok2 || !maps.Equal(before.Labels, after.Labels) {
				e.Soon()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("prepare the watch of namespaces: %w", err)
	}
	if _, err := e.Claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { e.Soon() }, DeleteFunc: func(any) { e.Soon() },
		UpdateFunc: func(was, is any) {
			before, ok := was.(*v1alpha1.IPClaim)
			after, ok2 := is.(*v1alpha1.IPClaim)
			if !ok || !ok2 || before.UID != after.UID || before.Generation != after.Generation {
				e.Soon()
			}
		},
	}); err != nil {
		return fmt.Errorf("prepare the watch of IPClaims: %w", err)
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { e.Claims.RunWithContext(ctx) })
	for !e.isKnown(registration) {
		select {
		case <-ctx.Done():
			return nil
		case <-e.soon:
		case <-time.After(settle):
		}
	}
	if !pods.WaitForPods(ctx) {
		return nil
	}
	close(e.ready)
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for {
		if err := e.sync(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot have pods leave with addresses of the node, will try again")
			time.AfterFunc(time.Second, e.Soon)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := e.countPorts(); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot count the ports by which pods leave")
			}
			continue
		case <-e.soon:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

func (e *Egress) isKnown(namespaces cache.ResourceEventHandlerRegistration) bool {
	_, known := e.Assignment()
	return known && namespaces.HasSynced() && e.Claims.HasSynced()
}

// claims returns the IPClaims by which pods leave, the oldest first.
func (e *Egress) claims() (all []*v1alpha1.IPClaim) {
	for _, object := range e.Claims.GetStore().List() {
		if claim, ok := object.(*v1alpha1.IPClaim); ok {
			all = append(all, claim)
		}
	}
	slices.SortFunc(all, (*v1alpha1.IPClaim).CompareAge)
	return all
}

// errNotKnown is of an ADD that came before everything was known.
var errNotKnown = errors.New("the agent has not yet read from the API server which pods leave the cluster with an address of the node")

// Attach comes in the ADD of an ordinary pod when its network is complete, and before anything runs
// in it. When it returns nil, its packets leave as they must, or do not leave. It blocks for the
// API server and the kernel.
func (e *Egress) Attach(ctx context.Context, pod Pod) error {
	select {
	case <-e.ready:
	case <-ctx.Done():
		return errors.Join(errNotKnown, context.Cause(ctx))
	case <-time.After(patience):
		return errNotKnown
	}
	if idle := e.note(pod); idle {
		return nil
	}
	if err := e.readNamespace(ctx, pod.Namespace); err != nil {
		return err
	}
	for until := time.Now().Add(patience); ; {
		closed, err := e.attach(ctx, pod)
		if err != nil {
			return err
		}
		// The node gets ports with its first pod of the namespace.
		waits := slices.ContainsFunc(closed, func(p pool) bool { return p.claim != nil }) && time.Now().Before(until)
		if !waits {
			for _, p := range closed {
				e.tellClosed(pod, p)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(settle):
		}
	}
}

// attach has the packets of a pod leave, and returns the pools or claims by which they cannot.
func (e *Egress) attach(ctx context.Context, pod Pod) (closed []pool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.syncLocked(ctx); err != nil {
		return nil, err
	}
	for _, p := range e.put {
		for _, addr := range pod.Addresses {
			if !slices.Contains(p.way.Pods, addr) {
				continue
			}
			if err := e.Kernel.EndOf([]netip.Addr{addr}); err != nil {
				return nil, err
			}
			if !p.way.IsOpen() {
				closed = append(closed, p)
			}
		}
	}
	return closed, nil
}

// note remembers the pod of an ADD, and returns true where no pool has an egress here.
func (e *Egress) note(pod Pod) (idle bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adding[pod.ID] = pod
	assignment, _ := e.Assignment()
	return e.known && len(e.put) == 0 && len(e.Claims.GetStore().ListKeys()) == 0 && (assignment == nil || len(assignment.Spec.Egress)+len(assignment.Spec.Claims) == 0)
}

// Attached says that the ADD of a container is complete: OrdinaryPods lists it.
func (e *Egress) Attached(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.adding, id)
}

// Detached says that the network of a container ends.
func (e *Egress) Detached(id string) {
	e.Attached(id)
	e.Soon()
}

func (e *Egress) tellClosed(pod Pod, p pool) {
	if e.Events == nil {
		return
	}
	of := "IPPool"
	if p.claim != nil {
		of = "IPClaim"
	}
	why := fmt.Sprintf("its node does not have its address of %s %s; kubectl describe node says why", of, p.name)
	switch {
	case p.claim != nil && p.way.Address.IsValid() && p.way.Number > 0:
		why = fmt.Sprintf("its node does not have its own address of the pool of IPClaim %s; kubectl describe node says why", p.name)
	case p.claim != nil && !p.way.Address.IsValid():
		why = fmt.Sprintf("its node has no ports of an address of IPClaim %s; kubectl describe ipclaim says why", p.name)
	case p.way.Number == 0:
		why = fmt.Sprintf("its node has the egress of %d other networks of the family, and can have no more: it is for %s %s", egress.Ways, of, p.name)
	}
	regarding := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}}
	event.Warning(EventEgressClosed, "The pod cannot reach what is outside the cluster: "+why).Record(e.Events, regarding, nil, "Leave")
}

// readNamespace reads a namespace from the API server: the watch may be behind its creation, and
// its labels.
func (e *Egress) readNamespace(ctx context.Context, name string) error {
	namespace, err := e.Namespace(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil // The pod ends.
	}
	if err != nil {
		return fmt.Errorf("read the labels of namespace %s: %w", name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.read[name] = namespace
	return nil
}

// labelsOf returns the labels of a namespace by the newer of what the watch told and what was read.
func (e *Egress) labelsOf(name string) (labels.Set, bool) {
	object, exists, err := e.Namespaces.GetStore().GetByKey(name)
	told, ok := object.(*corev1.Namespace)
	read := e.read[name]
	if err != nil || !exists || !ok {
		if read == nil {
			return nil, false
		}
		return read.Labels, true
	}
	if read != nil {
		if order, err := resourceversion.CompareResourceVersion(told.ResourceVersion, read.ResourceVersion); err == nil && order < 0 {
			return read.Labels, true
		}
		delete(e.read, name)
	}
	return told.Labels, true
}

func (e *Egress) sync(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.syncLocked(ctx)
}

func (e *Egress) syncLocked(ctx context.Context) error {
	assignment, known := e.Assignment()
	if !known {
		return errNotKnown
	}
	var adding []Pod
	for _, id := range slices.Sorted(maps.Keys(e.adding)) {
		adding = append(adding, e.adding[id])
	}
	pods := append(e.pods.OrdinaryPods(), adding...)
	if assignment == nil {
		assignment = &v1alpha1.NodeAssignment{}
	}
	claims, unreadable := claimsOf(assignment.Spec.Claims, e.claims(), pods)
	wanted, err := poolsOf(assignment.Spec.Egress, e.put, claims...)
	unreadable = errors.Join(unreadable, err)
	before, err := e.leaving()
	if err != nil {
		return err
	}
	if len(wanted) == 0 && len(before) == 0 && e.known && len(e.put) == 0 {
		clear(e.read)
		e.Metrics.set(nil, nil)
		e.follow(assignment)
		return unreadable
	}
	if err := e.askFor(ctx, wanted); err != nil {
		return err
	}
	wanted = choose(wanted, pods, e.labelsOf)
	var ways []egress.Way
	var errs []error
	for i := range wanted {
		w := &wanted[i].way
		if w.Address.IsValid() && w.Number > 0 {
			if w.Link, err = e.Kernel.Link(*w, wanted[i].vlan); err != nil {
				errs = append(errs, err)
			}
		}
		ways = append(ways, *w)
	}
	e.Metrics.set(wanted, pods)
	if err := e.Kernel.Put(ways); err != nil {
		return errors.Join(append(errs, err, unreadable)...)
	}
	former := e.put
	e.put, e.known = wanted, true
	changed, formerly := changes(before, former, wanted)
	if len(changed) > 0 {
		klog.FromContext(ctx).V(2).Info("Pods leave the cluster otherwise than before", "addresses", changed)
	}
	// Pods of ADDs have no connections yet.
	changed = slices.DeleteFunc(changed, func(addr netip.Addr) bool {
		return slices.ContainsFunc(adding, func(pod Pod) bool { return slices.Contains(pod.Addresses, addr) })
	})
	if err := e.Kernel.EndConnections(ways, changed, formerly); err != nil {
		return errors.Join(append(errs, err, unreadable)...)
	}
	e.follow(assignment)
	return errors.Join(append(errs, unreadable)...)
}

// askFor takes the ports from claims from which the node does not send yet, and may not begin to by
// the record: the NodeAssignment may be older.
func (e *Egress) askFor(ctx context.Context, wanted []pool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i := range wanted {
		w := &wanted[i]
		if w.claim == nil || !w.way.Address.IsValid() || slices.ContainsFunc(e.put, func(p pool) bool { return p.name == w.name && p.way.String() == w.way.String() }) {
			continue
		}
		sends, err := e.Sends(ctx, w.way.Address, w.way.Ports.First)
		if err != nil {
			return fmt.Errorf("ask whether the node sends from %s: %w", &w.way, err)
		}
		if !sends {
			w.way.Address = netip.Addr{}
		}
	}
	return nil
}

// follow notes the NodeAssignment that the kernel follows.
func (e *Egress) follow(assignment *v1alpha1.NodeAssignment) {
	if e.follows != assignment.UID || e.at != assignment.Generation {
		e.follows, e.at = assignment.UID, assignment.Generation
		e.Followed()
	}
}

// Follows returns whether the kernel follows a NodeAssignment. It blocks for the kernel.
func (e *Egress) Follows(assignment *v1alpha1.NodeAssignment) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.follows == assignment.UID && e.at == assignment.Generation
}

// nearlyAll of the ports of a block are in use, when the kernel finds none for a new connection.
func nearlyAll(used, all int) bool { return used*20 >= all*19 }

// countPorts tells of claims of whose ports nearly all are in use for one destination.
func (e *Egress) countPorts() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	full, blocks := map[string]bool{}, slices.DeleteFunc(slices.Clone(e.put), func(p pool) bool { return p.claim == nil || !p.way.IsOpen() })
	if len(blocks) > 0 {
		var ways []egress.Way
		for _, p := range blocks {
			ways = append(ways, p.way)
		}
		used, err := e.Kernel.Full(ways)
		if err != nil {
			return err
		}
		for i, p := range blocks {
			if !nearlyAll(used[i], int(p.claim.PortsPerNode)) {
				continue
			}
			key := p.name + " " + p.way.Address.String()
			if full[key] = true; !e.full[key] && e.Events != nil {
				regarding := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.claim.Namespace, Name: p.claim.Name, UID: p.claim.UID}}
				event.Warning(EventEgressPortsExhausted, fmt.Sprintf("Pods of a node have %d connections to one destination and port, which is all that a node can have by %s.", used[i], p.way.Address)).
					Record(e.Events, regarding, nil, "Leave")
			}
		}
	}
	e.full = full
	e.Metrics.setFull(len(full))
	return nil
}

// leaving returns the addresses of pods that leave by a way, as the kernel has it.
func (e *Egress) leaving() (map[netip.Addr]string, error) {
	if e.known {
		all := map[netip.Addr]string{}
		for _, p := range e.put {
			for _, addr := range p.way.Pods {
				all[addr] = p.way.String()
			}
		}
		return all, nil
	}
	return e.Kernel.Pods()
}

// changes returns the pods that leave with another address than before, and the addresses that pods
// left with. After a start the kernel says which pods left, and not with which address. Pure.
func changes(before map[netip.Addr]string, former, now []pool) (pods, formerly []netip.Addr) {
	after := map[netip.Addr]string{}
	for _, p := range now {
		formerly = append(formerly, p.way.Address)
		for _, addr := range p.way.Pods {
			after[addr] = p.way.String()
		}
	}
	for _, p := range former {
		formerly = append(formerly, p.way.Address)
	}
	for addr, how := range before {
		if after[addr] != how && (former != nil || after[addr] == "") {
			pods = append(pods, addr)
		}
	}
	for addr := range after {
		if _, ok := before[addr]; !ok {
			pods = append(pods, addr)
		}
	}
	slices.SortFunc(pods, netip.Addr.Compare)
	return pods, formerly
}
