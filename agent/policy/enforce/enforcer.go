// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/cluster"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/agent/policy/table"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// objects are what policies see of the cluster; cluster.Cluster is one.
type objects interface {
	policy.Cluster
	Run(ctx context.Context, sink cluster.Sink) error
	Do(f func())
	HasSynced() bool
	Wait(ctx context.Context) error
	Ensure(ctx context.Context, pod types.NamespacedName, uid types.UID) error
	Held() cluster.Held
}

// kernel is what the node's kernel does. Methods block for it and are safe in parallel for
// different namespaces.
type kernel interface {
	// Table returns the table of a network namespace, of the node where the path is empty.
	Table(netns string) Table
	// Find is place.Find.
	Find(netns string, names []string) (place.Place, error)
	// IsNode returns whether the path leads to the namespace of the node.
	IsNode(netns string) (bool, error)
	NodeAddresses() ([]netip.Addr, error)
	// Show is place.Shower.Show.
	Show(bridge string) error
	// Connections is socket.Connections.
	Connections(netns string) ([]socket.Connection, error)
	// EndOf is conntrack.EndOf, on the node.
	EndOf(a netip.Addr) (ended int, err error)
	// DropQueued is rtnl.DropQueued, on the node.
	DropQueued(addresses []netip.Addr) error
	// Close and Open are those of package gate.
	Close(netns string) error
	Open(netns string) error
}

// Table is table.Table. None of the methods but Counters and Adopt is called in parallel.
type Table interface {
	// Apply brings a ruleset into the kernel in one transaction.
	Apply(ctx context.Context, rs *ruleset.Ruleset) error
	// Remove deletes the table, where there is one.
	Remove(ctx context.Context) error
	// Verify returns an error where the kernel does not have what was applied; Apply then replaces
	// all.
	Verify(ctx context.Context) error
	// EndConnections ends the connections of addresses whose first packet what was applied last would
	// drop, and lets those begin again that it would let pass. Each address has the name of its
	// interface in the namespace of a pod.
	EndConnections(ctx context.Context, addresses map[netip.Addr]string) (ended int, err error)
	// Adopt has the kernel track connections that it may not know; what it knows it replaces where
	// asked to.
	Adopt(ctx context.Context, connections []socket.Connection, replace bool) error
	// Counters returns the counters by the names that the rulesets give them.
	Counters(ctx context.Context) (map[string]table.Counter, error)
}

// containers are the containers of the node. Methods are safe in parallel.
type containers interface {
	// Policed lists those whose packets policies concern, and the running pods that have
	// none. It does not block.
	Policed() []Container
	// WaitForPods returns true when Policed is complete, and false where the context ends before.
	WaitForPods(ctx context.Context) bool
}

// Container is a container of a pod with a network of its own, or a pod whose containers are not known.
type Container struct {
	// Pod has the UID of the pod in the API.
	Pod api.Pod
	// ID tells containers apart; empty for a pod whose containers are not known.
	ID string
	// NetNS is the path of its network namespace, empty where that is not known or gone.
	NetNS string
	// Interfaces are the names of its interfaces, in their order.
	Interfaces []string
	Addresses  []netip.Addr
	// Ending says that its addresses may already be another container's.
	Ending bool
	// attaching says that an ADD works on it: its addresses are its own by now.
	attaching bool
	// Foreign says that another program makes its interfaces, when ADD has ended.
	Foreign bool
}

// Options of an Enforcer; Metrics and Events may be nil.
type Options struct {
	Objects objects
	Kernel  kernel
	Events  event.Recorder
	Metrics *Metrics
}

const (
	// recheck is how often the kernel is compared whole, because other programs change it, too.
	recheck = time.Minute
	// patience is how long an ADD waits until the policies are known.
	patience = 30 * time.Second
	// workers is how many tables are written at a time.
	workers = 4
	// Waits after a first failure and at most.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
)

// Enforcer keeps policies in the kernel. Its methods may be called in parallel.
type Enforcer struct {
	Options

	queue workqueue.TypedRateLimitingInterface[string]
	soon  wakeup.Signal
	// started is closed when the containers of the node and the policies were known once.
	started chan struct{}

	// Within Objects.Do:
	index *policy.Index
	// version counts the changes of the index.
	version uint64
	// policies counts those that the index has.
	policies map[types.NamespacedName]bool
	// locals are those that the index has.
	locals map[types.UID]bool

	mu sync.Mutex
	// containers are those of the last listing and those that ADDs have told.
	containers map[string]Container
	// attaching are those that ADDs have told, until a listing that began after their end.
	attaching map[string]Container
	// complete are those of attaching whose ADD has ended.
	complete map[string]bool
	// closed are those of attaching whose gate Prepare has closed.
	closed map[string]bool
	places map[string]place.Place
	// unplaced says that all places are to be found again.
	unplaced bool
	// attached has the identities of pods that have or had a container: what the API says of their
	// addresses is not needed.
	attached map[string]bool
	targets  map[string]*target
	// bridges has why a bridge does not show its packets; nil where it does.
	bridges map[string]error
	// problems has why the policies of a pod are not enforced, by its UID, as an event told it, and
	// policyProblems what is wrong in policies.
	problems       map[types.UID]string
	readings       readings
	policyProblems map[policy.Problem]bool
}

// New returns an Enforcer that is idle until Run.
func New(o Options) *Enforcer {
	e := &Enforcer{
		Options: o, soon: wakeup.New(), started: make(chan struct{}),
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		index:    policy.NewIndex(o.Objects),
		policies: map[types.NamespacedName]bool{}, locals: map[types.UID]bool{},
		containers: map[string]Container{}, attaching: map[string]Container{}, complete: map[string]bool{}, closed: map[string]bool{}, places: map[string]place.Place{}, attached: map[string]bool{},
		targets: map[string]*target{}, readings: readings{past: map[counted]uint64{}}, problems: map[types.UID]string{}, bridges: map[string]error{},
		policyProblems: map[policy.Problem]bool{},
	}
	e.targets[nodeKey] = &target{table: o.Kernel.Table("")}
	return e
}

// Soon has the containers listed again soon; it returns at once.
func (e *Enforcer) Soon() {
	e.soon.Send()
}

// Recheck has all tables compared with the kernel soon; it returns at once.
func (e *Enforcer) Recheck() {
	e.mu.Lock()
	for _, t := range e.targets {
		t.check = true
	}
	e.mu.Unlock()
	e.Soon()
}

// Run follows the cluster and the containers and keeps the kernel as the policies say until the context
// ends. The kernel stays as it is then.
func (e *Enforcer) Run(ctx context.Context, all containers) error {
	stop := context.AfterFunc(ctx, e.queue.ShutDown)
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	failed := make(chan error, 1)
	group.Go(func() { failed <- e.Objects.Run(ctx, &sink{e}) })
	if !all.WaitForPods(ctx) || e.Objects.Wait(ctx) != nil {
		return <-failed
	}
	e.refresh(ctx, all)
	close(e.started)
	klog.FromContext(ctx).Info("Network policies are known", "held", e.Objects.Held())
	for range workers {
		group.Go(func() { e.work(ctx) })
	}
	e.enqueue()
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		select {
		case err := <-failed:
			return err
		case <-ticker.C:
			e.mu.Lock()
			e.unplaced = true
			e.mu.Unlock()
			e.Recheck()
		case <-e.soon:
			e.refresh(ctx, all)
		}
	}
}

// Known returns an error while the policies are not known.
func (e *Enforcer) Known(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.Objects.Wait(ctx); err != nil {
		return err
	}
	select {
	case <-e.started:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the network policies are not known yet: wait for the pods of the node: %w", ctx.Err())
	}
}

// active returns whether there is any policy.
func (e *Enforcer) active() (active bool) {
	e.Objects.Do(func() { active = len(e.policies) > 0 })
	return active
}

// refresh lists the containers and tells the index, and finds the places of those that have
// none.
func (e *Enforcer) refresh(ctx context.Context, all containers) {
	e.mu.Lock()
	ended := slices.Collect(maps.Keys(e.complete))
	e.mu.Unlock()
	e.list(all.Policed(), ended)
	if e.active() {
		e.findPlaces(ctx)
		e.findNode(ctx)
	}
	e.publish()
	e.prune()
	e.showBridges(ctx)
	e.tell(ctx)
}

// list makes these the containers, beside those that ADDs have told. ended are the ADDs that had ended
// when the containers were listed; what the list has of others may be older than what they told.
func (e *Enforcer) list(listed []Container, ended []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ended {
		// Unless there is another ADD by now.
		if e.complete[id] {
			delete(e.attaching, id)
			delete(e.complete, id)
		}
	}
	now := map[string]Container{}
	for _, c := range listed {
		if c.ID != "" {
			e.attached[c.Pod.UID], e.attached[c.Pod.Identity()] = true, true
		}
	}
	pods := map[string]bool{}
	for _, c := range listed {
		pods[c.Pod.UID], pods[c.Pod.Identity()] = true, true
		if c.ID == "" {
			if e.attached[c.Pod.UID] || e.attached[c.Pod.Identity()] {
				continue
			}
			c.ID = unrecordedPrefix + c.Pod.UID
		}
		now[c.ID] = c
	}
	for id, c := range e.attaching {
		pods[c.Pod.UID], pods[c.Pod.Identity()] = true, true
		now[id] = c
	}
	for identity := range e.attached {
		if !pods[identity] {
			delete(e.attached, identity)
		}
	}
	e.containers = now
}

// unrecordedPrefix begins the ID of a pod whose containers are not known.
const unrecordedPrefix = "pod/"

// findPlaces finds the places of containers.
func (e *Enforcer) findPlaces(ctx context.Context) {
	e.mu.Lock()
	var missing []Container
	for id, c := range e.containers {
		if _, known := e.places[id]; c.NetNS != "" && (!known || e.unplaced) {
			missing = append(missing, c)
		}
	}
	e.mu.Unlock()
	again := false
	for _, c := range missing {
		if err := e.findPlace(c); err != nil {
			again = true
			klog.FromContext(ctx).Error(err, "Cannot find where the packets of a pod can be seen, will try again", "pod", klog.KRef(c.Pod.Namespace, c.Pod.Name))
		}
	}
	e.mu.Lock()
	e.unplaced = again
	e.mu.Unlock()
}

// findPlace notes the place of a container. One without a namespace has none.
func (e *Enforcer) findPlace(c Container) error {
	p, err := e.Kernel.Find(c.NetNS, c.Interfaces)
	if err != nil && !isGone(err) {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.places[c.ID] = p
	return nil
}

// findNode tells the index the addresses of the node.
func (e *Enforcer) findNode(ctx context.Context) {
	addresses, err := e.Kernel.NodeAddresses()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find the addresses of the node for its policies, will try again")
		return
	}
	e.Objects.Do(func() {
		e.index.SetNodeAddresses(addresses)
		e.version++
	})
}

// publish tells the index the local pods, and queues all tables. It returns the version that has
// them.
func (e *Enforcer) publish() (version uint64) {
	e.Objects.Do(func() {
		// Within Do, so that an older list never follows a newer one.
		e.mu.Lock()
		locals := localsOf(e.containers, e.places)
		e.mu.Unlock()
		now := map[types.UID]bool{}
		for _, l := range locals {
			now[l.UID] = true
		}
		for uid := range e.locals {
			if !now[uid] {
				e.index.DeleteLocal(uid)
			}
		}
		for _, l := range locals {
			e.index.SetLocal(l)
		}
		e.locals = now
		e.version++
		version = e.version
	})
	e.enqueue()
	return version
}

// localsOf joins the containers of each pod. An address is that of the container that lives; of a
// pod whose containers are not known only where no other has it.
func localsOf(all map[string]Container, places map[string]place.Place) []policy.Local {
	order := make([]Container, 0, len(all))
	for _, c := range all {
		order = append(order, c)
	}
	slices.SortFunc(order, func(a, b Container) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.ID, b.ID)) })
	taken := map[netip.Addr]string{}
	position := map[string]int{}
	var locals []policy.Local
	for _, c := range order {
		i, known := position[c.Pod.UID]
		if !known {
			i = len(locals)
			position[c.Pod.UID] = i
			locals = append(locals, policy.Local{NamespacedName: types.NamespacedName{Namespace: c.Pod.Namespace, Name: c.Pod.Name}, UID: types.UID(c.Pod.UID)})
		}
		for _, a := range c.Addresses {
			if _, has := taken[a]; !has {
				taken[a] = c.Pod.UID
				locals[i].Addresses = append(locals[i].Addresses, a)
			}
		}
		locals[i].Direct = append(locals[i].Direct, places[c.ID].Direct...)
		locals[i].Seen = append(locals[i].Seen, places[c.ID].Bridged...)
	}
	for i := range locals {
		slices.SortFunc(locals[i].Addresses, netip.Addr.Compare)
		slices.SortFunc(locals[i].Seen, netip.Addr.Compare)
		slices.Sort(locals[i].Direct)
		locals[i].Direct = slices.Compact(locals[i].Direct)
	}
	return locals
}

func uidOf(c Container) types.UID { return types.UID(c.Pod.UID) }

// rank says whose an address is that several containers have: the lowest one's.
func (c Container) rank() int {
	switch {
	case strings.HasPrefix(c.ID, unrecordedPrefix):
		return 3
	case c.Ending:
		return 2
	case c.attaching:
		return 0
	default:
		return 1
	}
}
