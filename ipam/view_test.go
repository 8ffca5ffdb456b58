// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/view"
)

// The book can follow a view that other code shares and that runs already.
func TestBookOnAView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ips, pools, claims := fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource()
		informer := func(source cache.ListerWatcher, example runtime.Object) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
		}
		seen, err := view.Of(informer(ips, &v1alpha1.FloatingIP{}), informer(pools, &v1alpha1.IPPool{}), informer(claims, &v1alpha1.IPClaim{}))
		if err != nil {
			t.Fatal(err)
		}
		i, err := New(seen, newServer().Store, nil)
		if err != nil {
			t.Fatal(err)
		}
		compiled := 0
		i.OnChange(func(change Change) {
			if change.Everything {
				compiled++
			}
		})
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2", UID: "taken"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.2", Reserved: true}}
		ips.Add(ip)
		pools.Add(testPool("web", "10.0.70.2"))

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go seen.Run(ctx)
		synctest.Wait()
		if _, err := i.Candidates(request("web-0", "a", "")); !errors.Is(err, ErrNotSynced) {
			t.Errorf("Candidates: %v, want ErrNotSynced", err)
		}
		go i.Run(ctx)
		synctest.Wait()
		if n := i.state.Load().view.Free(0); n != 0 || compiled != 1 {
			t.Errorf("%d addresses are free, want 0; compiled %d times, want 1", n, compiled)
		}
		ips.Delete(ip)
		pools.Add(testPool("more", "10.0.70.3"))
		synctest.Wait()
		if web, more := i.state.Load().view.Free(0), i.state.Load().view.Free(1); web != 1 || more != 1 || compiled != 2 {
			t.Errorf("%d and %d addresses are free, want 1 and 1; compiled %d times, want 2", web, more, compiled)
		}
		cancel()
		for _, source := range []*fcache.FakeControllerSource{ips, pools, claims} {
			source.Shutdown()
		}
	})
}
