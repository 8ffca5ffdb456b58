// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
)

// fakeListener hears the claims that a test sends.
type fakeListener struct {
	*world
	claims chan conflict.Conflict
}

func (f fakeListener) Defend(targets []conflict.Target) {
	for _, t := range targets {
		f.note("listen for %s on %d", t.Address, t.Link)
	}
}
func (f fakeListener) Claims() <-chan conflict.Conflict { return f.claims }

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
		"another host":                     {at: seconds(0), log: []string{"0.1s announce c", "0.1s " + report, "2.1s announce c"}},
		"a node that is late":              {at: seconds(0), silent: true, log: []string{"0.1s announce c", "2.1s announce c"}},
		"it insists":                       {at: seconds(0, 0, 0), log: []string{"0.1s announce c", "0.1s " + report, "2.1s announce c"}},
		"it announces as RFC 5227 says":    {at: seconds(0, 2), silent: true, log: []string{"0.1s announce c", "2.1s announce c", "10.1s announce c", "12.1s announce c"}},
		"it insists a moment later":        {at: seconds(0, 1), log: []string{"0.1s announce c", "0.1s " + report, "2.1s announce c", "10.1s announce c", "10.1s " + report, "12.1s announce c"}},
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
				l := fakeListener{w, make(chan conflict.Conflict, 10)}
				a.listener, a.conflicts.Log = l, noted{w, map[netip.Addr]bool{}}
				a.conflicts.Asker = askerFunc(func(_ context.Context, targets []conflict.Target) (all []conflict.Conflict, _ error) {
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
				claim := foreign
				if c.claimed != "" {
					claim = at(c.claimed)
				}
				var log []string
				const step = 100 * time.Millisecond
				for now := time.Duration(0); now < 40*time.Second; now += step {
					for _, then := range c.at {
						if then == now {
							l.claims <- claim
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

// countingDriver counts the looks for the networks of its addresses, which fail with err.
type countingDriver struct {
	segmentDriver
	looks *int
	err   *error
}

func (d countingDriver) Carried(i *nettype.Interface) ([]conflict.Target, error) {
	*d.looks++
	if *d.err != nil {
		return nil, *d.err
	}
	return d.segmentDriver.Carried(i)
}

// A new pod costs one look, however many are there; after a change of links, and after a failure, there is another one.
func TestCarriedLooksForNewAddresses(t *testing.T) {
	a, w := newAgent(t)
	var looks int
	var fails error
	a.Drivers = Drivers{nettype.Veth: countingDriver{segmentDriver{fakeDriver{w}, nil}, &looks, &fails}}
	c := newCarrier(a)
	const netns = "/proc/self/ns/net"
	address := func(last byte) []api.Address {
		return []api.Address{{Address: netip.AddrFrom4([4]byte{10, 0, 70, last})}}
	}
	broken := errors.New("broken")
	for _, step := range []struct {
		name  string
		do    func()
		again bool
		looks int
		err   error
		want  []string
	}{
		{"two pods", func() { put(t, a, "a", state.Added, netns, address(1)); put(t, a, "b", state.Added, netns, address(2)) }, true, 2, nil, []string{"10.0.70.1 a", "10.0.70.2 b"}},
		{"nothing new", func() {}, false, 0, nil, []string{"10.0.70.1 a", "10.0.70.2 b"}},
		{"a third", func() { put(t, a, "c", state.Added, netns, address(3)) }, false, 1, nil, []string{"10.0.70.1 a", "10.0.70.2 b", "10.0.70.3 c"}},
		{"another address", func() { put(t, a, "b", state.Added, netns, address(4)) }, false, 1, nil, []string{"10.0.70.1 a", "10.0.70.3 c", "10.0.70.4 b"}},
		{"links changed", func() {}, true, 3, nil, []string{"10.0.70.1 a", "10.0.70.3 c", "10.0.70.4 b"}},
		{"one is withdrawn", func() { put(t, a, "a", state.Withdrawn, netns, address(1)) }, false, 0, nil, []string{"10.0.70.3 c", "10.0.70.4 b"}},
		{"and back", func() { put(t, a, "a", state.Added, netns, address(1)) }, false, 1, nil, []string{"10.0.70.1 a", "10.0.70.3 c", "10.0.70.4 b"}},
		{"a failure", func() { fails = broken }, true, 3, broken, nil},
		{"it is over", func() { fails = nil }, false, 3, nil, []string{"10.0.70.1 a", "10.0.70.3 c", "10.0.70.4 b"}},
	} {
		step.do()
		looks = 0
		records, targets, err := c.Carried(step.again)
		if !errors.Is(err, step.err) {
			t.Errorf("%s: %v, want %v", step.name, err, step.err)
		}
		var have []string
		for addr, key := range records {
			have = append(have, addr.String()+" "+key.ContainerID)
		}
		slices.Sort(have)
		if diff := cmp.Diff(step.want, have); diff != "" || len(targets) != len(have) {
			t.Errorf("%s: %d targets of (-want +got):\n%s", step.name, len(targets), diff)
		}
		if looks != step.looks {
			t.Errorf("%s: %d looks, want %d", step.name, looks, step.looks)
		}
	}
}

// The end of a conflict is noted while the pod runs.
func TestEndOfConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		addr := w.addrs[0].Address
		a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
		a.conflicts.Log = noted{w, map[netip.Addr]bool{addr: true}}
		still := []conflict.Conflict{{Address: addr, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Link: "eth0"}}
		a.conflicts.Asker = askerFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) { return still, nil })
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
