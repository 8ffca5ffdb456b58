// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NamespaceUID returns the UID of the namespace that the address was recorded for.
// It is empty if the UID was not recorded, and [NilUID] if the address waits for
// the first namespace of that name, because it was restored from a backup or
// imported before the namespace was created. The address must have an owner.
func (ip *FloatingIP) NamespaceUID() types.UID {
	if ip.Spec.KeepUntil != nil || ip.Spec.Owner.IsAwaited() && ip.Spec.Owner.NamespaceUID == "" {
		return NilUID
	}
	return ip.Spec.Owner.NamespaceUID
}

// IsOfNamespace returns whether an object that was recorded at the time then, with
// the namespace UID recorded, belongs to namespace. The caller has compared the
// names. If no UID was recorded, the object belongs to namespace unless namespace
// was created later: then another namespace had the name before.
func IsOfNamespace(recorded types.UID, then time.Time, namespace metav1.Object) bool {
	switch recorded {
	case namespace.GetUID(), NilUID:
		return true
	case "":
		return !namespace.GetCreationTimestamp().After(then)
	}
	return false
}
