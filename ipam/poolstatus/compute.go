// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// mostNamespaces limits status.namespaces. The CRD has the same limit.
const mostNamespaces = 10

// showNamespaces writes the namespaces with the most addresses of a pool with a cap into
// the status, and the number of namespaces at the cap.
func (u *uses) showNamespaces(maximum int64, status *v1alpha1.IPPoolStatus) {
	shares := make([]v1alpha1.NamespaceShare, 0, len(u.namespaces))
	for _, share := range u.namespaces {
		shares = append(shares, *share)
		if share.Allocated+share.Retained >= maximum {
			status.NamespacesAtCap++
		}
	}
	slices.SortFunc(shares, func(a, b v1alpha1.NamespaceShare) int {
		return cmp.Or(cmp.Compare(b.Allocated+b.Retained, a.Allocated+a.Retained), cmp.Compare(a.Name, b.Name))
	})
	if len(shares) > 0 {
		status.Namespaces = slices.Clip(shares[:min(len(shares), mostNamespaces)])
	}
}

// compute returns the new status of each pool; before has the present ones, reached is of
// [pools.Snapshot.Reached]. Pure.
func compute(objects []*v1alpha1.IPPool, before []v1alpha1.IPPoolStatus, snapshot *pools.Snapshot, reached []bool, t *tally, now metav1.Time) []v1alpha1.IPPoolStatus {
	statuses := make([]v1alpha1.IPPoolStatus, len(objects))
	for i, object := range objects {
		status := &statuses[i]
		at, compiled := snapshot.Index(object.Name)
		if !compiled && snapshot.Invalid(object.Name) == nil {
			*status = before[i] // It was created after the snapshot was compiled.
			continue
		}
		n := t.pools[object.Name]
		status.ObservedGeneration = object.Generation
		status.Allocated, status.Retained, status.Reserved, status.Cooling = n.allocated, n.retained, n.reserved, n.cooling
		status.Outside = n.outside
		n.showNamespaces(int64(object.Spec.MaxPerNamespace), status)
		if compiled {
			status.Capacity = int64(min(snapshot.Pools()[at].Ranges.Size(), math.MaxInt64))
		}
		if !object.Spec.Disabled {
			status.Free = untaken(status)
		}
		status.Conditions = slices.Clone(before[i].Conditions)
		for _, condition := range conditions(object, status, snapshot, compiled && !reached[at]) {
			condition.ObservedGeneration = object.Generation
			condition.LastTransitionTime = now
			meta.SetStatusCondition(&status.Conditions, condition)
		}
	}
	return statuses
}

// untaken returns the number of addresses that are not in use, reserved or cooling down.
func untaken(status *v1alpha1.IPPoolStatus) int64 {
	return status.Capacity - status.Allocated - status.Retained - status.Reserved - status.Cooling
}

// Reasons of the conditions.
const (
	ReasonValid    = "Valid"
	ReasonInvalid  = "Invalid"
	ReasonDisabled = "Disabled"
	ReasonOverlap  = "Overlap"
	ReasonNoNode   = "NoNode"

	ReasonAddressesFree = "AddressesFree"
	ReasonNoAddressFree = "NoAddressFree"
)

func conditions(object *v1alpha1.IPPool, status *v1alpha1.IPPoolStatus, snapshot *pools.Snapshot, unreached bool) []metav1.Condition {
	ready := metav1.Condition{Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue, Reason: ReasonValid, Message: "The scheduler allocates from the pool."}
	switch err := snapshot.Invalid(object.Name); {
	case err != nil:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, ReasonInvalid, err.Error()
	case object.Spec.Disabled:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, ReasonDisabled, "spec.disabled is true: no new addresses are allocated, addresses in use stay."
	case len(snapshot.Overlaps(object.Name)) > 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, ReasonOverlap, "Pools overlap, and "+snapshot.OverlapText(object.Name)+": remove them from one of the two."
	case unreached:
		ready.Status, ready.Reason = metav1.ConditionFalse, ReasonNoNode
		ready.Message = "No node of the cluster has an InternalIP in spec.nodeSubnets and labels that match spec.nodeSelector, so that no pod gets an address."
	}
	exhausted := metav1.Condition{Type: v1alpha1.PoolExhausted, Status: metav1.ConditionFalse, Reason: ReasonAddressesFree, Message: "There are free addresses."}
	switch {
	case untaken(status) <= 0:
		exhausted.Status, exhausted.Reason = metav1.ConditionTrue, ReasonNoAddressFree
		exhausted.Message = fmt.Sprintf("All %d addresses are taken: %d allocated, %d retained, %d reserved, %d cooling down.",
			status.Capacity, status.Allocated, status.Retained, status.Reserved, status.Cooling)
	case object.Spec.Disabled:
		// This is not a shortage.
		exhausted.Reason, exhausted.Message = ReasonDisabled, "Not all addresses are taken, but spec.disabled is true."
	}
	return []metav1.Condition{ready, exhausted}
}

// sameConditions reports whether the conditions say the same, whatever their messages.
func sameConditions(a, b *v1alpha1.IPPoolStatus) bool {
	return slices.EqualFunc(a.Conditions, b.Conditions, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
	})
}

// isUsed reports whether a pod or workload has an address.
func isUsed(s *v1alpha1.IPPoolStatus) bool { return s.Allocated+s.Retained > 0 }

// same reports whether two statuses are equal. It avoids reflection, which is much slower,
// because there are thousands of pools.
func same(a, b *v1alpha1.IPPoolStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.Capacity == b.Capacity &&
		a.Allocated == b.Allocated && a.Retained == b.Retained && a.Reserved == b.Reserved && a.Cooling == b.Cooling &&
		a.Free == b.Free && a.Outside == b.Outside &&
		a.NamespacesAtCap == b.NamespacesAtCap && slices.Equal(a.Namespaces, b.Namespaces) &&
		slices.EqualFunc(a.Conditions, b.Conditions, func(a, b metav1.Condition) bool {
			return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
				a.ObservedGeneration == b.ObservedGeneration && a.LastTransitionTime.Equal(&b.LastTransitionTime)
		})
}
