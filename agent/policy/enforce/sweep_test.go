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

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/api"
)

// crowded is a kernel with so many connections that a look at them takes as long as a test wants.
type crowded struct {
	// sweeps gets each look, which ends with the outcome that the test sends back.
	sweeps chan sweeping
}

type sweeping struct {
	rs        *ruleset.Ruleset
	addresses map[netip.Addr]string
	end       chan swept
}

// swept is the outcome of a look: how many connections are ended.
type swept struct {
	ended int
	err   error
}

func (k crowded) kernel() Kernel {
	return Kernel{
		Table:         func(string) Table { return crowdedTable{sweeps: k.sweeps} },
		NodeAddresses: func() (own, dns []netip.Addr, err error) { return nil, nil, nil },
		Guard:         func([]place.Port) error { return nil },
	}
}

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

func (t crowdedTable) EndConnections(ctx context.Context, rs *ruleset.Ruleset, addresses map[netip.Addr]string) (int, int, error) {
	s := sweeping{rs, addresses, make(chan swept, 1)}
	select {
	case t.sweeps <- s:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	select {
	case is := <-s.end:
		return 0, is.ended, is.err
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// crowd is a node with a pod db and so many connections.
type crowd struct {
	*testing.T
	*Enforcer
	objects *memory
	kernel  crowded
}

// newCrowd has one policy.
func newCrowd(t *testing.T, first *networkingv1.NetworkPolicy) *crowd {
	ctx, cancel := context.WithCancel(t.Context())
	objects := &memory{known: make(chan struct{}), labels: map[string]map[string]string{"shop": {}}}
	db := &policy.Pod{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "db"}, UID: "uid-db", Labels: map[string]string{"app": "db"}}
	objects.before = func() {
		objects.pods = append(objects.pods, db)
		objects.sink.SetPod(nil, db)
		objects.sink.SetNetworkPolicy(first)
	}
	w := &topology{t: t, listed: []Container{{Pod: api.Pod{Namespace: "shop", Name: "db", UID: "uid-db"}, ID: "c-db", Addresses: addresses("10.1.0.1")}}}
	k := crowded{sweeps: make(chan sweeping)}
	c := &crowd{t, New(Options{Pods: PodsAll, Objects: objects, Kernel: k.kernel()}), objects, k}
	var group sync.WaitGroup
	group.Go(func() {
		if err := c.Enforcer.Run(ctx, w); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return c
}

func (c *crowd) written() *ruleset.Ruleset {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node.written
}

// write has a policy written.
func (c *crowd) write(p *networkingv1.NetworkPolicy) {
	c.Helper()
	c.change(func() { c.objects.sink.SetNetworkPolicy(p) })
}

// change has a change of the cluster written.
func (c *crowd) change(change func()) {
	c.Helper()
	before := c.written()
	c.objects.Do(change)
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	if err := c.wait(ctx, nodeKey, c.publish()); err != nil {
		c.Fatalf("a change is not written: %v", err)
	}
	if before == c.written() {
		c.Fatal("nothing was written, so that the test shows nothing")
	}
}

// isOpen returns whether connections are to be looked at.
func (c *crowd) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node.open
}

// end ends a look.
func (c *crowd) end(s sweeping, is swept) {
	c.Helper()
	s.end <- is
	netnstest.Eventually(c.T, func() error {
		if c.isOpen() {
			return errors.New("connections are still looked at")
		}
		return nil
	})
}

// next is the look that comes next, which must be for the ruleset that is in the kernel.
func (c *crowd) next() sweeping {
	c.Helper()
	select {
	case s := <-c.kernel.sweeps:
		if _, has := s.addresses[addresses("10.1.0.1")[0]]; s.rs != c.written() || !has {
			c.Errorf("connections of %v are looked at; for the ruleset that is in the kernel: %t", s.addresses, s.rs == c.written())
		}
		return s
	case <-time.After(time.Minute):
		c.Fatal("nobody looks at connections")
		return sweeping{}
	}
}

// none fails the test where somebody looks at connections.
func (c *crowd) none(wait time.Duration) {
	c.Helper()
	select {
	case <-c.kernel.sweeps:
		c.Fatal("connections are looked at")
	case <-time.After(wait):
	}
}

// A ruleset is written while connections are looked at for the one before: they are looked at again
// for it, once for all that was written meanwhile, and again where that fails.
func TestWriteDuringSweep(t *testing.T) {
	c := newCrowd(t, allow("db", "db"))
	first := c.next()
	// The first look may end connections that these allow.
	c.write(allow("db", "db", "web"))
	c.write(allow("more", "db", "other"))
	c.none(endPause / 10)
	ended := time.Now()
	first.end <- swept{}
	second := c.next()
	if waited := time.Since(ended); waited < endPause {
		t.Errorf("connections were looked at again after %v", waited)
	}
	second.end <- swept{err: errors.New("no memory")}
	c.next().end <- swept{}
	c.none(2 * endPause)
	if c.isOpen() {
		t.Error("connections are said to be open that are forbidden")
	}
}

// Nobody looks at connections after a peer came, unless one that was ended may go on.
func TestSweepsOfAdditiveChanges(t *testing.T) {
	c := newCrowd(t, allow("db", "db", "web"))
	c.end(c.next(), swept{})
	web := &policy.Pod{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}, UID: "uid-web", Labels: map[string]string{"app": "web"}, Addresses: addresses("10.1.0.2")}
	comes, goes := func() { c.objects.sink.SetPod(nil, web) }, func() { c.objects.sink.SetPod(web, nil) }
	for _, tc := range []struct {
		name   string
		change func()
		ended  int
		looks  bool
	}{
		{"a peer comes", comes, 0, false},
		{"a peer goes", goes, 1, true},
		{"a peer comes that may have an ended connection", comes, 0, true},
		{"a policy comes", func() { c.objects.sink.SetNetworkPolicy(allow("more", "db", "more")) }, 0, true},
	} {
		c.change(tc.change)
		if c.isOpen() != tc.looks {
			t.Fatalf("%s: connections are looked at: %t", tc.name, !tc.looks)
		}
		if tc.looks {
			c.end(c.next(), swept{ended: tc.ended})
		}
	}
	// The look that a peer comes during may end connections of the peer.
	c.change(goes)
	look := c.next()
	c.change(comes)
	look.end <- swept{ended: 1}
	c.end(c.next(), swept{})
}
