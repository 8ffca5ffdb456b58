// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

var (
	// ErrTaken is returned when the address has an object already.
	ErrTaken = errors.New("the address is taken")
	// ErrChanged is returned when the object was changed, deleted or replaced since the
	// caller saw it.
	ErrChanged = errors.New("the FloatingIP changed in the meantime")
)

// Store reads and writes FloatingIP objects. Safe for concurrent use; every method is
// one blocking request to the API server.
type Store struct {
	ips *client.FloatingIPs
}

// New returns a Store that uses a client.
func New(ips *client.FloatingIPs) *Store {
	return &Store{ips: ips}
}

// Create creates the object of a free address. It fails with ErrTaken if the address has an object
// already.
func (s *Store) Create(ctx context.Context, ip *v1alpha1.FloatingIP) (*v1alpha1.FloatingIP, error) {
	created, err := s.ips.Create(ctx, ip, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create FloatingIP %s: %w", ip.Name, ErrTaken)
	}
	if err != nil {
		return nil, fmt.Errorf("create FloatingIP %s: %w", ip.Name, err)
	}
	return created, nil
}

// Reserve takes a free address out of circulation, because owner has it from another source. The
// reason is for people. Reserve fails with ErrTaken, as Create does.
func (s *Store) Reserve(ctx context.Context, addr netip.Addr, pool string, owner v1alpha1.Owner, reason string) error {
	_, err := s.Create(ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr), Annotations: map[string]string{v1alpha1.AnnotationReason: reason}},
		Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: pool, Reserved: true, Owner: &owner},
	})
	return err
}

// Update replaces the spec of an object. Labels, annotations and finalizers stay. It
// fails with ErrChanged if the object no longer has the UID and resource version of
// seen.
func (s *Store) Update(ctx context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error) {
	patch, err := updatePatch(seen, spec)
	if err != nil {
		return nil, fmt.Errorf("update FloatingIP %s: %w", seen.Name, err)
	}
	updated, err := s.ips.Patch(ctx, seen.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if changed(err) {
		return nil, fmt.Errorf("update FloatingIP %s: %w", seen.Name, ErrChanged)
	}
	if err != nil {
		return nil, fmt.Errorf("update FloatingIP %s: %w", seen.Name, err)
	}
	return updated, nil
}

// updatePatch returns a JSON patch (RFC 6902) that replaces the spec as a whole. It also sets UID
// and resource version, so that the API server compares them with the present ones. The API server
// answers 409 Conflict if they differ.
func updatePatch(seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) ([]byte, error) {
	return json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/uid", "value": seen.UID},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": seen.ResourceVersion},
		{"op": "replace", "path": "/spec", "value": spec},
	})
}

// Delete deletes an object, which frees its address. It fails with ErrChanged if the
// object is gone or no longer has the UID and resource version of seen.
func (s *Store) Delete(ctx context.Context, seen *v1alpha1.FloatingIP) error {
	err := s.ips.Delete(ctx, seen.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion},
	})
	if changed(err) {
		return fmt.Errorf("delete FloatingIP %s: %w", seen.Name, ErrChanged)
	}
	if err != nil {
		return fmt.Errorf("delete FloatingIP %s: %w", seen.Name, err)
	}
	return nil
}

// changed says whether a conditional write failed because its condition did not hold.
func changed(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// Get reads one object from the API server.
func (s *Store) Get(ctx context.Context, name string) (*v1alpha1.FloatingIP, error) {
	ip, err := s.ips.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	return ip, nil
}
