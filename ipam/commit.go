// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assigner"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

// Pods answers from the API server, not from a cache. Its methods block and are safe
// for concurrent use.
type Pods interface {
	// IsCurrent says whether the pod with this namespace, name and UID exists and is
	// not yet bound.
	IsCurrent(ctx context.Context, namespace, name, uid string) (bool, error)
	// IsGone says whether the pod does not exist or is finished.
	IsGone(ctx context.Context, namespace, name, uid string) (bool, error)
	// IsNamespace says whether a namespace with this name and UID exists.
	IsNamespace(ctx context.Context, name, uid string) (bool, error)
}

// Commit makes a reservation durable: one write for each address, create or update. If the pool
// needs the external assigner, Commit then asks the assigner to attach the address. Commit blocks.
// It fails with ErrConflict if an address was given to somebody else or moved to another pool in
// the meantime, and also with ErrNotCurrent if the pod is not current.
//
// Commit updates the FloatingIP of an address that is recorded for the pod already, even if nothing
// changes. So a scheduler that wrote the record before cannot take it back ([IPAM.Abandon]). Commit
// does not change other addresses of earlier attempts, because a slow scheduler may still bind the
// pod with one of them. The controller frees these addresses when the pod is bound, and also the
// committed addresses of a reservation that failed.
//
// Commit asks pods only if another program may have written the record. If this process is behind,
// it must not take the address from the pod's successor, and must not record a node on which the
// pod does not run.
func (i *IPAM) Commit(ctx context.Context, r *Reservation, pods Pods) error {
	// The first address decides between two schedulers that want to bind the pod. In
	// parallel, each could win some addresses and both would fail.
	if err := i.commit(ctx, r, r.addrs[0], pods); err != nil {
		return err
	}
	rest := r.addrs[1:]
	failed := make([]error, len(rest))
	var group sync.WaitGroup
	for at, a := range rest {
		group.Go(func() { failed[at] = i.commit(ctx, r, a, pods) })
	}
	group.Wait()
	return errors.Join(failed...)
}

func (i *IPAM) commit(ctx context.Context, r *Reservation, a *address, pods Pods) error {
	pool := i.state.Load().snapshot.PoolOf(a.Addr)
	switch {
	case pool == nil:
		return fmt.Errorf("commit %s: no valid pool contains it any longer: %w", a.Addr, ErrConflict)
	case pool.Name != a.Pool:
		// The pod may not use that pool, or the node may not be in it.
		return fmt.Errorf("commit %s of pool %q: it is in pool %q now: %w", a.Addr, a.Pool, pool.Name, ErrConflict)
	}
	write := i.write
	if r.request.TwinOf != "" {
		write = i.writeTwin
	}
	ip, err := write(ctx, r, a, pool, pods)
	if err != nil {
		return err
	}
	a.committed = ip
	record, err := recordOf(ip)
	if err != nil {
		return err
	}
	if i.book.Confirm(record, r.request.UID) {
		i.tell(Change{Pool: a.Pool, Addr: a.Addr})
		i.tellShare(a.Addr, r.request.Namespace, false)
		i.tell(Change{Owner: &record.Owner, More: 1})
	}
	return i.attach(ctx, r, a, pool, record.Version)
}

// NeedsAssigner returns whether the external assigner must attach an address of the reservation.
func (i *IPAM) NeedsAssigner(r *Reservation) bool {
	snapshot := i.state.Load().snapshot
	return slices.ContainsFunc(r.addrs, func(a *address) bool {
		pool := snapshot.PoolOf(a.Addr)
		return pool != nil && pool.ExternalAssigner
	})
}

// attach asks the external assigner to attach the address to the pod's node.
func (i *IPAM) attach(ctx context.Context, r *Reservation, a *address, pool *pools.Pool, revision uint64) error {
	if !pool.ExternalAssigner || r.request.isAhead() || r.request.OfService || r.request.TwinOf != "" {
		return nil
	}
	if i.assigner == nil {
		return fmt.Errorf("pool %q needs the external assigner, but the scheduler has none configured", pool.Name)
	}
	return i.assigner.Attach(ctx, assigner.Assignment{
		Address: a.Addr, Pool: pool.Name, Subnet: pool.Subnet, Gateway: pool.Gateway, VLAN: pool.VLAN,
		Node:     assigner.Node{Name: r.node.Name, ProviderID: r.node.ProviderID, InternalIPs: r.node.Addresses},
		Pod:      assigner.Pod{Namespace: r.request.Namespace, Name: r.request.Name, UID: types.UID(r.request.UID)},
		Revision: revision,
	})
}

// write writes the FloatingIP of an address. When the owner's last pod ends, the controller may
// write the FloatingIP of a kept address at the same time. The address is still the owner's, so
// write tries again with the current FloatingIP.
func (i *IPAM) write(ctx context.Context, r *Reservation, a *address, pool *pools.Pool, pods Pods) (*v1alpha1.FloatingIP, error) {
	const attempts = 4
	for n := 1; ; n++ {
		ip, err := i.writeOnce(ctx, r, a, i.specOf(r, a, pool, time.Now()), pods)
		if n == attempts || !errors.Is(err, store.ErrChanged) || a.stored == nil || a.stored.PodUID == r.request.UID {
			return ip, err
		}
		kept, readErr := i.isStillKept(ctx, a)
		if readErr != nil {
			return nil, readErr
		}
		if !kept {
			return nil, err
		}
	}
}

// isStillKept reads the FloatingIP of a kept address again. It returns whether the address still
// belongs to the owner and no new pod has it.
func (i *IPAM) isStillKept(ctx context.Context, a *address) (bool, error) {
	_, record, err := i.read(ctx, a)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	before := a.stored
	a.stored = &record
	return record.Owner == before.Owner && record.Pool == before.Pool && (record.PodUID == "" || record.PodUID == before.PodUID) &&
		!record.Reserved && !record.Cooling && !record.OfService && record.Attached == before.Attached, nil
}

// read reads the FloatingIP of an address into the book.
func (i *IPAM) read(ctx context.Context, a *address) (*v1alpha1.FloatingIP, allocator.Record, error) {
	ip, err := i.store.Get(ctx, a.name())
	if err != nil {
		return nil, allocator.Record{}, err
	}
	record, err := recordOf(ip)
	if err == nil {
		i.book.Observe(record)
	}
	return ip, record, err
}

func (i *IPAM) writeOnce(ctx context.Context, r *Reservation, a *address, spec v1alpha1.FloatingIPSpec, pods Pods) (*v1alpha1.FloatingIP, error) {
	if a.stored == nil {
		return i.create(ctx, r, a, spec, pods)
	}
	if a.stored.PodUID == r.request.UID {
		return i.takeOver(ctx, r, a, spec, pods)
	}
	if err := checkNamespace(ctx, r, a, pods); err != nil {
		return nil, err
	}
	if a.stored.PodUID != "" {
		if err := checkCurrent(ctx, r, a, pods); err != nil {
			return nil, err
		}
		if err := checkGone(ctx, a, pods); err != nil {
			return nil, err
		}
	}
	return i.update(ctx, seen(a.stored), spec)
}

// checkNamespace fails if the pod's namespace may not be the one in which the address
// was kept. The question arises only for an address that was found by its owner's name
// and not its UID: the scheduler may have seen the pod before it saw that the namespace
// was deleted and created again.
func checkNamespace(ctx context.Context, r *Reservation, a *address, pods Pods) error {
	if a.stored.Owner.UID == r.request.Owner.UID || r.request.namespaceUID() == "" {
		return nil
	}
	ok, err := pods.IsNamespace(ctx, r.request.Namespace, string(r.request.namespaceUID()))
	if err != nil {
		return fmt.Errorf("check whether namespace %s is still the one in which %s was kept: %w", r.request.Namespace, a.Addr, err)
	}
	if !ok {
		return fmt.Errorf("commit %s: namespace %s was deleted and created again: %w", a.Addr, r.request.Namespace, ErrConflict)
	}
	return nil
}

// checkCurrent fails if the pod was bound, replaced or deleted.
func checkCurrent(ctx context.Context, r *Reservation, a *address, pods Pods) error {
	ok, err := pods.IsCurrent(ctx, r.request.Namespace, r.request.Name, r.request.UID)
	if err != nil {
		return fmt.Errorf("check whether pod %s/%s may still take %s: %w", r.request.Namespace, r.request.Name, a.Addr, err)
	}
	if !ok {
		return fmt.Errorf("commit %s for pod %s/%s: %w: %w", a.Addr, r.request.Namespace, r.request.Name, ErrNotCurrent, ErrConflict)
	}
	return nil
}

// checkGone fails if the address's holder may be alive. A holder that had the new
// pod's name is gone: the API server admits one pod of a name.
func checkGone(ctx context.Context, a *address, pods Pods) error {
	if a.stored.Owner.PodName != "" {
		return nil
	}
	for _, pod := range [][2]string{{a.stored.PodName, a.stored.PodUID}, {a.stored.TwinName, a.stored.TwinUID}} {
		if pod[1] == "" {
			continue
		}
		gone, err := pods.IsGone(ctx, a.stored.Owner.Namespace, pod[0], pod[1])
		if err != nil {
			return fmt.Errorf("check whether pod %s/%s, which had %s, is gone: %w", a.stored.Owner.Namespace, pod[0], a.Addr, err)
		}
		if !gone {
			return fmt.Errorf("commit %s: pod %s/%s still has it: %w", a.Addr, a.stored.Owner.Namespace, pod[0], ErrConflict)
		}
	}
	return nil
}

// takeOver updates a FloatingIP that an earlier attempt for the same pod wrote, or that the Service
// has beside the ones that it lacks: the node that answers for it goes on.
func (i *IPAM) takeOver(ctx context.Context, r *Reservation, a *address, spec v1alpha1.FloatingIPSpec, pods Pods) (*v1alpha1.FloatingIP, error) {
	existing, record, err := i.read(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if record.PodUID != r.request.UID {
		return nil, fmt.Errorf("commit %s: %w", a.Addr, ErrConflict)
	}
	if err := checkCurrent(ctx, r, a, pods); err != nil {
		return nil, err
	}
	spec.LastPod, spec.LastNode = existing.Spec.LastPod, existing.Spec.LastNode
	// An update that changes nothing does not change the resource version, and times
	// of objects have a resolution of one second.
	spec.Since = existing.Spec.NextSince(spec.Since.Time)
	if has := existing.Spec.Service; has != nil && spec.Service != nil {
		spec.Since, spec.Service.Node = existing.Spec.Since, has.Node
	}
	return i.update(ctx, existing, spec)
}

func (i *IPAM) update(ctx context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error) {
	ip, err := i.store.Update(ctx, seen, spec)
	if isConflict(err) {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return ip, err
}

func (i *IPAM) create(ctx context.Context, r *Reservation, a *address, spec v1alpha1.FloatingIPSpec, pods Pods) (*v1alpha1.FloatingIP, error) {
	ip, err := i.store.Create(ctx, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: a.name()}, Spec: spec})
	if err == nil {
		a.created = true
		return ip, nil
	}
	if !errors.Is(err, store.ErrTaken) {
		return nil, err
	}
	// The address may be taken for this pod: an earlier answer of the API server was
	// lost, or another scheduler chose the same address for the pod.
	return i.takeOver(ctx, r, a, spec, pods)
}

// Abandon takes back Commit's writes for a pod that is gone, was bound by another scheduler to
// another node, or will not be bound by this attempt. It deletes the FloatingIPs that Commit
// created, and retains addresses that were retained before. If the external assigner was told to
// attach an address, the FloatingIP stays without a pod until the address is detached. Abandon does
// not change addresses that another scheduler took over since, because that scheduler may be about
// to bind the pod with them.
//
// It blocks, and may be called again after an error.
func (i *IPAM) Abandon(ctx context.Context, r *Reservation) error {
	var errs []error
	for _, a := range r.addrs {
		abandon := i.abandon
		if r.request.TwinOf != "" {
			abandon = i.abandonTwin
		}
		if err := abandon(ctx, a); err != nil && !errors.Is(err, store.ErrChanged) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (i *IPAM) abandon(ctx context.Context, a *address) error {
	switch {
	case a.committed == nil || !a.created && (a.stored == nil || a.stored.PodUID != ""):
		// The pod had it before.
		return nil
	case a.created && !a.committed.Spec.ExternallyAssigned:
		return i.store.Delete(ctx, a.committed)
	}
	spec := a.committed.Spec.DeepCopy()
	spec.Pod, spec.Service, spec.LastPod = nil, nil, ""
	if a.stored != nil {
		spec.LastPod = a.stored.LastPod
	}
	if !spec.ExternallyAssigned {
		spec.Node = ""
	}
	_, err := i.store.Update(ctx, a.committed, *spec)
	return err
}

// seen returns the identity of a record's object, for conditional writes.
func seen(record *allocator.Record) *v1alpha1.FloatingIP {
	return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{
		Name:            v1alpha1.NameOf(record.Addr),
		UID:             types.UID(record.UID),
		ResourceVersion: strconv.FormatUint(record.Version, 10),
	}}
}
