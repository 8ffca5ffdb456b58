// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// cached returns a Reclaimer with these objects in its caches, whose informers do
// not run, and its factory of informers. Whatever it asks the API server for is an
// error.
func cached(t testing.TB, ips []*v1alpha1.FloatingIP, claims ...*v1alpha1.IPClaim) (*Reclaimer, informers.SharedInformerFactory) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked the API server: %s %s", r.Method, r.URL) }))
	t.Cleanup(server.Close)
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(Slim))
	config := Config{
		Kube: kube, Berth: api, Factory: factory,
		FloatingIPs: client.NewFloatingIPInformer(api.FloatingIPs, 0, Indexers()),
		Pools:       client.NewIPPoolInformer(api.IPPools, 0), Claims: client.NewIPClaimInformer(api, 0),
	}
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range claims {
		if err := config.Claims.GetIndexer().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
	for _, ip := range ips {
		if err := config.FloatingIPs.GetIndexer().Add(ip); err != nil {
			t.Fatal(err)
		}
	}
	return r, factory
}

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

// What a resync costs that finds everything as it should be: every address of one
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
				r, factory := cached(b, ips, &v1alpha1.IPClaim{ObjectMeta: meta, Spec: v1alpha1.IPClaimSpec{Size: size}})
				if err := factory.Apps().V1().Deployments().Informer().GetIndexer().Add(&appsv1.Deployment{
					ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &size, Template: asking(nil)},
				}); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					resync(b, r, ips)
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(n)/float64(time.Microsecond), "µs/address")
			})
		}
	}
}

func resync(t testing.TB, r *Reclaimer, ips []*v1alpha1.FloatingIP) {
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
