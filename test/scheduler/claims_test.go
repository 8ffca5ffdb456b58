// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// ofClaim makes a pod draw from an IPClaim.
func ofClaim(name string) func(*v1.Pod) { return annotated(v1alpha1.AnnotationClaim, name) }

// claim makes an IPClaim.
func (w *world) claim(name string, spec v1alpha1.IPClaimSpec) {
	w.t.Helper()
	_, err := w.berth.IPClaims(namespace).Create(w.ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) patchClaim(name, patch string) {
	w.t.Helper()
	if _, err := w.berth.IPClaims(namespace).Patch(w.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) deleteClaim(name string) {
	w.t.Helper()
	if err := w.berth.IPClaims(namespace).Delete(w.ctx, name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// claimBecomes waits until a claim's status is
// "addresses=allocated+retained reason", with "Oversized" after it if it is, and
// has all texts in Ready's message.
func (w *world) claimBecomes(name, want string, texts ...string) {
	w.t.Helper()
	w.eventually("wait for the status of IPClaim "+name, func() error {
		claim, err := w.berth.IPClaims(namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := claim.Status
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ClaimReady)
		if ready == nil || s.ObservedGeneration != claim.Generation {
			return errors.New("it has none of this generation")
		}
		got := fmt.Sprintf("%d=%d+%d %s", s.Addresses, s.Allocated, s.Retained, ready.Reason)
		if meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ClaimOversized) {
			got += " Oversized"
		}
		if got != want {
			return fmt.Errorf("it is %q, want %q; Ready says %q", got, want, ready.Message)
		}
		for _, text := range texts {
			if !strings.Contains(ready.Message, text) {
				return fmt.Errorf("Ready says %q, want %q in it", ready.Message, text)
			}
		}
		return nil
	})
}

// What the controller does with claims, and says of them.
func TestClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()

	t.Run("preallocated before any pod", func(t *testing.T) {
		w := w.on(t)
		w.pool("pre", "10.0.70.2-10.0.70.9")
		w.claim("pre", v1alpha1.IPClaimSpec{Size: 5, Preallocate: true, Pools: []string{"pre"}})
		w.claimBecomes("pre", "5=0+5 Preallocated", "All 5 IPv4 addresses are there")
		w.eventually("wait for the event", func() error { return w.eventOf("pre", "Preallocated", "All 5") })
		if got := len(w.addressesOf("pre")); got != 5 {
			t.Errorf("it has %d addresses", got)
		}
	})
	t.Run("more than the pool has, until that grows", func(t *testing.T) {
		w := w.on(t)
		w.pool("small", "10.0.70.20-10.0.70.21")
		w.claim("greedy", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true, Pools: []string{"small", "none"}})
		w.claimBecomes("greedy", "2=0+2 PoolsExhausted", "2 of 4 IPv4 addresses", `pool "small" (10.0.70.20-10.0.70.21) has no free address`)
		w.eventually("wait for the event", func() error { return w.eventOf("greedy", "PreallocationFailed", "PoolsExhausted: 2 of 4") })
		w.patchPool("small", `{"spec":{"ranges":["10.0.70.20-10.0.70.29"]}}`)
		w.claimBecomes("greedy", "4=0+4 Preallocated")
	})
	t.Run("no such pool", func(t *testing.T) {
		w := w.on(t)
		w.claim("lost", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true, Pools: []string{"none"}})
		w.claimBecomes("lost", "0=0+0 NoSuchPool", `there is no IPPool "none"`)
		w.claim("six", v1alpha1.IPClaimSpec{Size: 1, Preallocate: true, Families: []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}, Pools: []string{"pre"}})
		w.claimBecomes("six", "1=0+1 NoPoolFits", "0 of 1 IPv6 addresses", `pool "pre" (10.0.70.2-10.0.70.9) has no IPv6 addresses`)
	})

	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.100-10.0.70.199")
	t.Run("pods of a claim", func(t *testing.T) {
		w := w.on(t)
		w.claim("shop", v1alpha1.IPClaimSpec{Size: 3, Pools: []string{"web"}})
		w.claimBecomes("shop", "0=0+0 OnDemand")
		w.create(newPods("shop", 3, ofClaim("shop"))...)
		w.bound("shop-0", "shop-1", "shop-2")
		w.claimBecomes("shop", "3=3+0 OnDemand")
		w.delete("shop-2")
		w.claimBecomes("shop", "3=2+1 OnDemand")
		w.patchClaim("shop", `{"spec":{"size":1}}`)
		w.claimBecomes("shop", "2=2+0 OnDemand Oversized")
		w.eventually("wait for the event", func() error { return w.eventOf("shop", "Oversized", "its size is 1") })
		w.delete("shop-1")
		w.claimBecomes("shop", "1=1+0 OnDemand")
		w.invariants()
	})
	t.Run("pods draw what was preallocated", func(t *testing.T) {
		w := w.on(t)
		before := w.addressesOf("pre")
		w.create(newPods("pre", 5, ofClaim("pre"))...)
		w.bound("pre-0", "pre-1", "pre-2", "pre-3", "pre-4")
		w.claimBecomes("pre", "5=5+0 Preallocated")
		if now := w.addressesOf("pre"); !slices.Equal(now, before) {
			t.Errorf("it has %v, it had %v", now, before)
		}
		w.create(newPod("pre-5", ofClaim("pre")))
		w.refused("pre-5", `IPClaim "pre"`)
		w.delete("pre-5")
		w.invariants()
	})
	t.Run("renamed while a pod holds an address", func(t *testing.T) {
		w := w.on(t)
		held, before := w.address("pre-0"), w.addressesOf("pre")
		w.delete("pre-4")
		w.claimBecomes("pre", "5=4+1 Preallocated")
		w.claim("after", v1alpha1.IPClaimSpec{Size: 4, TakeOver: "pre"})
		w.claimBecomes("after", "4=4+0 OnDemand")
		w.claimBecomes("pre", "1=0+1 TakenOver", `IPClaim "after"`)
		w.eventually("wait for the event", func() error { return w.eventOf("after", "TookOver", `of IPClaim "pre"`) })
		w.patchClaim("after", `{"spec":{"size":5}}`)
		w.claimBecomes("after", "5=4+1 OnDemand")
		w.claimBecomes("pre", "0=0+0 TakenOver")
		if now := w.addressesOf("after"); !slices.Equal(now, before) {
			t.Errorf("it has %v, it took over %v", now, before)
		}
		w.deleteClaim("pre")
		w.patchClaim("after", `{"spec":{"takeOver":null}}`)
		w.invariants()
		w.delete("pre-0")
		w.claimBecomes("after", "5=3+2 OnDemand")
		w.create(newPods("after", 2, ofClaim("after"))...)
		got := []string{w.address("after-0"), w.address("after-1")}
		if !slices.Contains(got, held) {
			t.Errorf("its pods have %v, %s was pre-0's", got, held)
		}
		w.claimBecomes("after", "5=5+0 OnDemand")
		w.invariants()
	})
	t.Run("claims that take over each other", func(t *testing.T) {
		w := w.on(t)
		before := w.addressesOf("after")
		w.claim("rival", v1alpha1.IPClaimSpec{Size: 9, TakeOver: "after"})
		w.claimBecomes("rival", "5=5+0 OnDemand")
		w.patchClaim("after", `{"spec":{"takeOver":"rival"}}`)
		w.claimBecomes("rival", "5=5+0 TakeOverConflict", "after, rival take over each other")
		w.claimBecomes("after", "0=0+0 TakeOverConflict", "after, rival take over each other")
		if now := w.addressesOf("rival"); !slices.Equal(now, before) {
			t.Errorf("it has %v, want %v", now, before)
		}
		w.invariants()
	})
	t.Run("deleted and made again under pods", func(t *testing.T) {
		w := w.on(t)
		w.claim("again", v1alpha1.IPClaimSpec{Size: 2, ReleasePolicy: v1alpha1.ReleaseNever, Pools: []string{"web"}})
		w.create(newPods("again", 2, ofClaim("again"))...)
		w.bound("again-0", "again-1")
		w.delete("again-1")
		w.claimBecomes("again", "2=1+1 OnDemand")
		before := w.addressesOf("again")
		w.deleteClaim("again")
		w.claim("again", v1alpha1.IPClaimSpec{Size: 2, Pools: []string{"web"}})
		w.claimBecomes("again", "2=1+1 OnDemand")
		w.create(newPod("again-1", ofClaim("again")))
		w.bound("again-1")
		if now := w.addressesOf("again"); !slices.Equal(now, before) {
			t.Errorf("it has %v, it had %v", now, before)
		}
		w.claimBecomes("again", "2=2+0 OnDemand")
		w.delete("again-0", "again-1")
		w.deleteClaim("again")
		w.eventually("wait for its addresses to be free", func() error {
			if now := w.addressesOf("again"); len(now) > 0 {
				return fmt.Errorf("it has %v", now)
			}
			return nil
		})
	})
}

// A controller that is killed at any of its writes for claims is followed by one
// that ends what it began.
func TestClaimsControllerKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99")
	for _, at := range []point{beforeRequest, beforeAnswer} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			w := w.on(t)
			source, taker := fmt.Sprintf("source-%d", at), fmt.Sprintf("taker-%d", at)
			first := w.controller()
			tap := first.stop(isClaim, at)
			w.claim(source, v1alpha1.IPClaimSpec{Size: 5, Preallocate: true})
			tap.wait(w)
			first.kill()
			tap.drop()
			second := w.controller()
			w.claimBecomes(source, "5=0+5 Preallocated")
			before := w.addressesOf(source)

			tap = second.stop(isIPPatch, at)
			w.claim(taker, v1alpha1.IPClaimSpec{Size: 5, Preallocate: true, TakeOver: source})
			tap.wait(w)
			second.kill()
			tap.drop()
			third := w.controller()
			w.claimBecomes(taker, "5=0+5 Preallocated")
			w.claimBecomes(source, "0=0+0 TakenOver")
			if now := w.addressesOf(taker); !slices.Equal(now, before) {
				t.Errorf("it has %v, it took over %v", now, before)
			}
			third.kill()
		})
	}
}

// One version of an application gives way to the next, with its addresses.
func TestClaimBlueGreen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.99")
	w.claim("shop", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true})
	w.claimBecomes("shop", "4=0+4 Preallocated")
	original := w.addressesOf("shop")

	deploy := func(name string, replicas int32) {
		w.t.Helper()
		_, err := w.kube.AppsV1().Deployments(namespace).Create(w.ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
				Template: template(name, ofClaim("shop")),
			},
		}, metav1.CreateOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	podsOf := func(name string) []v1.Pod {
		pods, err := w.pods()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(pods, func(pod v1.Pod) bool { return pod.Labels["app"] != name })
	}
	deploy("blue", 3)
	w.rolledOut("blue", 3)
	w.claimBecomes("shop", "4=3+1 Preallocated")
	// The first pod of green is a trial with the address to spare; others wait.
	deploy("green", 1)
	w.rolledOut("green", 1)
	w.claimBecomes("shop", "4=4+0 Preallocated")
	w.patchDeployment("green", `{"spec":{"replicas":3}}`)
	w.eventually("wait for green's other pods to be told why they wait", func() error {
		n := 0
		for _, pod := range podsOf("green") {
			for _, condition := range pod.Status.Conditions {
				if condition.Reason == v1.PodReasonUnschedulable && strings.Contains(condition.Message, `IPClaim "shop" has all 4 addresses`) {
					n++
				}
			}
		}
		if n != 2 {
			return fmt.Errorf("%d of 2 were", n)
		}
		return nil
	})
	w.patchDeployment("blue", `{"spec":{"replicas":0}}`)
	w.rolledOut("blue", 0)
	w.rolledOut("green", 3)
	w.claimBecomes("shop", "4=3+1 Preallocated")
	for _, pod := range podsOf("green") {
		if address := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; !slices.Contains(original, address) {
			t.Errorf("green has %s, which is not one of %v", address, original)
		}
	}
	if now := w.addressesOf("shop"); !slices.Equal(now, original) {
		t.Errorf("the claim has %v, it had %v", now, original)
	}
	background := metav1.DeletePropagationBackground
	if err := w.kube.AppsV1().Deployments(namespace).Delete(w.ctx, "blue", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	w.invariants()
	w.deleteClaim("shop")
	w.eventually("wait for the spare address to be free", func() error {
		if now := w.addressesOf("shop"); len(now) != 3 {
			return fmt.Errorf("it has %v", now)
		}
		return nil
	})
	w.patchDeployment("green", `{"spec":{"replicas":0}}`)
	w.eventually("wait for all addresses to be free", func() error {
		if now := w.addressesOf("shop"); len(now) != 0 {
			return fmt.Errorf("it has %v", now)
		}
		return nil
	})
}

// The controller's metrics and events about pools and claims.
func TestClaimAndPoolMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	address := freeAddress(t)
	w.controller(serveAt(address)...)
	w.pool("web", "10.0.70.2-10.0.70.4")
	w.claim("shop", v1alpha1.IPClaimSpec{Size: 3, Preallocate: true})
	w.claimBecomes("shop", "3=0+3 Preallocated")
	w.scrapes("https://"+address,
		[]string{
			`berth_pool_addresses{pool="web",state="retained"} 3`, `berth_pool_addresses{pool="web",state="free"} 0`,
			`berth_pool_capacity{pool="web"} 3`, `berth_pool_outside_addresses{pool="web"} 0`,
			`berth_claim_addresses{claim="shop",namespace="default",state="retained"} 3`,
			`berth_claim_size{claim="shop",namespace="default"} 3`, `berth_claim_ready{claim="shop",namespace="default"} 1`,
		}, nil)
	w.eventually("wait for the event", func() error { return w.eventOf("web", "Exhausted", "All 3 addresses are taken") })

	w.patchPool("web", `{"spec":{"ranges":["10.0.70.3-10.0.70.5"]}}`)
	w.eventually("wait for the event", func() error { return w.eventOf("web", "AddressesOutside", "1 addresses") })
	w.eventually("wait for the event", func() error { return w.eventOf("web", "AddressesFree", "") })
	if err := w.berth.IPPools.Delete(w.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.scrapes("https://"+address, []string{`berth_pool_outside_addresses{pool="web"} 3`}, []string{`berth_pool_capacity{pool="web"}`})
	w.eventually("wait for the event", func() error { return w.eventOf("10.0.70.3", "PoolGone", `IPPool "web" is gone`) })
	w.deleteClaim("shop")
	w.scrapes("https://"+address, nil, []string{`claim="shop"`, `pool="web"`})
}
