// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// retained returns n addresses that an owner keeps.
func retained(owner *v1alpha1.Owner, n int) []*v1alpha1.FloatingIP {
	owner.Namespace = "ns"
	ips := make([]*v1alpha1.FloatingIP, n)
	for i := range ips {
		ips[i] = record(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), owner, i/100, "")
		ips[i].Spec.ReleasePolicy, ips[i].Spec.LastPod, ips[i].Generation = v1alpha1.ReleaseRetain, fmt.Sprintf("pod-%d", i), 2
	}
	return ips
}

// BenchmarkResync finds everything as it should be: every address of one
// owner is an event, and is looked at.
func BenchmarkResync(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		size := int32(n)
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "owner"}
		for _, owner := range []*v1alpha1.Owner{
			{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Name: "web"},
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		} {
			b.Run(fmt.Sprintf("%s of %d", owner.Kind, n), func(b *testing.B) {
				ips := retained(owner, n)
				w := newFixture(b)
				w.mustNotBeAsked()
				w.cache(&v1alpha1.IPClaim{ObjectMeta: meta, Spec: v1alpha1.IPClaimSpec{Size: size}},
					&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &size, Template: asking(nil)}})
				for i, ip := range ips {
					w.berth.Put(ip)
					w.cache(ip)
					ips[i] = w.cached(ip.Name)
				}
				for b.Loop() {
					resync(b, w.Reclaimer, ips)
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n)/float64(time.Microsecond), "µs/address")
			})
		}
	}
}

func resync(t testing.TB, r *Reclaimer, ips []*v1alpha1.FloatingIP) {
	for _, queue := range r.queues() {
		queue.Open()
	}
	for _, ip := range ips {
		r.addressChanged(ip, false)
	}
	for range ips {
		name, _ := r.queue.Get()
		if _, err := r.reconcile(context.Background(), name, false); err != nil {
			t.Fatal(err)
		}
		r.queue.Done(name)
	}
	if left := r.queue.Len(); left > 0 {
		t.Fatalf("%d addresses are still in the queue", left)
	}
}
