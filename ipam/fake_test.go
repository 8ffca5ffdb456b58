// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

// server is an API server in memory with a store that writes to it.
type server struct {
	*ipamtest.Server
	*store.Store
}

func newServer() *server {
	s := ipamtest.NewServer()
	return &server{s, s.Store()}
}

// poolWatch returns fixed pools and claims, and is in sync.
type poolWatch struct {
	pools  []*v1alpha1.IPPool
	claims []*v1alpha1.IPClaim
}

func (w *poolWatch) Claim(namespace, name string) *v1alpha1.IPClaim {
	for _, claim := range w.claims {
		if claim.Namespace == namespace && claim.Name == name {
			return claim
		}
	}
	return nil
}

func (w *poolWatch) WaitForSync(ctx context.Context) bool { return ctx.Err() == nil }

func testPool(name string, ranges ...string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: ranges},
	}
}

// open starts an IPAM on a server, like a new scheduler process: it lists the objects,
// then watches.
func open(t *testing.T, s *server, pools ...*v1alpha1.IPPool) *IPAM {
	t.Helper()
	return openWith(t, s, &poolWatch{pools: pools})
}

// openWith is open with the pools and claims of a watch.
func openWith(t *testing.T, s *server, watch *poolWatch) *IPAM {
	t.Helper()
	i := &IPAM{store: s.Store, watch: watch, pools: pools.NewSource(func() []*v1alpha1.IPPool { return watch.pools })}
	i.book = allocator.New(recordedPods{&i.known})
	i.deletions = newDeletions(i.cooldown, i.rested)
	s.Follow(i.handler())
	synced := make(chan struct{})
	i.OnChange(func(change Change) {
		if change.Everything {
			close(synced)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	<-synced
	i.mu.Lock()
	i.listeners = nil
	i.mu.Unlock()
	return i
}
