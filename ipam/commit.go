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
// name and UID. It is asked live.
type PodIsCurrent func(ctx context.Context, namespace, name, uid string) (bool, error)

// Commit makes a reservation durable: one write, create or update, none if the
// address already is recorded for this pod on this node. It fails with
// ErrConflict if the API server gave the address to somebody else.
//
// current is asked only where the record still names another pod: this process
// may be the one that is behind, and must then not take the address from the
// pod's successor.
func (i *IPAM) Commit(ctx context.Context, r *Reservation, current PodIsCurrent) error {
	if r.stale != nil {
		if err := i.store.Delete(ctx, seen(r.stale)); err != nil && !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
	if r.stored != nil && r.stored.PodUID == r.request.UID && r.stored.Node == r.node {
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
		return i.create(ctx, r, spec)
	}
	holder := r.stored.PodUID
	if holder != "" && holder != r.request.UID {
		ok, err := current(ctx, r.request.Namespace, r.request.Name, r.request.UID)
		if err != nil {
			return nil, fmt.Errorf("ask whether pod %s/%s is still the one to get %s: %w", r.request.Namespace, r.request.Name, r.Addr, err)
		}
		if !ok {
			return nil, fmt.Errorf("commit %s: pod %s/%s was replaced by another: %w", r.Addr, r.request.Namespace, r.request.Name, ErrConflict)
		}
	}
	ip, err := i.store.Update(ctx, seen(r.stored), spec)
	if isConflict(err) {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return ip, err
}

func (i *IPAM) create(ctx context.Context, r *Reservation, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error) {
	ip, err := i.store.Claim(ctx, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: r.Name()}, Spec: spec})
	if err == nil {
		r.committed = ip
		return ip, nil
	}
	if !errors.Is(err, store.ErrTaken) {
		return nil, err
	}
	// Taken by this very pod: an earlier answer of the API server got lost.
	existing, getErr := i.store.Get(ctx, r.Name())
	if getErr != nil {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if record, recordErr := recordOf(existing); recordErr == nil {
		i.book.Observe(record)
	}
	if pod := existing.Spec.Pod; pod == nil || string(pod.UID) != r.request.UID {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	updated, err := i.store.Update(ctx, existing, spec)
	if isConflict(err) {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return updated, err
}

// Abandon frees an address that Commit created for a pod that turned out to be
// gone or bound by another scheduler: the pod will never use it. It is a no-op
// for an address that was retained, which stays with its owner.
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
