// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// capped limits what a namespace may have of a pool.
func capped(n int32) func(*v1alpha1.IPPool) {
	return func(pool *v1alpha1.IPPool) { pool.Spec.MaxPerNamespace = n }
}

// namespace makes one, with labels.
func (w *world) namespace(name string, labels map[string]string) *v1.Namespace {
	w.t.Helper()
	made, err := w.kube.CoreV1().Namespaces().Create(w.ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

// addressIn waits until a pod of a namespace is bound and returns its address.
func (w *world) addressIn(namespace, name string) (address string) {
	w.t.Helper()
	w.eventually("wait for pod "+name+" to be bound", func() error {
		pod, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("not bound; conditions: %v", conditionTexts(pod))
		}
		address = pod.Annotations[v1alpha1.AnnotationFloatingIPs]
		return nil
	})
	return address
}

// createIn makes pods in a namespace.
func (w *world) createIn(namespace string, pods ...*v1.Pod) {
	w.t.Helper()
	for _, pod := range pods {
		pod.Namespace = namespace
		if _, err := w.kube.CoreV1().Pods(namespace).Create(w.ctx, pod, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// shares waits until a pool's status says so of namespaces: "at cap: name
// allocated+retained …".
func (w *world) shares(pool, want string) {
	w.t.Helper()
	w.eventually("wait for the namespaces in the status of pool "+pool, func() error {
		now, err := w.berth.IPPools.Get(w.ctx, pool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := fmt.Sprintf("%d:", now.Status.NamespacesAtCap)
		for _, share := range now.Status.Namespaces {
			got += fmt.Sprintf(" %s %d+%d", share.Name, share.Allocated, share.Retained)
		}
		if got != want {
			return fmt.Errorf("they are %q, want %q", got, want)
		}
		return nil
	})
}

// What a namespace may have of a pool: pods that leave an address each can take no
// more, nor can claims; what it gives back, and a higher cap, wake who waits.
func TestMaxPerNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.controller()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99", capped(3))
	w.namespace("bank", nil)

	// A ResourceQuota sees none of these: the pods are gone.
	left := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		w.create(newPod(name, and(fromPools("web"), policy(v1alpha1.ReleaseNever))))
		left[name] = w.address(name)
		w.delete(name)
	}
	w.shares("web", "1: default 0+3")
	w.create(newPod("d", and(fromPools("web"), policy(v1alpha1.ReleaseNever))))
	w.refused("d", `pool "web" (10.0.70.2-10.0.70.99) gives namespace "default" at most 3 addresses, and it has 3 (0 in use, 3 retained)`)
	w.createIn("bank", newPod("a", fromPools("web")))
	w.addressIn("bank", "a")
	w.create(newPod("a", and(fromPools("web"), policy(v1alpha1.ReleaseNever))))
	if got := w.address("a"); got != left["a"] {
		t.Errorf("at the cap the pod has %s, want the %s that was kept for it", got, left["a"])
	}
	if err := w.berth.FloatingIPs.Delete(w.ctx, left["b"], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.address("d")
	w.shares("web", "1: default 2+1 bank 1+0")

	w.claim("ahead", v1alpha1.IPClaimSpec{Size: 2, Preallocate: true, Pools: []string{"web"}})
	w.claimBecomes("ahead", "0=0+0 NamespaceAtCap", `gives namespace "default" at most 3 addresses, and it has 3 (2 in use, 1 retained)`)
	w.patchPool("web", `{"spec":{"maxPerNamespace":5}}`)
	w.claimBecomes("ahead", "2=0+2 Preallocated")
	w.shares("web", "1: default 2+3 bank 1+0")

	// A lower cap takes nothing away, and none gives to whoever waits.
	w.create(newPod("e", fromPools("web")))
	w.refused("e")
	w.patchPool("web", `{"spec":{"maxPerNamespace":1,"cooldown":"1h"}}`)
	w.shares("web", "2: default 2+3 bank 1+0")
	w.patchPool("web", `{"spec":{"maxPerNamespace":null}}`)
	w.address("e")
	w.shares("web", "0:")

	// Whoever waits is woken by an address that rests.
	w.patchPool("web", `{"spec":{"maxPerNamespace":6}}`)
	w.shares("web", "1: default 3+3 bank 1+0")
	w.create(newPod("f", fromPools("web")))
	w.refused("f")
	w.delete("e")
	w.address("f")
	w.shares("web", "1: default 3+3 bank 1+0")
}

// A pod whose namespace is at its cap evicts one of its own namespace, not one of
// another.
func TestPreemptionAtCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.controller()
	w.scheduler(schedulerOptions{})
	high := w.priority("high", 1000, v1.PreemptLowerPriority)
	w.pool("web", "10.0.70.2-10.0.70.99", capped(1))
	w.namespace("bank", nil)
	w.createIn("bank", newPod("other", fromPools("web")))
	w.addressIn("bank", "other")
	w.create(newPod("victim", fromPools("web")))
	w.bound("victim")
	w.create(newPod("urgent", and(fromPools("web"), high)))
	w.bound("urgent")
	if _, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, "victim", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the victim is still there: %v", err)
	}
	if pod, err := w.kube.CoreV1().Pods("bank").Get(w.ctx, "other", metav1.GetOptions{}); err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the pod of another namespace was evicted: %v", err)
	}
}
