// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

// Change says what came free, for those who wait for it.
type Change struct {
	// Pool got a free address; empty where only Owner or everybody is concerned.
	Pool string
	// Owner got back an address that was retained for it.
	Owner *Owner
	// Everything: pools changed or the book has just been read.
	Everything bool
}

// ipStore is how FloatingIPs are written. Each call is one request, blocking,
// safe in parallel.
type ipStore interface {
	// Claim fails with store.ErrTaken if the address has an object.
	Claim(ctx context.Context, ip *v1alpha1.FloatingIP) (*v1alpha1.FloatingIP, error)
	// Update and Delete fail with store.ErrChanged if the object is not as seen.
	Update(ctx context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error)
	Delete(ctx context.Context, seen *v1alpha1.FloatingIP) error
	Get(ctx context.Context, name string) (*v1alpha1.FloatingIP, error)
}

// ipWatch follows the API server.
type ipWatch interface {
	Run(ctx context.Context)
	WaitForSync(ctx context.Context) bool
	Pools() []*v1alpha1.IPPool
}

// IPAM gives addresses to pods. Safe for concurrent use.
type IPAM struct {
	store ipStore
	watch ipWatch
	book  *allocator.Allocator

	snapshot     atomic.Pointer[pools.Snapshot] // nil until synced
	poolsChanged chan struct{}

	mu        sync.Mutex
	listeners []func(Change)
}

// NewForConfig returns an IPAM on the API server of config. It does nothing
// until Run.
func NewForConfig(config *rest.Config) (*IPAM, error) {
	api, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	i := &IPAM{
		store:        store.New(api.FloatingIPs),
		book:         allocator.New(),
		poolsChanged: make(chan struct{}, 1),
	}
	if i.watch, err = store.NewWatch(api, i.handler()); err != nil {
		return nil, err
	}
	return i, nil
}

// OnChange adds a function that is called when something came free: serially
// with others, from the goroutine that saw it, without a lock. It must not
// block.
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

// Run follows the API server until ctx ends. It blocks.
func (i *IPAM) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { i.watch.Run(ctx) })
	defer group.Wait()
	if !i.watch.WaitForSync(ctx) {
		return
	}
	logger := klog.FromContext(ctx)
	for {
		snapshot := pools.Compile(i.watch.Pools())
		i.book.SetPools(allocatorPools(snapshot))
		i.snapshot.Store(snapshot)
		logger.V(2).Info("Compiled pools", "pools", len(snapshot.Pools()))
		i.tell(Change{Everything: true})
		select {
		case <-ctx.Done():
			return
		case <-i.poolsChanged:
		}
	}
}

func allocatorPools(snapshot *pools.Snapshot) []allocator.Pool {
	var result []allocator.Pool
	for _, pool := range snapshot.Pools() {
		p := allocator.Pool{Name: pool.Name, Capacity: pool.Capacity(), Disabled: pool.Disabled}
		for _, r := range pool.Ranges {
			p.Ranges = append(p.Ranges, allocator.Range{First: r.First, Last: r.Last})
		}
		result = append(result, p)
	}
	return result
}

func (i *IPAM) handler() store.Handler {
	return store.Handler{
		PoolsChanged: func() {
			select {
			case i.poolsChanged <- struct{}{}:
			default:
			}
		},
		Observed: func(ip *v1alpha1.FloatingIP) {
			record, err := recordOf(ip)
			if err != nil {
				// The CRD's validation admits no such object.
				klog.Background().Error(err, "Ignored a FloatingIP")
				return
			}
			if i.book.Observe(record) {
				owner := record.Owner
				i.tell(Change{Owner: &owner})
			}
		},
		Forgotten: func(ip *v1alpha1.FloatingIP) {
			addr, err := v1alpha1.AddrOf(ip.Name)
			if err != nil {
				return
			}
			if i.book.Forget(addr, string(ip.UID)) {
				if pool, ok := i.book.PoolOf(addr); ok {
					i.tell(Change{Pool: pool})
				}
			}
		},
	}
}

// Candidates says what can serve a request now. It fails with ErrNotSynced, or
// with a *ShortageError if nothing can.
func (i *IPAM) Candidates(request Request) (*Candidates, error) {
	snapshot := i.snapshot.Load()
	if snapshot == nil {
		return nil, ErrNotSynced
	}
	c := &Candidates{request: request, snapshot: snapshot, usable: make([]bool, len(snapshot.Pools()))}
	for _, held := range i.book.Held(request.Owner, request.UID) {
		if held.PodUID == request.UID && (held.Policy == allocator.PodDeleted || held.Generation == 1) {
			// Committed for this very pod, which is not bound: nothing ran with it.
			c.stale = append(c.stale, held)
			continue
		}
		return c, i.keep(c, held)
	}
	if err := i.findPools(c); err != nil {
		return nil, err
	}
	return c, nil
}

// keep narrows the candidates to the pool of an address that the pod must have.
func (i *IPAM) keep(c *Candidates, held allocator.Record) error {
	home, ok := c.snapshot.Home(held.Addr)
	if !ok {
		return &ShortageError{
			Reasons: []string{fmt.Sprintf("address %s is retained for %s %s/%s but no valid pool contains it any longer",
				held.Addr, held.Owner.Kind, held.Owner.Namespace, held.Owner.Name)},
			Remedy: fmt.Sprintf("put it back into pool %q, or give it up: kubectl delete floatingip %s", held.Pool, v1alpha1.NameOf(held.Addr)),
		}
	}
	c.kept = &held
	c.usable[home] = true
	return nil
}

// findPools marks the pools with a free address that the request may use.
func (i *IPAM) findPools(c *Candidates) error {
	free := i.book.Free()
	all := c.snapshot.Pools()
	if len(free) != len(all) {
		// The pools changed between the two looks; the next snapshot is a moment away.
		return ErrNotSynced
	}
	wanted, shortage := i.wanted(c)
	found := false
	for _, position := range wanted {
		pool := all[position]
		switch {
		case !pool.AdmitsNamespace(c.request.NamespaceLabels):
			shortage.Reasons = append(shortage.Reasons, fmt.Sprintf("%s does not admit namespace %q", pool, c.request.Namespace))
		case free[position] > 0 || c.staleIn(pool):
			c.usable[position] = true
			found = true
		case pool.Disabled:
			shortage.Reasons = append(shortage.Reasons, fmt.Sprintf("%s is disabled", pool))
		default:
			n := i.book.Counts(pool.Name)
			shortage.Reasons = append(shortage.Reasons, fmt.Sprintf("%s has no free address (%s)", pool, usage(n)))
			shortage.Remedy = "add ranges to a pool or free an address; kubectl get floatingips shows who has them"
		}
	}
	if found {
		return nil
	}
	if len(shortage.Reasons) == 0 {
		shortage.Reasons = []string{"there is no IPPool"}
		shortage.Remedy = "create one: kubectl explain ippool.spec"
	}
	return shortage
}

func usage(n allocator.Counts) string {
	text := fmt.Sprintf("%d in use, %d retained", n.Allocated, n.Retained)
	if n.Reserved > 0 {
		text += fmt.Sprintf(", %d reserved", n.Reserved)
	}
	return text
}

func (c *Candidates) staleIn(pool *pools.Pool) bool {
	return slices.ContainsFunc(c.stale, func(claim allocator.Record) bool { return pool.Contains(claim.Addr) })
}

// wanted returns the positions of the pools that the request may use by name,
// and a shortage that says which names there are not.
func (i *IPAM) wanted(c *Candidates) ([]int, *ShortageError) {
	shortage := &ShortageError{}
	if len(c.request.Pools) == 0 {
		positions := make([]int, len(c.snapshot.Pools()))
		for position := range positions {
			positions[position] = position
		}
		return positions, shortage
	}
	var positions []int
	for _, name := range c.request.Pools {
		position, ok := c.snapshot.Index(name)
		switch {
		case ok:
			positions = append(positions, position)
		case c.snapshot.Invalid(name) != nil:
			shortage.Reasons = append(shortage.Reasons, fmt.Sprintf("pool %q is invalid: %v", name, c.snapshot.Invalid(name)))
		default:
			shortage.Reasons = append(shortage.Reasons, fmt.Sprintf("there is no IPPool %q", name))
			shortage.Remedy = "kubectl get ippools lists them"
		}
	}
	return positions, shortage
}

// Reserve takes an address for the pod on a node that serves the pools at the
// positions nodePools, in memory. It fails with a *ShortageError if the last one
// went to another pod since Candidates.
func (i *IPAM) Reserve(c *Candidates, node string, nodePools []int) (*Reservation, error) {
	r := &Reservation{request: c.request, node: node}
	for _, held := range c.held() {
		if !c.homedIn(held, nodePools) {
			continue
		}
		stored, err := i.book.Reserve(held.Addr, c.request.Owner, c.request.UID)
		if err != nil {
			return nil, fmt.Errorf("reserve %s: %w", held.Addr, err)
		}
		r.stored = &stored
		r.Addr = stored.Addr
		r.stale = held != c.kept
		r.Pool, _ = i.book.PoolOf(stored.Addr)
		return r, nil
	}
	var names []string
	for _, position := range nodePools {
		if c.usable[position] {
			names = append(names, c.snapshot.Pools()[position].Name)
		}
	}
	var err error
	r.Addr, r.Pool, err = i.book.ReserveFree(names, c.request.UID)
	if errors.Is(err, allocator.ErrExhausted) {
		return nil, &ShortageError{Reasons: []string{fmt.Sprintf("the last free address of %s went to another pod", strings.Join(names, ", "))}}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// held returns the addresses that the pod has, the one it must have first.
func (c *Candidates) held() []*allocator.Record {
	var held []*allocator.Record
	if c.kept != nil {
		held = append(held, c.kept)
	}
	for i := range c.stale {
		held = append(held, &c.stale[i])
	}
	return held
}

func (c *Candidates) homedIn(held *allocator.Record, nodePools []int) bool {
	home, ok := c.snapshot.Home(held.Addr)
	if !ok {
		return false
	}
	return slices.Contains(nodePools, home)
}

// Unreserve gives back what Reserve took. It is idempotent, and does nothing to
// an address that was committed.
func (i *IPAM) Unreserve(r *Reservation) {
	if i.book.Release(r.Addr, r.request.UID) {
		i.tell(Change{Pool: r.Pool})
	} else if r.stored != nil {
		// Another pod of the owner may have found it taken.
		i.tell(Change{Owner: &r.request.Owner})
	}
}
