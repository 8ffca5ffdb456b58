// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Objects are Berth's objects of a cluster.
type Objects struct {
	Pools  []*v1alpha1.IPPool
	Claims []*v1alpha1.IPClaim
	IPs    []*v1alpha1.FloatingIP
}

// Len returns the number of objects.
func (o *Objects) Len() int { return len(o.Pools) + len(o.Claims) + len(o.IPs) }

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
	slices.SortFunc(clean.Pools, func(a, b *v1alpha1.IPPool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(clean.Claims, func(a, b *v1alpha1.IPClaim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(clean.IPs, func(a, b *v1alpha1.FloatingIP) int { return compareNames(a.Name, b.Name) })
	return clean
}

// compareNames orders names of FloatingIPs by address.
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
	var object struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(document, &object); err != nil {
		return fmt.Errorf("not a Kubernetes object: %w", err)
	}
	if strings.HasSuffix(object.Kind, "List") {
		for i, item := range object.Items {
			if err := o.Add(item); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	var err error
	switch {
	case object.APIVersion != v1alpha1.SchemeGroupVersion.String():
		err = errNotBerths
	case object.Metadata.Name == "":
		return fmt.Errorf("%s without metadata.name", object.Kind)
	case object.Kind == "IPPool":
		o.Pools, err = add(o.Pools, document)
	case object.Kind == "IPClaim":
		o.Claims, err = add(o.Claims, document)
	case object.Kind == "FloatingIP":
		if _, err = v1alpha1.AddrOf(object.Metadata.Name); err == nil {
			o.IPs, err = add(o.IPs, document)
		}
	default:
		err = errNotBerths
	}
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", object.APIVersion, object.Kind, object.Metadata.Name, err)
	}
	return nil
}

// CheckNames returns an error if two objects have one name, as in files that were joined.
func (o *Objects) CheckNames() error {
	seen := make(map[string]bool, o.Len())
	var errs []error
	check := func(name string) {
		if seen[name] {
			errs = append(errs, fmt.Errorf("%s occurs twice: remove the older one", name))
		}
		seen[name] = true
	}
	for _, pool := range o.Pools {
		check("IPPool " + pool.Name)
	}
	for _, claim := range o.Claims {
		check("IPClaim " + claim.Namespace + "/" + claim.Name)
	}
	for _, ip := range o.IPs {
		check("FloatingIP " + ip.Name)
	}
	return errors.Join(errs...)
}

var errNotBerths = fmt.Errorf("a backup has %s IPPools, IPClaims and FloatingIPs, or lists of them", v1alpha1.SchemeGroupVersion)

func add[T any](objects []*T, document []byte) ([]*T, error) {
	object := new(T)
	if err := json.Unmarshal(document, object); err != nil {
		return nil, err
	}
	return append(objects, object), nil
}
