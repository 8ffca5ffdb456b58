// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// A pool says on which terms it gives addresses. Pods and claims that ask for more are told
// so, and nothing is taken from those who have more.
func TestTermsOfAPool(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 1)
		w.Pool("web", "10.0.70.2-10.0.70.99")
		never := simulation.Policy(v1alpha1.ReleaseNever)
		w.Create(simulation.NewPod("old", never))
		old := w.Address("old")

		for _, rules := range []string{
			`{"spec":{"releasePolicies":[]}}`, `{"spec":{"releasePolicies":["Always"]}}`, `{"spec":{"maxRetainFor":"0s"}}`,
		} {
			if _, err := w.Berth.IPPools.Patch(w.Ctx, "web", "application/merge-patch+json", []byte(rules), metav1.PatchOptions{}); err == nil {
				t.Errorf("the API server takes %s", rules)
			}
		}
		w.PatchPool("web", `{"spec":{"releasePolicies":["PodDeleted","Retain"],"maxRetainFor":"24h","exactAddresses":false}}`)

		const pool = `pool "web" (10.0.70.2-10.0.70.99) `
		w.Create(simulation.NewPod("never", never))
		w.Refused("never", pool+"does not allow release policy Never: set annotation berth.dev/release-policy to PodDeleted or Retain")
		w.Create(simulation.NewPod("long", simulation.And(simulation.Policy(v1alpha1.ReleaseRetain), simulation.Annotated(v1alpha1.AnnotationRetainFor, "25h"))))
		w.Refused("long", pool+"keeps addresses without a pod for at most 24h0m0s: set annotation berth.dev/retain-for to that or less")
		w.Create(simulation.NewPod("exact", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.50")))
		w.Refused("exact", pool+"lets nobody choose an address (spec.exactAddresses): remove annotation berth.dev/addresses")
		w.Create(simulation.NewPod("short", simulation.And(simulation.Policy(v1alpha1.ReleaseRetain), simulation.Annotated(v1alpha1.AnnotationRetainFor, "24h"))))
		w.Bound("short")

		// The address that was given before comes back on its terms, and on no others.
		w.Delete("old")
		w.Create(simulation.NewPod("old", simulation.And(never, simulation.Annotated(v1alpha1.AnnotationRetainFor, "24h"))))
		w.Refused("old", "address "+old+" is retained for Pod default/old on other terms, but "+pool+"does not allow release policy Never")
		w.Delete("old")
		w.Create(simulation.NewPod("old", never))
		if got := w.Address("old"); got != old {
			t.Errorf("the pod has %s, want the %s that was kept for it", got, old)
		}
		// What a running pod says now counts for nothing.
		w.Annotate("short", v1alpha1.AnnotationReleasePolicy, string(v1alpha1.ReleaseNever))
		w.Delete("short")
		w.Create(simulation.NewPod("short", never))
		w.Refused("short", pool+"does not allow release policy Never")

		w.Claim("c", v1alpha1.IPClaimSpec{Size: 1, RetainFor: &metav1.Duration{Duration: 1}, Preallocate: true})
		w.ClaimBecomes("c", "0=0+0 NoPoolFits", pool+`preallocates no addresses`)
		w.PatchClaim("c", `{"spec":{"preallocate":false,"retainFor":"24h"}}`)
		w.ClaimBecomes("c", "0=0+0 OnDemand")
		w.Create(simulation.NewPod("claiming", simulation.Annotated(v1alpha1.AnnotationClaim, "c")))
		claimed := w.Address("claiming")
		w.PatchClaim("c", `{"spec":{"releasePolicy":"Never"}}`)
		w.ClaimBecomes("c", "1=1+0 NoPoolFits", claimed+" keeps release policy Retain: "+pool+`does not allow release policy Never: set spec.releasePolicy of IPClaim "c" to PodDeleted or Retain`)
		if ip, err := w.Berth.FloatingIPs.Get(w.Ctx, claimed, metav1.GetOptions{}); err != nil || ip.Spec.ReleasePolicy != v1alpha1.ReleaseRetain {
			t.Errorf("the claim's address: %v, %v", ip, err)
		}

		// Another pool serves pods that this one does not; a change of this one wakes the others.
		w.Pool("free", "10.0.70.150-10.0.70.151", func(pool *v1alpha1.IPPool) {
			pool.Spec.ReleasePolicies = []v1alpha1.ReleasePolicy{v1alpha1.ReleaseNever}
		})
		got := []string{w.Address("never"), w.Address("short")}
		if slices.Sort(got); !slices.Equal(got, []string{"10.0.70.150", "10.0.70.151"}) {
			t.Errorf("the pods that are kept for ever have %q, want the other pool's addresses", got)
		}
		w.PatchPool("web", `{"spec":{"releasePolicies":null,"maxRetainFor":null,"exactAddresses":null}}`)
		if got := w.Address("exact"); got != "10.0.70.50" {
			t.Errorf("the pod has %s, want 10.0.70.50", got)
		}
		w.Bound("long")
		w.ClaimBecomes("c", "1=1+0 OnDemand")
		w.Invariants()
	})
}

// A pod that names an address does not get it the moment that another's is freed.
func TestFreedAddressRests(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 1)
		w.Pool("web", "10.0.70.2-10.0.70.9", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = nil })
		named := simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.5")
		w.Create(simulation.NewPod("first", named))
		w.Bound("first")
		w.Delete("first")
		w.Eventually("wait for the address to be freed", func() error {
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.5", metav1.GetOptions{})
			if err == nil && (ip.Spec.Owner != nil || ip.Spec.LastNode != nil) {
				err = fmt.Errorf("it has owner %v and last node %v", ip.Spec.Owner, ip.Spec.LastNode)
			}
			return err
		})
		w.Create(simulation.NewPod("second", named))
		w.Refused("second", "10.0.70.5 was freed and is in cooldown")
		w.PatchPool("web", `{"spec":{"cooldown":"0s"}}`)
		if got := w.Address("second"); got != "10.0.70.5" {
			t.Errorf("without a cooldown the pod has %s", got)
		}
		w.Invariants()
	})
}
