// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/api"
)

// crowded is a kernel with so many connections that a look at them takes as long as a test wants.
type crowded struct {
	kernel
	// sweeps gets each look, which ends with the error that the test sends back.
	sweeps chan sweeping
}

type sweeping struct {
	rs        *ruleset.Ruleset
	addresses map[netip.Addr]string
	end       chan error
}

func (k crowded) Table(string) Table                 { return crowdedTable{sweeps: k.sweeps} }
func (crowded) NodeAddresses() ([]netip.Addr, error) { return nil, nil }
func (crowded) Guard([]place.Port) error             { return nil }

// crowdedTable has every ruleset at once.
type crowdedTable struct {
	Table
	sweeps chan sweeping
}

func (crowdedTable) Apply(context.Context, *ruleset.Ruleset) error { return nil }
func (crowdedTable) Verify(context.Context) error                  { return nil }

func (crowdedTable) Adopt(context.Context, []socket.Connection, bool) error {
	return nil
}

func (t crowdedTable) EndConnections(ctx context.Context, rs *ruleset.Ruleset, addresses map[netip.Addr]string) (int, error) {
	s := sweeping{rs, addresses, make(chan error, 1)}
	select {
	case t.sweeps <- s:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case err := <-s.end:
		return 0, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// A ruleset is written while connections are looked at for the one before: they are looked at again for
// it, once for all that was written meanwhile, and again where that fails.
func TestWriteDuringSweep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	objects := &memory{known: make(chan struct{}), labels: map[string]map[string]string{"shop": {}}}
	db := &policy.Pod{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "db"}, UID: "uid-db", Labels: map[string]string{"app": "db"}}
	objects.before = func() {
		objects.pods = append(objects.pods, db)
		objects.sink.SetPod(nil, db)
		objects.sink.SetNetworkPolicy(allow("db", "db"))
	}
	w := &topology{t: t, listed: []Container{{Pod: api.Pod{Namespace: "shop", Name: "db", UID: "uid-db"}, ID: "c-db", Addresses: addresses("10.1.0.1")}}}
	k := crowded{sweeps: make(chan sweeping)}
	e := New(Options{Pods: PodsAll, Objects: objects, Kernel: k})
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		if err := e.Run(ctx, w); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	written := func() *ruleset.Ruleset {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.node.written
	}
	// next is the look that comes next, which must be for the ruleset that is in the kernel.
	next := func() sweeping {
		t.Helper()
		select {
		case s := <-k.sweeps:
			if _, has := s.addresses[addresses("10.1.0.1")[0]]; s.rs != written() || !has {
				t.Errorf("connections of %v are looked at; for the ruleset that is in the kernel: %t", s.addresses, s.rs == written())
			}
			return s
		case <-time.After(time.Minute):
			t.Fatal("nobody looks at connections")
			return sweeping{}
		}
	}
	first := next()
	for _, p := range []*networkingv1.NetworkPolicy{allow("db", "db", "web"), allow("more", "db", "other")} {
		objects.Do(func() { objects.sink.SetNetworkPolicy(p) })
		waits, stop := context.WithTimeout(ctx, 10*time.Second)
		if err := e.wait(waits, nodeKey, e.publish()); err != nil {
			t.Fatalf("a policy that comes while connections are looked at: %v", err)
		}
		stop()
	}
	if first.rs == written() {
		t.Fatal("nothing was written, so that the test shows nothing")
	}
	select {
	case <-k.sweeps:
		t.Fatal("connections are looked at twice at a time")
	case <-time.After(endPause / 10):
	}
	ended := time.Now()
	first.end <- nil
	second := next()
	if waited := time.Since(ended); waited < endPause {
		t.Errorf("connections were looked at again after %v", waited)
	}
	second.end <- errors.New("no memory")
	next().end <- nil
	w.eventually("no connection is open that is forbidden", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return !e.node.open })
	select {
	case <-k.sweeps:
		t.Error("connections are looked at though nothing was written")
	case <-time.After(2 * endPause):
	}
}
