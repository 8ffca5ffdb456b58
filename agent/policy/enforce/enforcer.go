// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// objects are the objects of the cluster that policies see; cluster.Cluster implements it.
type objects interface {
	policy.Cluster
	Run(ctx context.Context, sink cluster.Sink) error
	Do(f func())
	HasSynced() bool
	Wait(ctx context.Context) error
	Ensure(ctx context.Context, pod types.NamespacedName, uid types.UID) error
	Held() cluster.Held
	Unserved() error
}

// Table is implemented by table.Table. Apply, Remove and Verify are called one at a time. Counters,
// Adopt and EndConnections are called in parallel to any method.
type Table interface {
	// Apply brings a ruleset into the kernel in one transaction.
	Apply(ctx context.Context, rs *ruleset.Ruleset) error
	// Remove deletes the table, if there is one.
	Remove(ctx context.Context) error
	// Verify returns an error if the kernel's table differs from the applied ruleset; the next Apply
	// then replaces the whole table.
	Verify(ctx context.Context) error
	// EndConnections ends the connections of addresses whose first packet the ruleset would drop, and
	// lets ended connections continue whose first packet it would accept. It returns how many it
	// ended, and how many are ended now. In the namespace of a pod each address has the name of its
	// interface.
	EndConnections(ctx context.Context, rs *ruleset.Ruleset, addresses map[netip.Addr]string) (ended, all int, err error)
	// Adopt makes the kernel track connections that it may not know, and replaces known connections if
	// replace is true.
	Adopt(ctx context.Context, connections []socket.Connection, replace bool) error
	// Counters returns the counters by their names in the rulesets.
	Counters(ctx context.Context) (map[string]ruleset.Count, error)
}

// containers are the containers of the node. Methods are safe in parallel.
type containers interface {
	// Policed lists the containers whose packets policies concern, and the running pods without known
	// containers. It does not block.
	Policed() []Container
	// WaitForPods returns true when Policed is complete, and false if the context ends before.
	WaitForPods(ctx context.Context) bool
}

// Options of an Enforcer; Metrics and Events may be nil.
type Options struct {
	// Pods says which pods policies govern.
	Pods    Pods
	Objects objects
	Kernel  Kernel
	// Backend is the backend of Kernel, for messages.
	Backend Backend
	Events  event.Recorder
	Metrics *Metrics
}

const (
	// recheck is how often the whole kernel state is compared, because other programs change it, too.
	recheck = time.Minute
	// patience is how long an ADD waits until the policies are known.
	patience = 30 * time.Second
	// workers is how many tables are written at a time, and how many sweeps run at a time.
	workers = 4
	// The first and the longest wait after a failure.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
)

// Enforcer keeps policies in the kernel. Its methods may be called in parallel.
type Enforcer struct {
	Options

	// queue has the targets to write, sweeps the targets whose connections to check.
	queue, sweeps workqueue.TypedRateLimitingInterface[string]
	soon          wakeup.Signal
	// lookSoon calls Soon for places that were not found.
	lookSoon *time.Timer
	// started is closed when the containers of the node and the policies are known for the first time.
	started chan struct{}

	// Within Objects.Do:
	index *policy.Index
	// version counts the changes of the index.
	version uint64

	// guarded are the ports that the node guards, nil if not known. Only the worker that writes the
	// node's table uses it.
	guarded *[]place.Port

	mu sync.Mutex
	// node is the table of the node.
	node *target
	// containers has the containers of the node by their IDs, each from its first ADD or listing until
	// its table is removed.
	containers map[string]*container
	// recorded has the identities of pods that have or had a container: their addresses in the API
	// are not needed.
	recorded map[string]bool
	// bridges has the error that keeps a bridge from showing its packets; nil if it shows them.
	bridges map[string]error
	// problems has the reported problems of policies.
	problems map[policy.Problem]bool
	readings readings
}

// New returns an Enforcer that is idle until Run.
func New(o Options) *Enforcer {
	e := &Enforcer{
		Options: o, soon: wakeup.New(), started: make(chan struct{}),
		queue: newQueue(), sweeps: newQueue(),
		index: policy.NewIndex(o.Objects),
		node:  &target{table: o.Kernel.Table("")}, containers: map[string]*container{}, recorded: map[string]bool{},
		bridges: map[string]error{}, problems: map[policy.Problem]bool{}, readings: readings{past: map[counted]uint64{}},
	}
	e.index.Told = e.told
	e.lookSoon = time.AfterFunc(recheck, e.Soon)
	e.lookSoon.Stop()
	return e
}

// told queues the tables after a change of the cluster. After a change of a policy it also makes
// Run list the containers again, because the places of pods are not known while there is no policy.
// It is called within Objects.Do.
func (e *Enforcer) told(ofPolicy bool) {
	if ofPolicy {
		e.Soon()
	}
	e.version++
	e.enqueue()
}

func newQueue() workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
}

// Soon makes Run list the containers again soon; it returns at once.
func (e *Enforcer) Soon() {
	e.soon.Send()
}

// Recheck makes Run compare all tables with the kernel soon; it returns at once.
func (e *Enforcer) Recheck() {
	e.mu.Lock()
	for _, t := range e.targets() {
		t.check = true
	}
	e.mu.Unlock()
	e.Soon()
}

// Run follows the cluster and the containers, and keeps the policies in the kernel until the
// context ends. Then the kernel stays unchanged.
func (e *Enforcer) Run(ctx context.Context, all containers) error {
	stop := context.AfterFunc(ctx, func() { e.queue.ShutDown(); e.sweeps.ShutDown() })
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	failed := make(chan error, 1)
	group.Go(func() { failed <- e.Objects.Run(ctx, e.index) })
	if !all.WaitForPods(ctx) || e.Objects.Wait(ctx) != nil {
		return <-failed
	}
	e.refresh(ctx, all)
	close(e.started)
	klog.FromContext(ctx).Info("Network policies are known", "held", e.Objects.Held())
	for range workers {
		group.Go(func() { work(ctx, e.queue, e.write) })
		group.Go(func() { work(ctx, e.sweeps, e.sweep) })
	}
	e.enqueue()
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		select {
		case err := <-failed:
			return err
		case <-ticker.C:
			e.misplace()
			e.Recheck()
		case <-e.soon:
			e.refresh(ctx, all)
		}
	}
}

var errNotKnown = errors.New("the network policies are not known yet")

func (e *Enforcer) hasStarted() bool {
	select {
	case <-e.started:
		return true
	default:
		return false
	}
}

// Ready returns an error while the policies are not known, or not in the kernel of the node. It
// does not block.
func (e *Enforcer) Ready() error {
	if !e.hasStarted() {
		return errNotKnown
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.node.err; err != nil {
		return fmt.Errorf("the network policies in the kernel are not up to date: %w", err)
	}
	return nil
}

func (e *Enforcer) known(ctx context.Context) error {
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

func (e *Enforcer) active() (active bool) {
	e.Objects.Do(func() { active = e.index.HasPolicies() })
	return active
}

// refresh lists the containers, finds missing places and updates the index.
func (e *Enforcer) refresh(ctx context.Context, all containers) {
	e.settle()
	e.list(all.Policed())
	// Even without any policy: the first policy must hold for the node's addresses at once.
	e.findNode(ctx)
	if e.active() {
		e.findPlaces(ctx)
	}
	e.publish()
	e.ensureTargets()
	e.showBridges(ctx)
	e.tell(ctx)
}

func (e *Enforcer) findNode(ctx context.Context) {
	own, dns, err := e.Kernel.NodeAddresses()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find the addresses of the node for its policies, will try again")
		return
	}
	e.Objects.Do(func() {
		e.index.SetNodeAddresses(own, dns)
		e.version++
	})
}

// publish updates the local pods in the index, and queues all tables. It returns the index version
// with these pods.
func (e *Enforcer) publish() (version uint64) {
	e.Objects.Do(func() {
		// Within Do, so that an older list never follows a newer one.
		e.mu.Lock()
		locals := localsOf(maps.Values(e.containers))
		e.mu.Unlock()
		e.index.SetLocals(locals)
		e.version++
		version = e.version
	})
	e.enqueue()
	return version
}
