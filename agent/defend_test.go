// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// fakeListener hears what a test says.
type fakeListener struct {
	*world
	claims chan conflict.Conflict
}

func (f fakeListener) Listen(targets []conflict.Target) error {
	for _, t := range targets {
		f.note("listen for %s on %d", t.Address, t.Link)
	}
	return nil
}
func (f fakeListener) Claims() <-chan conflict.Conflict { return f.claims }
func (f fakeListener) Close() error                     { return nil }

// noted has the addresses that are in conflict.
type noted struct {
	*world
	addrs map[netip.Addr]bool
}

func (n noted) ReportConflict(_ context.Context, _ api.Pod, addr netip.Addr, what string) error {
	n.note("report %s", what)
	n.addrs[addr] = true
	return nil
}

func (n noted) ClearConflict(_ context.Context, _ api.Pod, addr netip.Addr) error {
	if n.addrs[addr] {
		n.note("clear %s", addr)
		delete(n.addrs, addr)
	}
	return nil
}
func (n noted) InConflict(addr netip.Addr) bool { return n.addrs[addr] }

func TestDefend(t *testing.T) {
	at := func(address string) conflict.Conflict {
		return conflict.Conflict{Address: netip.MustParseAddr(address), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Link: "eth0"}
	}
	foreign := at("10.0.70.5")
	report := "report 10.0.70.5 is in use by the host with MAC 02:00:00:00:00:09 on eth0"
	for name, c := range map[string]struct {
		phase  state.Phase
		holds  error
		claims []conflict.Conflict
		// silent says that the other host answers no probes.
		silent bool
		// then comes claims after a time.
		after time.Duration
		then  []conflict.Conflict
		log   []string
		left  state.Phase
	}{
		"another host":                     {claims: []conflict.Conflict{foreign}, log: []string{"announce c", report}},
		"a node that is late":              {claims: []conflict.Conflict{foreign}, silent: true, log: []string{"announce c"}},
		"it insists":                       {claims: []conflict.Conflict{foreign, foreign, foreign}, log: []string{"announce c", report}},
		"it insists a moment later":        {claims: []conflict.Conflict{foreign}, after: time.Second, then: []conflict.Conflict{foreign}, log: []string{"announce c", report, "after 10s", "announce c", report}},
		"it insists much later":            {claims: []conflict.Conflict{foreign}, after: time.Minute / 2, then: []conflict.Conflict{foreign}, log: []string{"announce c", report, "after 30s", "announce c", report}},
		"of an address that is not here":   {claims: []conflict.Conflict{at("10.0.70.6")}},
		"the address has moved":            {holds: podinfo.ErrNotHolder, claims: []conflict.Conflict{foreign}, log: []string{"withdraw c"}, left: state.Withdrawn},
		"the API does not answer":          {holds: context.DeadlineExceeded, claims: []conflict.Conflict{foreign}},
		"the address was withdrawn before": {phase: state.Withdrawn, claims: []conflict.Conflict{foreign}, left: state.Withdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				a.Drivers = Drivers{api.DriverVeth: segmentDriver{fakeDriver{w}, nil}}
				l := fakeListener{w, make(chan conflict.Conflict, 10)}
				a.Listener, a.ConflictLog = l, noted{w, map[netip.Addr]bool{}}
				a.Prober = probeFunc(func(_ context.Context, targets []conflict.Target) (all []conflict.Conflict, _ error) {
					if !c.silent && len(targets) > 0 {
						all = append(all, foreign)
					}
					return all, nil
				})
				put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
				run(t, a)
				if c.phase != "" {
					put(t, a, "c", c.phase, "/proc/self/ns/net", w.addrs)
				}
				if diff := cmp.Diff([]string{"listen for 10.0.70.5 on 7"}, w.log); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
				w.log, w.holds = nil, c.holds
				start := time.Now()
				say := func(claims []conflict.Conflict) {
					for _, claim := range claims {
						l.claims <- claim
					}
					pass(2 * together)
				}
				say(c.claims)
				if c.then != nil {
					pass(c.after)
					before := len(w.log)
					say(c.then)
					for len(w.log) == before {
						pass(time.Second)
					}
					added := append([]string{"after " + time.Since(start).Round(time.Second).String()}, w.log[before:]...)
					w.log = append(w.log[:before:before], added...)
				}
				if diff := cmp.Diff(c.log, w.log); diff != "" {
					t.Errorf("what happened (-want +got):\n%s", diff)
				}
				left := c.left
				if left == "" {
					left = state.Added
				}
				if diff := cmp.Diff(map[string]state.Phase{"c": left}, phases(t, a)); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The end of a conflict is noted while the pod runs.
func TestEndOfConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		addr := w.addrs[0].Address
		a.Drivers = Drivers{api.DriverVeth: segmentDriver{fakeDriver{w}, nil}}
		a.ConflictLog = noted{w, map[netip.Addr]bool{addr: true}}
		still := []conflict.Conflict{{Address: addr, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Link: "eth0"}}
		a.Prober = probeFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) { return still, nil })
		put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
		run(t, a)
		if diff := cmp.Diff([]string{"report 10.0.70.5 is in use by the host with MAC 02:00:00:00:00:09 on eth0"}, w.log); diff != "" {
			t.Errorf("while the other host answers (-want +got):\n%s", diff)
		}
		w.log, still = nil, nil
		pass(2 * resync)
		if diff := cmp.Diff([]string{"clear 10.0.70.5"}, w.log); diff != "" {
			t.Errorf("after it gave the address up (-want +got):\n%s", diff)
		}
	})
}

// pass lets time pass in a test's bubble, until nothing is left to do.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
