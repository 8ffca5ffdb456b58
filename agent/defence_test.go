// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
)

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
	seconds := func(all ...float64) (at []time.Duration) {
		for _, s := range all {
			at = append(at, time.Duration(s*float64(time.Second)))
		}
		return at
	}
	for name, c := range map[string]struct {
		phase state.Phase
		holds error
		// claimed is the address; empty means the pod's.
		claimed string
		// at is when the other host claims it.
		at []time.Duration
		// silent says that the other host answers no probes.
		silent bool
		// then happens a second after the first claim.
		then func(t *testing.T, a *Agent, w *world)
		log  []string
		left state.Phase
	}{
		"another host":                     {at: seconds(0), log: []string{"0.1s announce c", "2.1s announce c", "2.1s " + report}},
		"a node that is late":              {at: seconds(0), silent: true, log: []string{"0.1s announce c", "2.1s announce c"}},
		"it insists":                       {at: seconds(0, 0, 0), log: []string{"0.1s announce c", "2.1s announce c", "2.1s " + report}},
		"it announces as RFC 5227 says":    {at: seconds(0, 2), silent: true, log: []string{"0.1s announce c", "2.1s announce c", "10.1s announce c", "12.1s announce c"}},
		"it insists a moment later":        {at: seconds(0, 1), log: []string{"0.1s announce c", "2.1s announce c", "2.1s " + report, "10.1s announce c", "12.1s announce c", "12.1s " + report}},
		"it insists much later":            {at: seconds(0, 30), silent: true, log: []string{"0.1s announce c", "2.1s announce c", "30.1s announce c", "32.1s announce c"}},
		"of an address that is not here":   {claimed: "10.0.70.6", at: seconds(0)},
		"the address has moved":            {holds: podinfo.ErrNotHolder, at: seconds(0), log: []string{"0.1s withdraw c"}, left: state.Withdrawn},
		"the API does not answer":          {holds: context.DeadlineExceeded, at: seconds(0)},
		"the address was withdrawn before": {phase: state.Withdrawn, at: seconds(0), left: state.Withdrawn},
		"the address moves meanwhile": {
			at: seconds(0), silent: true, then: func(_ *testing.T, _ *Agent, w *world) { w.holds = podinfo.ErrNotHolder },
			log: []string{"0.1s announce c", "2.1s withdraw c"}, left: state.Withdrawn,
		},
		"the API does not answer any more": {
			at: seconds(0), silent: true, then: func(_ *testing.T, _ *Agent, w *world) { w.holds = context.DeadlineExceeded },
			log: []string{"0.1s announce c"},
		},
		"the pod ends meanwhile": {
			at: seconds(0), silent: true, then: func(t *testing.T, a *Agent, w *world) { put(t, a, "c", state.Deleting, "/proc/self/ns/net", w.addrs) },
			log: []string{"0.1s announce c"}, left: state.Deleting,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
				heard := make(chan answerer.Claim, 10)
				a.defence.heard, a.holdings.conflicts.Log = heard, noted{w, map[netip.Addr]bool{}}
				a.holdings.conflicts.Asker = askerFunc(func(_ context.Context, targets []conflict.Target) (all []conflict.Conflict, _ error) {
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
				w.log, w.holds = nil, c.holds
				claim := foreign
				if c.claimed != "" {
					claim = at(c.claimed)
				}
				var log []string
				const step = 100 * time.Millisecond
				for now := time.Duration(0); now < 40*time.Second; now += step {
					for _, then := range c.at {
						if then == now {
							heard <- answerer.Claim{Conflict: claim, Pod: w.pod.UID}
						}
					}
					if now == time.Second && c.then != nil {
						c.then(t, a, w)
					}
					pass(step)
					w.mu.Lock()
					for _, what := range w.log {
						log = append(log, fmt.Sprintf("%.1fs %s", (now+step).Seconds(), what))
					}
					w.log = nil
					w.mu.Unlock()
				}
				if diff := cmp.Diff(c.log, log); diff != "" {
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
		a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
		a.holdings.conflicts.Log = noted{w, map[netip.Addr]bool{addr: true}}
		still := []conflict.Conflict{{Address: addr, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Link: "eth0"}}
		a.holdings.conflicts.Asker = askerFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) { return still, nil })
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
