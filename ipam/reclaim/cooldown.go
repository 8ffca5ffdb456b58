// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/view"
)

// The cooldown of an address begins when giveBack decides so (verdict.go), or when another client
// deletes its FloatingIP (deletions.go). It ends when endCooldown decides so. Meanwhile the book of
// each scheduler gives the address to no pod (Cooling in ipam/allocator/record.go; after a deletion
// ipam/deletions.go). An address that its last node may still carry is in cooldown in the same way
// until that node has stopped (lastnode.go), but pods of the owner's namespace may have it.

// resting returns the spec of an address that is in cooldown since a time. last is the node that
// may still carry the address.
func resting(spec *v1alpha1.FloatingIPSpec, since metav1.Time, last *v1alpha1.NodeReference) v1alpha1.FloatingIPSpec {
	rest := v1alpha1.FloatingIPSpec{
		Address: spec.Address, Pool: spec.Pool, ReleasedAt: &since, LastPod: lastPod(spec), LastNode: last,
		ReleasePolicy: v1alpha1.ReleasePodDeleted,
	}
	if last != nil {
		rest.LastOwner = spec.Owner.DeepCopy()
	}
	return rest
}

// aheadAtMost is how far the clock of the program that wrote a record may be ahead of this
// program's clock.
const aheadAtMost = time.Minute

// correctTimes replaces times in the future in the record of an address without a pod by the
// present time. So a clock that was a year ahead does not keep an address for a year. It returns
// nil if the times are right.
func correctTimes(ip *v1alpha1.FloatingIP, now time.Time) *correction {
	ahead := func(t *metav1.Time) bool { return t != nil && t.Sub(now) > aheadAtMost }
	if ip.Spec.Pod != nil || !ahead(ip.Spec.ReleasedAt) && !ahead(ip.Spec.Since) {
		return nil
	}
	spec := ip.Spec.DeepCopy()
	for _, t := range []*metav1.Time{spec.ReleasedAt, spec.Since} {
		if ahead(t) {
			t.Time = now
		}
	}
	return &correction{
		spec: spec, did: "Corrected a time in the future since when a floating IP is free or kept", about: []any{"releasedAt", ip.Spec.ReleasedAt, "since", ip.Spec.Since},
	}
}

// pool returns the address's pool from the cache; an empty one if it is gone.
func (r *Reclaimer) pool(ip *v1alpha1.FloatingIP) *v1alpha1.IPPool {
	return cmp.Or(view.Get[v1alpha1.IPPool](r.poolsOf, ip.Spec.Pool), &v1alpha1.IPPool{})
}

// cooldown returns the cooldown of the address's pool; 0 if the pool is gone.
func (r *Reclaimer) cooldown(ip *v1alpha1.FloatingIP) time.Duration { return cooldownOf(r.pool(ip)) }

// poolNow returns the address's pool from the API server; an empty one if it is gone, or the record
// names none.
func (r *Reclaimer) poolNow(ctx context.Context, ip *v1alpha1.FloatingIP) (*v1alpha1.IPPool, error) {
	if ip.Spec.Pool == "" {
		return &v1alpha1.IPPool{}, nil
	}
	pool, err := r.pools.Get(ctx, ip.Spec.Pool, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &v1alpha1.IPPool{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get IPPool %s: %w", ip.Spec.Pool, err)
	}
	return pool, nil
}

func cooldownOf(pool *v1alpha1.IPPool) time.Duration {
	if pool.Spec.Cooldown == nil {
		return 0
	}
	return pool.Spec.Cooldown.Duration
}
