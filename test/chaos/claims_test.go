// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
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
	// kind of its addresses: four, dual for both families, or the name of a pool. It
	// stays, as pods that name the claim do.
	kind    string
	spec    v1alpha1.IPClaimSpec
	deleted bool
}

func (c *claim) String() string { return c.namespace + "/" + c.name }

// claimsOf returns the claims of a namespace, also deleted claims: pods
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

// requestOfClaim draws what the pods of a workload ask of a claim.
func (d *driver) requestOfClaim(wl *workload, c *claim) {
	wl.annotations[v1alpha1.AnnotationClaim] = c.name
	switch what := d.random.IntN(5); {
	case what == 0:
		wl.shape = shape{map[string]string{"four": "scarce", "any": "any", "dual": "any", "cloud": "cloud"}[c.kind]}
		wl.annotations[v1alpha1.AnnotationAddresses] = d.lists(wl.shape, wl.replicas)
	case c.kind == "dual" && what <= 3:
		wl.asks = 2
		wl.annotations[v1alpha1.AnnotationFamilies] = bothFamilies
	case c.kind == "dual":
		wl.annotations[v1alpha1.AnnotationFamilies] = "IPv4"
	}
}

// createClaim makes a claim, or makes one anew that was deleted.
func (d *driver) createClaim() *action {
	size, policy, prefix := d.random.IntN(12), d.random.IntN(5), d.random.IntN(3)
	var c *claim
	for _, deleted := range d.claims {
		if deleted.deleted && (d.elect.schedulers || deleted.kind != "cloud") {
			c = deleted
		}
	}
	if c == nil {
		if len(d.claims) >= 8 {
			return nil
		}
		d.serial++
		c = &claim{namespace: namespaces[d.serial%2], name: fmt.Sprintf("claim-%d", d.serial/2), kind: pick(d.random, []string{"four", "dual", d.cloud()})}
		d.claims = append(d.claims, c)
	}
	c.deleted = false
	c.spec = v1alpha1.IPClaimSpec{
		Size: int32(size), Preallocate: prefix == 0, PoolSelector: &metav1.LabelSelector{MatchLabels: labelsOf(&d.pools[0].spec)},
	}
	switch c.kind {
	case "dual":
		c.spec.PoolSelector, c.spec.Families = nil, []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}
	case "any", "cloud":
		c.spec.PoolSelector, c.spec.Pools = nil, []string{c.kind}
	}
	c.spec.ReleasePolicy, c.spec.RetainFor = rule(policy, size)
	spec := *c.spec.DeepCopy()
	return &action{fmt.Sprintf("create IPClaim %s: size %d, preallocate %t, %s, policy %s, retainFor %v", c, spec.Size, spec.Preallocate, c.kind, spec.ReleasePolicy, spec.RetainFor), func(*rand.Rand) error {
		_, err := d.w.Berth.IPClaims(c.namespace).Create(d.w.Ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}}
}

// rule makes a claim's rule of release of two random numbers.
func rule(policy, seconds int) (v1alpha1.ReleasePolicy, *metav1.Duration) {
	switch policy {
	case 0:
		return v1alpha1.ReleasePodDeleted, nil
	case 1:
		return v1alpha1.ReleaseNever, nil
	case 2:
		return v1alpha1.ReleaseRetain, &metav1.Duration{Duration: time.Duration(2+seconds) * time.Second}
	}
	return v1alpha1.ReleaseRetain, nil
}

// reruleClaim changes how a claim's addresses are released.
func (d *driver) reruleClaim() *action {
	policy, limit := rule(d.random.IntN(5), d.random.IntN(12))
	if len(d.claims) == 0 {
		return nil
	}
	c := pick(d.random, d.claims)
	return &action{fmt.Sprintf("let IPClaim %s release by %s, retainFor %v", c, policy, limit), func(*rand.Rand) error {
		return d.patchClaim(c, map[string]any{"releasePolicy": policy, "retainFor": limit})
	}}
}

func (d *driver) patchClaim(c *claim, spec map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = d.w.Berth.IPClaims(c.namespace).Patch(d.w.Ctx, c.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// resizeClaim changes a claim's size and whether it preallocates.
func (d *driver) resizeClaim() *action {
	size, preallocate := d.random.IntN(12), d.random.IntN(3) == 0
	if len(d.claims) == 0 {
		return nil
	}
	c := pick(d.random, d.claims)
	return &action{fmt.Sprintf("resize IPClaim %s to %d, preallocate %t", c, size, preallocate), func(*rand.Rand) error {
		return d.patchClaim(c, map[string]any{"size": size, "preallocate": preallocate})
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
	return d.w.Berth.IPClaims(c.namespace).Delete(d.w.Ctx, c.name, metav1.DeleteOptions{})
}
