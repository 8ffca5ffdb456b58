// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// recordOf returns the book's record of a FloatingIP.
func recordOf(ip *v1alpha1.FloatingIP) (allocator.Record, error) {
	addr, err := v1alpha1.AddrOf(ip.Name)
	if err != nil {
		return allocator.Record{}, err
	}
	version, err := strconv.ParseUint(ip.ResourceVersion, 10, 64)
	if err != nil {
		return allocator.Record{}, fmt.Errorf("FloatingIP %s: resource version %q is not a number", ip.Name, ip.ResourceVersion)
	}
	record := allocator.Record{
		Addr:     addr,
		Pool:     ip.Spec.Pool,
		Policy:   policyOf(ip.Spec.ReleasePolicy),
		Reserved: ip.Spec.Reserved,
		Cooling:  ip.Spec.ReleasedAt != nil,
		LastPod:  ip.Spec.LastPod,
		Index:    ip.Spec.Index,
		UID:      string(ip.UID),
		Version:  version,
		Created:  ip.CreationTimestamp.Time,
	}
	if ip.Spec.Since != nil {
		record.Since = ip.Spec.Since.Time
	}
	if ip.Spec.RetainFor != nil {
		record.RetainFor = ip.Spec.RetainFor.Duration
	}
	if owner := ip.Spec.Owner; owner != nil {
		record.Owner = OwnerOf(owner)
		record.NamespaceUID = string(ip.NamespaceUID())
		if owner.IsAwaited() {
			record.Owner.UID = ""
		}
	} else {
		// The address has no owner, so no pod may take it.
		record.Reserved = true
	}
	if pod := ip.Spec.Pod; pod != nil {
		record.PodName, record.PodUID = pod.Name, string(pod.UID)
	}
	if twin := ip.Spec.Twin; twin != nil {
		record.TwinName, record.TwinUID = twin.Pod.Name, string(twin.Pod.UID)
	}
	if service := ip.Spec.Service; service != nil {
		record.PodName, record.PodUID, record.OfService = service.Name, string(service.UID), true
	}
	if ip.Spec.Egress != nil && ip.Spec.Owner != nil {
		record.PodName, record.PodUID, record.OfService = ip.Spec.Owner.Name, string(ip.Spec.Owner.UID), true
	}
	record.Attached, record.Node = ip.Spec.ExternallyAssigned, ip.Spec.Node
	if last := ip.Spec.LastNode; last != nil {
		record.LastNode = allocator.NodeReference{Name: last.Name, UID: string(last.UID)}
	}
	if record.Cooling {
		record.ReleasedAt = ip.Spec.ReleasedAt.Time
	}
	if last := ip.Spec.LastOwner; last != nil {
		record.NamespaceUID = string(last.NamespaceUID)
	}
	return record, nil
}

// OwnerOf returns an owner in the book's terms.
func OwnerOf(owner *v1alpha1.Owner) Owner {
	return Owner{
		APIVersion: owner.APIVersion, Kind: owner.Kind,
		Namespace: owner.Namespace, Name: owner.Name,
		UID: string(owner.UID), PodName: owner.PodName, NodeName: owner.NodeName,
	}
}

// policyText is the inverse of policyOf.
func policyText(policy allocator.Policy) v1alpha1.ReleasePolicy {
	return [...]v1alpha1.ReleasePolicy{allocator.PodDeleted: v1alpha1.ReleasePodDeleted, allocator.Retain: v1alpha1.ReleaseRetain, allocator.Never: v1alpha1.ReleaseNever}[policy]
}

func policyOf(policy v1alpha1.ReleasePolicy) allocator.Policy {
	switch policy {
	case v1alpha1.ReleaseRetain:
		return allocator.Retain
	case v1alpha1.ReleaseNever:
		return allocator.Never
	}
	return allocator.PodDeleted
}

// specOf returns the spec to write when a pod or a Service gets an address, or when an owner gets
// it before any pod.
func (i *IPAM) specOf(r *Reservation, a *address, pool *pools.Pool, now time.Time) v1alpha1.FloatingIPSpec {
	var since time.Time
	if a.stored != nil {
		since = a.stored.Since
	}
	owner := r.request.Owner
	spec := v1alpha1.FloatingIPSpec{
		Address: a.Addr.String(),
		Pool:    pool.Name,
		Network: pool.Network(),
		Owner: &v1alpha1.Owner{
			APIVersion: owner.APIVersion, Kind: owner.Kind,
			Namespace: owner.Namespace, NamespaceUID: r.request.namespaceUID(), Name: owner.Name,
			UID: types.UID(owner.UID), PodName: owner.PodName, NodeName: owner.NodeName,
		},
		Index:           int32(a.part),
		Node:            r.node.Name,
		ReleasePolicy:   r.request.Policy,
		KeepOnScaleDown: r.request.KeepOnScaleDown,
		Since:           v1alpha1.NextSince(now, since),
	}
	if a.stored != nil {
		if !i.unused(a.stored) {
			spec.LastPod = before(a.stored, &r.request)
		}
		spec.LastNode = i.lastNode(a.stored)
	}
	if r.request.RetainFor > 0 {
		spec.RetainFor = &metav1.Duration{Duration: r.request.RetainFor}
	}
	switch {
	case r.request.isAhead():
	case r.request.OfService:
		spec.Service = &v1alpha1.ServiceReference{Name: r.request.Name, UID: types.UID(r.request.UID), Share: r.request.Share}
	default:
		spec.Pod = &v1alpha1.PodReference{Name: r.request.Name, UID: types.UID(r.request.UID), Failover: r.request.Failover}
		spec.ExternallyAssigned = pool.ExternalAssigner || a.stored != nil && a.stored.Attached
	}
	return spec
}

// before returns the name of the pod that had a stored address before the requesting pod. It is
// never empty for a kept address. So an empty name means that the address was created for this pod,
// or for other pods that never ran.
func before(stored *allocator.Record, request *Request) string {
	switch {
	case stored.PodUID == request.UID:
		return stored.LastPod
	case stored.PodName != "":
		return stored.PodName
	}
	return cmp.Or(stored.LastPod, request.Name)
}
