// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NamespaceUID is that of the namespace that the address was recorded for: empty if
// that was not recorded, [NilUID] if the address waits for a namespace of that name,
// since it was restored from a backup or imported before its namespace was made. The
// address must have an owner.
func (ip *FloatingIP) NamespaceUID() types.UID {
	if ip.Spec.KeepUntil != nil || ip.Spec.Owner.IsAwaited() && ip.Spec.Owner.NamespaceUID == "" {
		return NilUID
	}
	return ip.Spec.Owner.NamespaceUID
}

// IsOfNamespace says whether what was recorded then, with that UID of a namespace, is
// this namespace's, which has the right name. If no UID was recorded it is, unless
// the namespace was made later: then another had the name before.
func IsOfNamespace(recorded types.UID, then time.Time, namespace metav1.Object) bool {
	switch recorded {
	case namespace.GetUID(), NilUID:
		return true
	case "":
		return !namespace.GetCreationTimestamp().After(then)
	}
	return false
}
