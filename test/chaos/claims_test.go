// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// claim is an IPClaim as the test wants it.
type claim struct {
	namespace, name string
	spec            v1alpha1.IPClaimSpec
	deleted         bool
}

func (c *claim) String() string { return c.namespace + "/" + c.name }

// claimsOf returns the claims of a namespace, also those that were deleted: pods
// that name one wait for it.
func (d *driver) claimsOf(namespace string) []*claim {
	var claims []*claim
	for _, c := range d.claims {
		if c.namespace == namespace {
			claims = append(claims, c)
		}
	}
	return claims
}

// createClaim makes a claim, or makes one anew that was deleted.
func (d *driver) createClaim() *action {
	size, policy, prefix := d.random.IntN(12), d.random.IntN(5), d.random.IntN(3)
	var c *claim
	for _, other := range d.claims {
		if other.deleted {
			c = other
		}
	}
	if c == nil {
		if len(d.claims) >= 6 {
			return nil
		}
		d.serial++
		c = &claim{namespace: namespaces[d.serial%2], name: fmt.Sprintf("claim-%d", d.serial/2)}
		d.claims = append(d.claims, c)
	}
	c.deleted = false
	c.spec = v1alpha1.IPClaimSpec{
		Size: int32(size), Preallocate: prefix == 0, ReleasePolicy: v1alpha1.ReleaseRetain,
		PoolSelector: &metav1.LabelSelector{MatchLabels: labelsOf(&d.pools[0].spec)},
	}
	switch policy {
	case 0:
		c.spec.ReleasePolicy = v1alpha1.ReleasePodDeleted
	case 1:
		c.spec.ReleasePolicy = v1alpha1.ReleaseNever
	case 2:
		c.spec.RetainFor = &metav1.Duration{Duration: time.Duration(2+size) * time.Second}
	}
	return &action{fmt.Sprintf("create IPClaim %s: size %d, preallocate %t, policy %s, retainFor %v", c, c.spec.Size, c.spec.Preallocate, c.spec.ReleasePolicy, c.spec.RetainFor), func(*rand.Rand) error {
		_, err := d.w.berth.IPClaims(c.namespace).Create(d.w.ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: c.spec}, metav1.CreateOptions{})
		return err
	}}
}

// resizeClaim changes a claim's size and whether it preallocates.
func (d *driver) resizeClaim() *action {
	size, preallocate := d.random.IntN(12), d.random.IntN(3) == 0
	if len(d.claims) == 0 {
		return nil
	}
	c := pick(d.random, d.claims)
	return &action{fmt.Sprintf("resize IPClaim %s to %d, preallocate %t", c, size, preallocate), func(*rand.Rand) error {
		_, err := d.w.berth.IPClaims(c.namespace).Patch(d.w.ctx, c.name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"size":%d,"preallocate":%t}}`, size, preallocate), metav1.PatchOptions{})
		return err
	}}
}

func (d *driver) deleteClaim() *action {
	if len(d.claims) == 0 {
		return nil
	}
	c := pick(d.random, d.claims)
	c.deleted = true
	return &action{fmt.Sprintf("delete IPClaim %s", c), func(*rand.Rand) error { return d.endClaim(c) }}
}

func (d *driver) endClaim(c *claim) error {
	c.deleted = true
	return d.w.berth.IPClaims(c.namespace).Delete(d.w.ctx, c.name, metav1.DeleteOptions{})
}
