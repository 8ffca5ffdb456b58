// SPDX-License-Identifier: Apache-2.0

// Package store keeps addresses in use as FloatingIP objects. It owns every
// write of them: creating the object is the claim, because the API server admits
// one object of a name; updates and deletes carry the UID and resource version
// they were decided on, so a decision made on old news fails instead of taking
// an address from somebody. It decides nothing itself.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

var (
	// ErrTaken is returned when the address has an object already.
	ErrTaken = errors.New("the address is taken")
	// ErrChanged is returned when the object is not as the caller saw it: it was
	// changed, deleted or replaced in the meantime.
	ErrChanged = errors.New("the FloatingIP changed in the meantime")
)

// Store writes FloatingIP objects. Safe for concurrent use; every method is one
// request to the API server.
type Store struct {
	ips *client.FloatingIPs
}

// New returns a Store on a client.
func New(ips *client.FloatingIPs) *Store {
	return &Store{ips: ips}
}

// Claim creates the object of a free address. It fails with ErrTaken if there is
// one.
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

// Update writes the spec of an object that must still be the one the caller saw
// (UID, resource version). Labels, annotations and finalizers that others put
// on it stay. It fails with ErrChanged otherwise.
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

// updatePatch replaces the spec as a whole. Writing UID and resource version
// into the object makes the API server compare them with what it has and answer
// 409 Conflict where they differ.
func updatePatch(seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) ([]byte, error) {
	return json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/uid", "value": seen.UID},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": seen.ResourceVersion},
		{"op": "replace", "path": "/spec", "value": spec},
	})
}

// Delete frees the address of an object that must still be the one the caller
// saw. It fails with ErrChanged otherwise, also when the object is gone.
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

// changed says whether an error of a conditional write means that the condition
// did not hold.
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
