// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestIndexed(t *testing.T) {
	byNode := func(object any) ([]string, error) { return []string{object.(*v1alpha1.FloatingIP).Spec.Node}, nil }
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"node": byNode})
	for name, node := range map[string]string{"10.0.0.1": "n1", "10.0.0.2": "n2", "10.0.0.3": "n1"} {
		if err := indexer.Add(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FloatingIPSpec{Node: node}}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, ip := range Indexed[*v1alpha1.FloatingIP](indexer, "node", "n1") {
		names = append(names, ip.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"10.0.0.1", "10.0.0.3"}) {
		t.Errorf("on n1 are %q", names)
	}
	if got := Indexed[*v1alpha1.FloatingIP](indexer, "node", "n3"); len(got) != 0 {
		t.Errorf("on n3 are %v", got)
	}
}

func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sources := map[string]*fcache.FakeControllerSource{}
		informer := func(kind string, example runtime.Object) cache.SharedIndexInformer {
			sources[kind] = fcache.NewFakeControllerSource()
			return cache.NewSharedIndexInformer(sources[kind], example, 0, cache.Indexers{})
		}
		v, err := Of(informer("ip", &v1alpha1.FloatingIP{}), informer("pool", &v1alpha1.IPPool{}), informer("claim", &v1alpha1.IPClaim{}))
		if err != nil {
			t.Fatal(err)
		}
		meta := metav1.ObjectMeta{Name: "10.0.0.2", UID: "a", Generation: 1, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody"}}}
		sources["ip"].Add(&v1alpha1.FloatingIP{ObjectMeta: meta})
		pool := &v1alpha1.IPPool{ObjectMeta: meta, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.2"}}}
		sources["pool"].Add(pool)

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.Run(ctx)
		}()
		<-v.PoolsSynced.Done()
		first := v.Pools.Snapshot()
		if _, ok := first.Index(pool.Name); !ok {
			t.Error("the pools are synced, and one is missing")
		}
		synctest.Wait()
		for _, object := range append(v.FloatingIPs.GetStore().List(), v.IPPools.GetStore().List()...) {
			if o := object.(metav1.Object); o.GetManagedFields() != nil {
				t.Errorf("%T has managed fields", o)
			}
		}

		changed := v.Pools.Follow()
		counted := pool.DeepCopy()
		counted.Status.Free = 1
		sources["pool"].Modify(counted)
		synctest.Wait()
		if v.Pools.Snapshot() != first {
			t.Error("pools were compiled anew for a status")
		}
		sources["pool"].Delete(counted)
		<-changed
		if _, ok := v.Pools.Snapshot().Index(pool.Name); ok {
			t.Error("a pool that was deleted is still there")
		}
		cancel()
		for _, source := range sources {
			source.Shutdown()
		}
		<-done
	})
}
