// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"iter"
	"net/netip"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// tally counts the addresses in use. Not safe for concurrent use.
type tally struct {
	snapshot *pools.Snapshot
	// pools by name.
	pools map[string]*uses
	// homes has the uses of each pool of the snapshot; nil if the pool was deleted after the
	// snapshot was compiled.
	homes []*uses
	// gone counts, by pool name, the addresses of deleted pools that no other pool
	// contains. orphans are the ones that still have an owner, by name.
	gone    map[string]int64
	orphans map[string]*v1alpha1.FloatingIP
}

// uses counts the addresses of a pool.
type uses struct {
	allocated, retained, reserved, cooling, outside int64
	// conflicts are addresses with a holder that another host has, too; avoided ones cool down because
	// another host had them.
	conflicts, avoided int64
	// lastNode are cooling addresses that their last node may carry.
	lastNode int64
	// namespaces is nil if the pool has no cap.
	namespaces map[string]*v1alpha1.NamespaceShare
}

// count counts the addresses of each pool in one pass.
func count(objects []*v1alpha1.IPPool, snapshot *pools.Snapshot, ips iter.Seq[*v1alpha1.FloatingIP]) *tally {
	t := &tally{
		snapshot: snapshot,
		pools:    make(map[string]*uses, len(objects)),
		homes:    make([]*uses, len(snapshot.Pools())),
		gone:     map[string]int64{},
		orphans:  map[string]*v1alpha1.FloatingIP{},
	}
	for _, object := range objects {
		u := &uses{}
		if object.Spec.MaxPerNamespace > 0 {
			u.namespaces = map[string]*v1alpha1.NamespaceShare{}
		}
		t.pools[object.Name] = u
	}
	for at, pool := range snapshot.Pools() {
		t.homes[at] = t.pools[pool.Name]
	}
	for ip := range ips {
		t.add(ip, 1)
	}
	return t
}

// counts reports whether the tally is one of these pools, so that it stays right while only
// addresses change.
func (t *tally) counts(objects []*v1alpha1.IPPool, snapshot *pools.Snapshot) bool {
	if t.snapshot != snapshot || len(t.pools) != len(objects) {
		return false
	}
	for _, object := range objects {
		if u := t.pools[object.Name]; u == nil || (u.namespaces != nil) != (object.Spec.MaxPerNamespace > 0) {
			return false
		}
	}
	return true
}

// add counts an address, with n 1, or takes it back, with n -1.
func (t *tally) add(ip *v1alpha1.FloatingIP, n int64) {
	addr, err := netip.ParseAddr(ip.Spec.Address)
	if err != nil {
		return // the CRD's validation admits no such object
	}
	if at, ok := t.snapshot.Home(addr); ok && t.homes[at] != nil {
		t.homes[at].add(ip, n)
		return
	}
	if u := t.pools[ip.Spec.Pool]; u != nil {
		u.outside += n
		return
	}
	if ip.Spec.Pool == "" {
		return // reserved, and in no pool
	}
	if t.gone[ip.Spec.Pool] += n; t.gone[ip.Spec.Pool] == 0 {
		delete(t.gone, ip.Spec.Pool)
	}
	switch {
	case ip.Spec.Owner == nil || ip.Spec.Reserved:
	case n > 0:
		t.orphans[ip.Name] = ip
	default:
		delete(t.orphans, ip.Name)
	}
}

func (u *uses) add(ip *v1alpha1.FloatingIP, n int64) {
	spec := &ip.Spec
	switch {
	case spec.Reserved, spec.Owner == nil && spec.ReleasedAt == nil: // No pod gets an address without an owner.
		u.reserved += n
	case spec.IsHeld():
		u.allocated += n
		u.share(spec.Owner, n, 0)
	case spec.Owner == nil && spec.ReleasedAt != nil:
		u.cooling += n
		if spec.LastNode != nil {
			u.lastNode += n
		}
	default:
		u.retained += n
		u.share(spec.Owner, 0, n)
	}
	switch {
	case !ip.InConflict():
	case spec.IsHeld():
		u.conflicts += n
	case spec.Owner == nil && spec.ReleasedAt != nil && !spec.Reserved:
		u.avoided += n
	}
}

// share adds to the counts of the owner's namespace, if the pool has a cap.
func (u *uses) share(owner *v1alpha1.Owner, allocated, retained int64) {
	if u.namespaces == nil || owner == nil || owner.IsNode() {
		return
	}
	share := u.namespaces[owner.Namespace]
	if share == nil {
		share = &v1alpha1.NamespaceShare{Name: owner.Namespace}
		u.namespaces[owner.Namespace] = share
	}
	share.Allocated += allocated
	share.Retained += retained
	if share.Allocated == 0 && share.Retained == 0 {
		delete(u.namespaces, owner.Namespace)
	}
}
