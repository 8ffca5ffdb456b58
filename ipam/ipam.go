// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assigner"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// ipWatch follows the API server.
type ipWatch interface {
	// WaitForSync waits until the book has seen all existing objects and the pools are complete. It
	// returns false if ctx ends first.
	WaitForSync(ctx context.Context) bool
	// Claim returns nil if there is no such claim. The caller must not modify it.
	Claim(namespace, name string) *v1alpha1.IPClaim
}

// externalAssigner attaches addresses to nodes. Attach blocks and is idempotent. Safe
// for concurrent use.
type externalAssigner interface {
	Attach(ctx context.Context, a assigner.Assignment) error
}

// state is one compilation of the pools. Immutable.
type state struct {
	snapshot *pools.Snapshot
	view     *allocator.View
	// everywhere is the reach of all pools.
	everywhere *pools.Reach
	// capped says that some pool has a cap per namespace.
	capped bool
}

// IPAM gives addresses to pods. Safe for concurrent use.
type IPAM struct {
	store    *store.Store
	watch    ipWatch
	pools    *pools.Source
	assigner externalAssigner // nil: none
	book     *allocator.Allocator
	own      *view.View // nil: the caller of New runs the view
	feed     *feed      // nil: the view has FloatingIPs

	state     atomic.Pointer[state] // nil until synced
	known     atomic.Pointer[KnownPods]
	deletions *deletions

	mu        sync.Mutex
	listeners []func(Change)
}

// NewForConfig returns an IPAM on the API server of config with its own view, for a process that
// needs no other view of Berth's objects. The process keeps FloatingIPs only in the book. If
// assigner is nil, there is no external assigner. The IPAM does nothing until Run.
func NewForConfig(config *rest.Config, assigner externalAssigner) (*IPAM, error) {
	api, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	own, err := view.NewWithoutFloatingIPs(api)
	if err != nil {
		return nil, err
	}
	i, err := New(own, store.New(api.FloatingIPs), assigner)
	if err != nil {
		return nil, err
	}
	i.own, i.feed = own, newFeed(i, api.FloatingIPs)
	return i, nil
}

// New returns an IPAM on a view that the caller runs. It writes to ips. If assigner is nil, there
// is no external assigner. The IPAM gives no addresses until Run.
func New(seen *view.View, ips *store.Store, assigner externalAssigner) (*IPAM, error) {
	i := &IPAM{store: ips, pools: seen.Pools, assigner: assigner}
	i.book = allocator.New(recordedPods{&i.known})
	i.deletions = newDeletions(i.cooldown, i.rested)
	var err error
	if i.watch, err = store.NewWatch(seen, i.handler()); err != nil {
		return nil, err
	}
	return i, nil
}

// OnChange adds a function that is called with every change that may help waiting
// pods. It is called without a lock, from the goroutine that saw the change, so calls
// may overlap. It must not block.
func (i *IPAM) OnChange(listener func(Change)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listeners = append(i.listeners, listener)
}

func (i *IPAM) tell(change Change) {
	i.mu.Lock()
	listeners := i.listeners
	i.mu.Unlock()
	for _, listener := range listeners {
		listener(change)
	}
}

// Run keeps the book up to date until ctx ends. It writes nothing to the API server. It
// blocks.
func (i *IPAM) Run(ctx context.Context) {
	var group sync.WaitGroup
	if i.own != nil {
		group.Go(func() { i.own.Run(ctx) })
		group.Go(func() { i.feed.run(ctx) })
	}
	group.Go(func() { i.deletions.run(ctx) })
	defer group.Wait()
	if !i.watch.WaitForSync(ctx) || i.feed != nil && !cache.WaitFor(ctx, "", i.feed) {
		return
	}
	logger := klog.FromContext(ctx)
	changed := i.pools.Follow()
	for {
		snapshot := i.pools.Snapshot()
		i.setPools(snapshot)
		logger.V(2).Info("Compiled pools", "pools", len(snapshot.Pools()))
		i.deletions.again.Send()
		i.tell(Change{Everything: true})
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// setPools makes the book give addresses of these pools.
func (i *IPAM) setPools(snapshot *pools.Snapshot) {
	i.state.Store(&state{
		snapshot: snapshot, view: i.book.SetPools(allocatorPools(snapshot)), everywhere: snapshot.Everywhere(),
		capped: slices.ContainsFunc(snapshot.Pools(), func(pool *pools.Pool) bool { return pool.MaxPerNamespace > 0 }),
	})
}

func allocatorPools(snapshot *pools.Snapshot) []allocator.Pool {
	var result []allocator.Pool
	for _, pool := range snapshot.Pools() {
		result = append(result, allocator.Pool{
			Name: pool.Name, Ranges: pool.Ranges, Capacity: pool.Ranges.Size(), Disabled: pool.Disabled, MaxPerNamespace: pool.MaxPerNamespace,
		})
	}
	return result
}

func (i *IPAM) handler() store.Handler {
	return store.Handler{
		Observed: i.observed, Reverted: i.observedAt,
		Forgotten: func(ip *v1alpha1.FloatingIP, final bool) {
			if final {
				i.forgotten(ip)
			} else if record, err := recordOf(ip); err == nil {
				i.missed(record)
			}
		},
		ClaimChanged: func(claim *v1alpha1.IPClaim) {
			owner := claimOwner(claim.Namespace, claim.Name, string(claim.UID))
			i.tell(Change{Owner: &owner})
		},
	}
}

// observed brings a new or changed FloatingIP into the book.
func (i *IPAM) observed(ip *v1alpha1.FloatingIP) { i.observe(ip, i.book.Observe) }

// observedAt brings a FloatingIP into the book that the API server had at a version.
func (i *IPAM) observedAt(version uint64, ip *v1alpha1.FloatingIP) {
	i.observe(ip, func(record allocator.Record) (retainedNow bool) { return i.book.ObserveAt(version, record) })
}

func (i *IPAM) observe(ip *v1alpha1.FloatingIP, into func(record allocator.Record) (retainedNow bool)) {
	record, err := recordOf(ip)
	if err != nil {
		// The CRD's validation refuses such objects.
		klog.Background().Error(err, "Ignored a FloatingIP")
		return
	}
	before, known := i.book.Stored(record.Addr)
	if into(record) {
		owner := record.Owner
		i.tell(Change{Owner: &owner, Addr: record.Addr, More: 1})
	}
	if record.TwinUID == "" && before.TwinUID != "" {
		i.tell(Change{Owner: &record.Owner}) // The target of another migration may have waited.
	}
	if record.Cooling && record.NamespaceUID != "" && known && before.Owner != (Owner{}) {
		if pool, ok := i.book.PoolOf(record.Addr); ok {
			i.tell(Change{Pool: pool, Addr: record.Addr, Namespace: before.Owner.Namespace, More: 1})
		}
	}
	if known && before.Owner != (Owner{}) && !before.Owner.SameWorkload(record.Owner) {
		// Another claim took the address over, or its cooldown began: the former owner may get another
		// address.
		i.tell(Change{Owner: &before.Owner, More: 1})
		i.tellShare(record.Addr, before.Owner.Namespace, false)
	}
}

// forgotten removes a deleted FloatingIP from the book. ip is its final state.
func (i *IPAM) forgotten(ip *v1alpha1.FloatingIP) {
	if record, err := recordOf(ip); err == nil {
		i.forget(record, ip.Spec.IsToRest(i.cooldown(ip.Spec.Pool)))
	}
}

// missed removes a FloatingIP from the book whose deletion this process did not see. The address
// does not go into cooldown: its final state is not known, and a process that saw the deletion has
// acted on it.
func (i *IPAM) missed(record allocator.Record) { i.forget(record, false) }

func (i *IPAM) forget(record allocator.Record, rests bool) {
	if i.book.Forget(record.Addr, record.UID, rests) {
		if pool, ok := i.book.PoolOf(record.Addr); ok {
			i.tell(Change{Pool: pool, Addr: record.Addr})
		}
		i.tellShare(record.Addr, record.Owner.Namespace, false)
	}
	if rests {
		var least time.Duration
		if record.LastNode != (allocator.NodeReference{}) || record.Owner.IsNode() && record.Node != "" {
			least = lastnode.Rest
		}
		i.deletions.begin(record.Addr, record.Pool, least)
		i.tellShare(record.Addr, record.Owner.Namespace, false)
	}
	if record.Owner != (Owner{}) {
		// An owner at its limit may get another address now.
		i.tell(Change{Owner: &record.Owner, More: 1})
	}
}

// cooldown returns the cooldown of a pool; 0 if it has none or there is no such pool. Until the
// pools are known, it returns the longest possible time, so that no cooldown ends.
func (i *IPAM) cooldown(pool string) time.Duration {
	state := i.state.Load()
	if state == nil {
		return math.MaxInt64
	}
	if pool := state.snapshot.Named(pool); pool != nil {
		return pool.Cooldown
	}
	return 0
}

// rested frees an address whose cooldown is over.
func (i *IPAM) rested(addr netip.Addr) {
	if i.book.Rested(addr) {
		if pool, ok := i.book.PoolOf(addr); ok {
			i.tell(Change{Pool: pool, Addr: addr})
		}
	}
}

// tellShare tells listeners that a namespace has one address fewer, if the address's pool has a
// cap.
func (i *IPAM) tellShare(addr netip.Addr, namespace string, trial bool) {
	state := i.state.Load()
	if state == nil {
		return
	}
	if pool := state.snapshot.PoolOf(addr); pool != nil && pool.MaxPerNamespace > 0 {
		i.tell(Change{Pool: pool.Name, Namespace: namespace, More: 1, Trial: trial})
	}
}
