// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

// server is the API server as the store sees it: one object a name, writes
// conditional on UID and resource version. What store itself makes of a real API
// server's answers is tested with one, in test/scheduler.
type server struct {
	mu      sync.Mutex
	version int
	objects map[string]*v1alpha1.FloatingIP
	writes  []string
	// watchers get every change; a test that delays the watch clears them.
	watchers []store.Handler
	// fail is returned by the next creation, of failOn unless that is empty;
	// lostAnswer says whether it was done.
	fail       error
	failOn     string
	lostAnswer bool
}

func newServer() *server { return &server{objects: map[string]*v1alpha1.FloatingIP{}} }

func (s *server) next() string {
	s.version++
	return strconv.Itoa(s.version)
}

func (s *server) failing(name string, done bool) error {
	err := s.fail
	if err == nil || done != s.lostAnswer || s.failOn != "" && s.failOn != name {
		return nil
	}
	s.fail = nil
	return err
}

func (s *server) observed(ip *v1alpha1.FloatingIP) {
	for _, watcher := range s.watchers {
		watcher.Observed(ip.DeepCopy())
	}
}

func (s *server) Claim(_ context.Context, ip *v1alpha1.FloatingIP) (*v1alpha1.FloatingIP, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, "create "+ip.Name)
	if err := s.failing(ip.Name, false); err != nil {
		return nil, err
	}
	if s.objects[ip.Name] != nil {
		return nil, store.ErrTaken
	}
	created := ip.DeepCopy()
	created.ResourceVersion, created.Generation = s.next(), 1
	created.UID = types.UID("uid-" + created.ResourceVersion)
	created.CreationTimestamp = metav1.Unix(int64(s.version), 0)
	s.objects[ip.Name] = created
	s.observed(created)
	if err := s.failing(ip.Name, true); err != nil {
		return nil, err
	}
	return created.DeepCopy(), nil
}

func (s *server) same(seen *v1alpha1.FloatingIP) bool {
	object := s.objects[seen.Name]
	return object != nil && object.UID == seen.UID && object.ResourceVersion == seen.ResourceVersion
}

func (s *server) Update(_ context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, "update "+seen.Name)
	if !s.same(seen) {
		return nil, store.ErrChanged
	}
	updated := s.objects[seen.Name].DeepCopy()
	if equality.Semantic.DeepEqual(updated.Spec, spec) {
		return updated, nil // as the API server does
	}
	updated.Spec, updated.ResourceVersion = spec, s.next()
	updated.Generation++
	s.objects[seen.Name] = updated
	s.observed(updated)
	return updated.DeepCopy(), nil
}

func (s *server) Delete(_ context.Context, seen *v1alpha1.FloatingIP) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, "delete "+seen.Name)
	if !s.same(seen) {
		return store.ErrChanged
	}
	object := s.objects[seen.Name]
	delete(s.objects, seen.Name)
	for _, watcher := range s.watchers {
		watcher.Forgotten(object.DeepCopy(), true)
	}
	return nil
}

func (s *server) Get(_ context.Context, name string) (*v1alpha1.FloatingIP, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object := s.objects[name]; object != nil {
		return object.DeepCopy(), nil
	}
	return nil, fmt.Errorf("no FloatingIP %s", name)
}

// retain is what the controller does when a pod is gone.
func (s *server) retain(t *testing.T, name string) {
	t.Helper()
	object, err := s.Get(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	spec := object.Spec
	spec.Pod, spec.Node = nil, ""
	if _, err := s.Update(context.Background(), object, spec); err != nil {
		t.Fatal(err)
	}
}

// poolWatch has pools and claims and is in sync.
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

// open starts an IPAM on a server, as a scheduler process that starts would: it
// reads what is there, then follows.
func open(t *testing.T, s *server, pools ...*v1alpha1.IPPool) *IPAM {
	t.Helper()
	return openWith(t, s, &poolWatch{pools: pools})
}

// openWith does it with claims.
func openWith(t *testing.T, s *server, watch *poolWatch) *IPAM {
	t.Helper()
	i := &IPAM{store: s, watch: watch, pools: pools.NewSource(func() []*v1alpha1.IPPool { return watch.pools })}
	i.book = allocator.New(recordedPods{&i.known})
	i.rests = newRests(i.cooldown, i.rested)
	s.mu.Lock()
	for _, object := range s.objects {
		i.handler().Observed(object.DeepCopy())
	}
	s.watchers = append(s.watchers, i.handler())
	s.mu.Unlock()
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
