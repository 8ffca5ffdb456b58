// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// adopt returns a record with the pod's present workload as the owner. It does so if the recorded
// owner is the pod itself, or a workload of the same kind and name with another UID; otherwise it
// returns nil. This happens when a workload adopts a pod: the former workload was deleted without
// its pods (kubectl delete --cascade=orphan), or a backup tool created the pod without owner
// references. The author of a pod can write any owner reference, so the workload must exist under
// that UID. If the workload already has an address for the pod's name or node, the pod's successor
// gets that address.
func (r *Reclaimer) adopt(ctx context.Context, ip *v1alpha1.FloatingIP, pod *v1.Pod) (*correction, error) {
	if ip.Spec.ReleasePolicy != v1alpha1.ReleaseRetain && ip.Spec.ReleasePolicy != v1alpha1.ReleaseNever || ip.Spec.Owner.IsClaim() {
		return nil, nil
	}
	owner, err := podrequest.OwnerOf(pod, r.Between())
	if err != nil {
		return nil, nil //nolint:nilerr // the event of the ReplicaSet or Job triggers another look
	}
	next := *ip.Spec.Owner
	switch before := ip.Spec.Owner; {
	case owner.UID == before.UID:
		return nil, nil
	case isPod(before) && before.UID == pod.UID:
		if !isShared(&owner) && len(r.rankings.members(&owner)) > 0 {
			return nil, nil
		}
		next, next.NamespaceUID = owner, before.NamespaceUID
	case owner.Name == before.Name && groupKind(owner.APIVersion, owner.Kind) == groupKind(before.APIVersion, before.Kind):
		next.APIVersion, next.UID = owner.APIVersion, owner.UID
	default:
		return nil, nil
	}
	spec := ip.Spec.DeepCopy()
	spec.Owner = &next
	r.bind(ip, spec)
	w, _, err := r.owners.find(ctx, spec.Owner, false)
	if err != nil {
		return nil, r.unknown(ip, pod, fmt.Errorf("find the workload that adopted pod %s: %w", klog.KObj(pod), err))
	}
	if !w.exists {
		return nil, nil
	}
	return &correction{
		spec: spec, did: "A floating IP follows its pod to the workload that adopted it",
		about: []any{"pod", klog.KObj(pod), "kind", spec.Owner.Kind, "owner", spec.Owner.Name},
	}, nil
}

// awaits reports whether it is time to look up, by name, the workload that an address without a pod
// waits for. Package claims looks up claims. If a pod takes such an address, the record gets the
// UID of the pod's workload.
func awaits(ip *v1alpha1.FloatingIP, now time.Time) bool {
	return ip.Spec.Pod == nil && ip.Spec.Owner.IsAwaited() && !ip.Spec.Owner.IsClaim() && needsOwner(&ip.Spec) && keptFor(&ip.Spec, now) == 0
}

// findAwaited returns a record with the UID of the workload that an address waits for, or nil if
// the workload does not exist.
func (r *Reclaimer) findAwaited(ctx context.Context, ip *v1alpha1.FloatingIP) (*correction, error) {
	uid, err := r.owners.customs.UIDOf(ctx, ip.Spec.Owner)
	if err != nil {
		return nil, r.unknown(ip, nil, err)
	}
	if uid == "" {
		return nil, nil
	}
	spec := ip.Spec.DeepCopy()
	spec.Owner.UID = uid
	r.bind(ip, spec)
	return &correction{
		spec: spec, did: "Found the owner that a floating IP waited for",
		about: []any{"kind", spec.Owner.Kind, "owner", spec.Owner.Name, "namespace", spec.Owner.Namespace},
	}, nil
}

func groupKind(apiVersion, kind string) schema.GroupKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
}
