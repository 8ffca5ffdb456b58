// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/store"
)

// PodIsCurrent says whether the API server still has the pod of this namespace,
// name and UID, not yet bound. It is asked live.
type PodIsCurrent func(ctx context.Context, namespace, name, uid string) (bool, error)

// Commit makes a reservation durable: one write, create or update, none if the
// address that the pod must have already is recorded for it on this node. It
// fails with ErrConflict if the API server gave the address to somebody else.
//
// The claim of an earlier attempt is written even if nothing changes: whoever
// made it, and may be about to take it back ([IPAM.Abandon]), then no longer can.
// Other claims of earlier attempts are left alone, for a scheduler that is slow
// may yet bind the pod with one; the controller frees them when the pod is bound.
//
// current is asked only where somebody else wrote the record: this process may be
// the one that is behind, and must then not take the address from the pod's
// successor, nor say that it is on another node than the pod is.
func (i *IPAM) Commit(ctx context.Context, r *Reservation, current PodIsCurrent) error {
	if r.stored != nil && !r.stale && r.stored.PodUID == r.request.UID && r.stored.Node == r.node {
		i.book.Release(r.Addr, r.request.UID)
		return nil
	}
	snapshot := i.snapshot.Load()
	position, ok := snapshot.Index(r.Pool)
	if !ok {
		return fmt.Errorf("commit %s: pool %q is gone: %w", r.Addr, r.Pool, ErrConflict)
	}
	spec := specOf(r, snapshot.Pools()[position], time.Now())
	ip, err := i.write(ctx, r, spec, current)
	if err != nil {
		return err
	}
	record, err := recordOf(ip)
	if err != nil {
		return err
	}
	if i.book.Confirm(record, r.request.UID) {
		i.tell(Change{Pool: r.Pool})
	}
	return nil
}

func (i *IPAM) write(ctx context.Context, r *Reservation, spec v1alpha1.FloatingIPSpec, current PodIsCurrent) (*v1alpha1.FloatingIP, error) {
	if r.stored == nil {
		return i.create(ctx, r, spec, current)
	}
	if r.stale {
		return i.takeOver(ctx, r, spec, current)
	}
	if r.stored.PodUID != "" {
		if err := checkCurrent(ctx, r, current); err != nil {
			return nil, err
		}
	}
	return i.update(ctx, seen(r.stored), spec)
}

// checkCurrent fails if the pod is not the one to get the address any more.
func checkCurrent(ctx context.Context, r *Reservation, current PodIsCurrent) error {
	ok, err := current(ctx, r.request.Namespace, r.request.Name, r.request.UID)
	if err != nil {
		return fmt.Errorf("ask whether pod %s/%s is still the one to get %s: %w", r.request.Namespace, r.request.Name, r.Addr, err)
	}
	if !ok {
		return fmt.Errorf("commit %s: pod %s/%s was bound by another scheduler or replaced: %w", r.Addr, r.request.Namespace, r.request.Name, ErrConflict)
	}
	return nil
}

// takeOver makes the claim of an earlier attempt, for the same pod, this one's.
func (i *IPAM) takeOver(ctx context.Context, r *Reservation, spec v1alpha1.FloatingIPSpec, current PodIsCurrent) (*v1alpha1.FloatingIP, error) {
	existing, err := i.store.Get(ctx, r.Name())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if record, err := recordOf(existing); err == nil {
		i.book.Observe(record)
	}
	if pod := existing.Spec.Pod; pod == nil || string(pod.UID) != r.request.UID {
		return nil, fmt.Errorf("commit %s: %w", r.Addr, ErrConflict)
	}
	if err := checkCurrent(ctx, r, current); err != nil {
		return nil, err
	}
	// The API server does not count an update that changes nothing, and the times
	// of objects are in seconds.
	if since := existing.Spec.Since; since != nil && !since.Before(spec.Since) {
		spec.Since = &metav1.Time{Time: since.Add(time.Second)}
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

func (i *IPAM) create(ctx context.Context, r *Reservation, spec v1alpha1.FloatingIPSpec, current PodIsCurrent) (*v1alpha1.FloatingIP, error) {
	ip, err := i.store.Claim(ctx, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: r.Name()}, Spec: spec})
	if err == nil {
		r.committed = ip
		return ip, nil
	}
	if !errors.Is(err, store.ErrTaken) {
		return nil, err
	}
	// Taken, perhaps for this very pod: an earlier answer of the API server got
	// lost, or another scheduler chose the same address for it.
	return i.takeOver(ctx, r, spec, current)
}

// Abandon frees an address that Commit created for a pod that turned out to be
// gone or bound by another scheduler. It is a no-op for an address that was
// retained, which stays with its owner, and for one that another scheduler took
// over since: the pod may be bound with it.
func (i *IPAM) Abandon(ctx context.Context, r *Reservation) error {
	if r.committed == nil {
		return nil
	}
	if err := i.store.Delete(ctx, r.committed); err != nil && !errors.Is(err, store.ErrChanged) {
		return err
	}
	return nil
}

// seen is the identity of a record's object, for conditional writes.
func seen(record *allocator.Record) *v1alpha1.FloatingIP {
	return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{
		Name:            v1alpha1.NameOf(record.Addr),
		UID:             types.UID(record.UID),
		ResourceVersion: strconv.FormatUint(record.Version, 10),
	}}
}
