// SPDX-License-Identifier: Apache-2.0

// Package backup defines the content of a backup of Berth's objects, and plans its restore.
// It does no I/O.
//
// # Content of a backup
//
// A backup has all of Berth's objects but NodeAssignments, without the fields that the API
// server sets. Each kind is one snapshot, addresses first: the objects that an address
// refers to are in the backup, unless they were deleted in between.
//
// # Restore of an address
//
//	its pod lives, by UID          held by the pod, as it was
//	a live pod got it later        held by that pod ([planner.lateAddress])
//	Retain, Never, or a claim's    retained for its owner
//	PodDeleted, and its pod gone   not restored
//	at rest                        rests for the remaining time
//	reserved                       reserved, as it was
//
// # Owners
//
// A rebuilt cluster has the same workloads with other UIDs, now or later. An existing
// owner is written with its present UID, a missing one with [v1alpha1.NilUID]: the
// scheduler gives such an address to the pods of the first owner of that group, kind,
// namespace and name, and writes its UID. Addresses without a pod are kept until
// spec.keepUntil, even if the owner exists, because it may get its replicas later. After
// that the controller looks the owner up by name a last time, and then the release policy
// decides.
//
// # Guarantees of a plan
//
// An existing object is changed in two cases only: a live pod runs with the address, or
// the address is at rest, so it has no owner. It is changed only if it is still as read.
// An address of another owner is a conflict.
package backup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type Objects struct {
	Pools  []*v1alpha1.IPPool
	Claims []*v1alpha1.IPClaim
	IPs    []*v1alpha1.FloatingIP
	// Others are of all other kinds of a backup. They refer to no object by its UID.
	Others []*unstructured.Unstructured
}

// Kinds are sorted, without NodeAssignments, which berth-controller makes anew.
func Kinds() []string {
	return slices.DeleteFunc(v1alpha1.Kinds(), func(kind string) bool { return kind == "NodeAssignment" })
}

// All returns all objects, in the order pools, claims, addresses, others.
func (o *Objects) All() []metav1.Object {
	return slices.Concat(anys(o.Pools), anys(o.Claims), anys(o.IPs), anys(o.Others))
}

func anys[T metav1.Object](objects []T) []metav1.Object {
	all := make([]metav1.Object, len(objects))
	for i, object := range objects {
		all[i] = object
	}
	return all
}

func (o *Objects) Len() int { return len(o.Pools) + len(o.Claims) + len(o.IPs) + len(o.Others) }

func (o *Objects) String() string {
	return fmt.Sprintf("%d IPPools, %d IPClaims, %d FloatingIPs and %d other objects", len(o.Pools), len(o.Claims), len(o.IPs), len(o.Others))
}

// Clean returns the objects in the form of a backup: without fields that the API server
// or Berth set, sorted by name, addresses by number. It removes owner references, because
// their UIDs belong to this cluster, and omits pools and claims that are being deleted. It
// does not modify its input.
func Clean(objects *Objects) *Objects {
	clean := &Objects{}
	for _, pool := range objects.Pools {
		if pool.DeletionTimestamp == nil {
			clean.Pools = append(clean.Pools, &v1alpha1.IPPool{TypeMeta: typeOf("IPPool"), ObjectMeta: cleanMeta(&pool.ObjectMeta), Spec: *pool.Spec.DeepCopy()})
		}
	}
	for _, claim := range objects.Claims {
		if claim.DeletionTimestamp == nil {
			clean.Claims = append(clean.Claims, &v1alpha1.IPClaim{TypeMeta: typeOf("IPClaim"), ObjectMeta: cleanMeta(&claim.ObjectMeta), Spec: *claim.Spec.DeepCopy()})
		}
	}
	for _, ip := range objects.IPs {
		clean.IPs = append(clean.IPs, &v1alpha1.FloatingIP{TypeMeta: typeOf("FloatingIP"), ObjectMeta: cleanMeta(&ip.ObjectMeta), Spec: *ip.Spec.DeepCopy()})
	}
	for _, other := range objects.Others {
		if other.GetDeletionTimestamp() == nil {
			kept := &unstructured.Unstructured{Object: map[string]any{"spec": runtime.DeepCopyJSONValue(other.Object["spec"])}}
			kept.SetAPIVersion(v1alpha1.SchemeGroupVersion.String())
			kept.SetKind(other.GetKind())
			kept.SetNamespace(other.GetNamespace())
			kept.SetName(other.GetName())
			kept.SetLabels(other.GetLabels())
			kept.SetAnnotations(other.GetAnnotations())
			clean.Others = append(clean.Others, kept)
		}
	}
	slices.SortFunc(clean.Others, func(a, b *unstructured.Unstructured) int {
		return strings.Compare(nameOf(a.GetKind(), a), nameOf(b.GetKind(), b))
	})
	slices.SortFunc(clean.Pools, func(a, b *v1alpha1.IPPool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(clean.Claims, func(a, b *v1alpha1.IPClaim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(clean.IPs, func(a, b *v1alpha1.FloatingIP) int { return compareNames(a.Name, b.Name) })
	return clean
}

func nameOf(kind string, o metav1.Object) string {
	return (&v1alpha1.Owner{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}).Text()
}

func compareNames(a, b string) int {
	x, _ := v1alpha1.AddrOf(a)
	y, _ := v1alpha1.AddrOf(b)
	return cmp.Or(x.Compare(y), strings.Compare(a, b))
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kind}
}

func cleanMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: o.Annotations}
}

// Add adds an object in JSON, or a list of objects, as in a backup or in kubectl's output.
func (o *Objects) Add(document []byte) error {
	object := map[string]any{}
	if err := utiljson.Unmarshal(document, &object); err != nil {
		return fmt.Errorf("not a Kubernetes object: %w", err)
	}
	return o.add(object)
}

func (o *Objects) add(fields map[string]any) error {
	object := &unstructured.Unstructured{Object: fields}
	items, _, err := unstructured.NestedSlice(fields, "items")
	if strings.HasSuffix(object.GetKind(), "List") {
		for i, item := range items {
			item, _ := item.(map[string]any)
			if err := o.add(item); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return err
	}
	if object.GetName() == "" && object.GetAPIVersion() == v1alpha1.SchemeGroupVersion.String() {
		return fmt.Errorf("%s without metadata.name", object.GetKind())
	}
	if err := o.Put(object); err != nil {
		return fmt.Errorf("%s %s %s: %w", object.GetAPIVersion(), object.GetKind(), object.GetName(), err)
	}
	return nil
}

func (o *Objects) Put(object *unstructured.Unstructured) (err error) {
	if object.GetAPIVersion() != v1alpha1.SchemeGroupVersion.String() || !slices.Contains(Kinds(), object.GetKind()) {
		return fmt.Errorf("a backup has %s %ss, or lists of them", v1alpha1.SchemeGroupVersion, strings.Join(Kinds(), "s, "))
	}
	switch object.GetKind() {
	case "IPPool":
		o.Pools, err = put(o.Pools, object)
	case "IPClaim":
		o.Claims, err = put(o.Claims, object)
	case "FloatingIP":
		if _, err = v1alpha1.AddrOf(object.GetName()); err == nil {
			o.IPs, err = put(o.IPs, object)
		}
	default:
		o.Others = append(o.Others, object)
	}
	return err
}

// CheckNames returns an error if two objects have one name, as in files that were joined.
func (o *Objects) CheckNames() error {
	seen := make(map[string]bool, o.Len())
	var errs []error
	for _, object := range o.All() {
		kind := ""
		switch object := object.(type) {
		case *v1alpha1.IPPool:
			kind = "IPPool"
		case *v1alpha1.IPClaim:
			kind = "IPClaim"
		case *v1alpha1.FloatingIP:
			kind = "FloatingIP"
		case *unstructured.Unstructured:
			kind = object.GetKind()
		}
		name := nameOf(kind, object)
		if seen[name] {
			errs = append(errs, fmt.Errorf("%s occurs twice: remove the older one", name))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

func put[T any](objects []*T, object *unstructured.Unstructured) ([]*T, error) {
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return nil, err
	}
	return append(objects, typed), nil
}
