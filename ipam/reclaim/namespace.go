// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// namespaceGone reports whether the namespace of the owner of an address without a pod is
// gone, even if another has its name: then no pod can use the address any more. It asks
// the API server before it returns true.
func (r *Reclaimer) namespaceGone(ctx context.Context, ip *v1alpha1.FloatingIP) (bool, error) {
	name := ip.Spec.Owner.Namespace
	if namespace, err := r.namespaces.Get(name); err == nil && ofNamespace(ip, namespace) {
		return false, nil
	}
	namespace, err := r.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		// An address that waits for its owner by name may exist before its namespace.
		return !ip.Spec.Owner.IsAwaited() || ip.Spec.Owner.NamespaceUID != "", nil
	case err != nil:
		return false, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return !ofNamespace(ip, namespace), nil
}

func ofNamespace(ip *v1alpha1.FloatingIP, namespace *v1.Namespace) bool {
	return v1alpha1.IsOfNamespace(ip.NamespaceUID(), ip.CreationTimestamp.Time, namespace)
}

// bind sets the UID of the namespace in the new spec of an address, if it was not
// recorded yet.
func (r *Reclaimer) bind(ip *v1alpha1.FloatingIP, spec *v1alpha1.FloatingIPSpec) {
	if uid := ip.NamespaceUID(); uid != "" && uid != v1alpha1.NilUID {
		return
	}
	if namespace, err := r.namespaces.Get(spec.Owner.Namespace); err == nil && ofNamespace(ip, namespace) {
		spec.Owner.NamespaceUID = namespace.UID
	}
}

// endWait returns a new record of a restored address whose wait for its owner or its namespace is
// over: the record has the UID of the namespace that has the name now. It returns nil if the
// address still waits, or never waited.
func (r *Reclaimer) endWait(ip *v1alpha1.FloatingIP) *correction {
	if ip.NamespaceUID() != v1alpha1.NilUID {
		return nil
	}
	spec := ip.Spec.DeepCopy()
	r.bind(ip, spec)
	if ip.Spec.KeepUntil == nil && spec.Owner.NamespaceUID == "" {
		return nil // The namespace does not exist yet.
	}
	spec.KeepUntil = nil
	return &correction{
		spec: spec, did: "The wait of a restored floating IP is over, its release policy applies",
		about: []any{"namespace", spec.Owner.Namespace},
	}
}
