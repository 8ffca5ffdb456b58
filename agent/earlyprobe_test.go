// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/conflict"
)

// A probe that found an address free while kubelet and runtime prepared the ADD spares the
// ADD its own, if it is recent and for the same targets. Nothing else does.
func TestEarlyProbe(t *testing.T) {
	const took = 200 * time.Millisecond
	foreign := []conflict.Conflict{{Address: netip.MustParseAddr("10.0.70.5"), Link: "eth0"}}
	wired := []string{"setup c", "announce c", "ADD floating c"}
	cases := map[string]struct {
		// wait is the time from the bind to the ADD.
		wait time.Duration
		// early is the result of the early probe.
		early  []conflict.Conflict
		err    error
		before func(a *Agent, w *world)
		probes int
		// waited is how long the ADD waited for probes.
		waited time.Duration
	}{
		"before the ADD":    {wait: time.Second, probes: 1},
		"during the ADD":    {wait: took / 2, probes: 1, waited: took / 2},
		"too long ago":      {wait: took + earlyFresh, probes: 2, waited: took},
		"somebody answered": {wait: time.Second, early: foreign, probes: 2, waited: took},
		"nobody was asked":  {wait: time.Second, err: errors.New("no socket"), probes: 2, waited: took},
		"on another link": {wait: time.Second, before: func(a *Agent, w *world) {
			a.Drivers = Drivers{nettype.Veth: otherLink{segmentDriver{fakeDriver{w}, nil}}}
		}, probes: 2, waited: took},
		"no ADD waits for it": {wait: time.Second, before: func(a *Agent, _ *world) { a.early = earlyProbes{} }, probes: 2, waited: took},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t) // its queues outlive the bubble
			synctest.Test(t, func(t *testing.T) {
				a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
				probes := 0
				a.conflicts.Prober = probeFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) {
					probes++
					time.Sleep(took) //nolint:forbidigo // the clock is the test's
					if probes == 1 {
						return c.early, c.err
					}
					return nil, nil
				})
				a.Came(t.Context(), w.pod)
				time.Sleep(c.wait) //nolint:forbidigo // the clock is the test's
				if c.before != nil {
					c.before(a, w)
				}
				began := time.Now()
				if _, err := a.Add(t.Context(), addRequest("c")); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(began); waited != c.waited || probes != c.probes {
					t.Errorf("ADD waited %s, and there were %d probes; want %s and %d", waited, probes, c.waited, c.probes)
				}
				if diff := cmp.Diff(wired, w.log); diff != "" {
					t.Errorf("what happened (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A node probes for other hosts while it asks whether another node answers, so that an ADD waits for the longer of the two.
func TestEarlyProbeBesideQuestions(t *testing.T) {
	first, w := newAgent(t)
	o := first.Options
	o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
	probes := 0
	o.Prober = probeFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) {
		probes++
		time.Sleep(200 * time.Millisecond) //nolint:forbidigo // the clock is the test's
		return nil, nil
	})
	startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
		began := time.Now()
		a.Came(ctx, w.pod)
		if _, err := a.Add(ctx, addRequest("c")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 300*time.Millisecond || probes != 1 {
			t.Errorf("the address could be used after %s and %d probes, want the 300ms of the questions, and 1", took, probes)
		}
	})
}

// otherLink has its addresses on another link.
type otherLink struct{ segmentDriver }

func (d otherLink) Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error) {
	targets, err = d.Carried(i)
	for i := range targets {
		targets[i].Link++
	}
	return targets, nil, err
}

// countingPods counts how often the API is asked for a pod's addresses. An answer takes a second.
type countingPods struct {
	pods
	reads *int
	err   error
}

func (p countingPods) Addresses(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error) {
	*p.reads++
	time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
	if *p.reads == 1 && p.err != nil {
		return nil, p.err
	}
	return p.pods.Addresses(ctx, pod)
}

// An ADD takes the addresses that the early probe of its pod has read, or reads, and asks for the ones of other pods.
func TestEarlyRead(t *testing.T) {
	for name, c := range map[string]struct {
		wait time.Duration
		// probes is how long the early probe takes after its read.
		probes time.Duration
		err    error
		other  bool
		reads  int
		took   time.Duration
	}{
		"before the ADD":                  {wait: 1500 * time.Millisecond, reads: 1},
		"during the ADD":                  {wait: 200 * time.Millisecond, reads: 1, took: 800 * time.Millisecond},
		"too long ago":                    {wait: time.Second + earlyFresh + time.Millisecond, reads: 2, took: time.Second},
		"long ago, and the probe goes on": {wait: time.Second + earlyFresh, probes: 4 * time.Second, reads: 2, took: 2 * time.Second},
		"it failed":                       {wait: 200 * time.Millisecond, err: errors.New("no answer"), reads: 2, took: 1800 * time.Millisecond},
		"another pod's":                   {wait: 200 * time.Millisecond, other: true, reads: 2, took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			synctest.Test(t, func(t *testing.T) {
				reads := 0
				a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
				a.Pods = countingPods{a.Pods, &reads, c.err}
				a.conflicts.Prober = probeFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) {
					time.Sleep(c.probes) //nolint:forbidigo // the clock is the test's
					return nil, nil
				})
				pod := w.pod
				if c.other {
					pod.UID = "another"
				}
				a.Came(t.Context(), pod)
				time.Sleep(c.wait) //nolint:forbidigo // the clock is the test's
				began := time.Now()
				if _, err := a.Add(t.Context(), addRequest("c")); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); reads != c.reads || took != c.took {
					t.Errorf("the API was asked %d times, and ADD took %s; want %d and %s", reads, took, c.reads, c.took)
				}
				time.Sleep(2 * earlyFresh) //nolint:forbidigo // the clock is the test's
			})
		})
	}
}

// Pods without a floating IP have no early probe, nor do pods whose ADD runs, and of many that
// come at once only some do: their ADDs ask.
func TestEarlyProbesAreFew(t *testing.T) {
	a, w := newAgent(t)
	synctest.Test(t, func(t *testing.T) {
		a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
		probes := make(chan struct{}, 100)
		a.conflicts.Prober = probeFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) {
			probes <- struct{}{}
			time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
			return nil, nil
		})
		ordinary := w.pod
		ordinary.Wants = 0
		a.Came(t.Context(), ordinary)
		if _, err := a.Add(t.Context(), addRequest("c")); err != nil {
			t.Fatal(err)
		}
		a.Came(t.Context(), w.pod) // the watch is late
		synctest.Wait()
		if len(probes) != 1 {
			t.Errorf("%d probes, want the ADD's own", len(probes))
		}
		for i := range 2 * earlyParallel {
			pod := w.pod
			pod.UID = string(rune('A' + i))
			a.Came(t.Context(), pod)
		}
		synctest.Wait()
		if len(probes) != 1+earlyParallel {
			t.Errorf("%d early probes at once, want %d", len(probes)-1, earlyParallel)
		}
		time.Sleep(2*time.Second + earlyFresh) //nolint:forbidigo // the clock is the test's
		if len(a.early.byPod) > 0 || a.early.running > 0 {
			t.Errorf("%d early probes are kept and %d run, want none", len(a.early.byPod), a.early.running)
		}
	})
}

// keepingDriver makes links for probes, which stay until a release and RemoveLoose.
type keepingDriver struct {
	segmentDriver
	kept, removed *int
}

func (d keepingDriver) Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error) {
	targets, err = d.Carried(i)
	*d.kept++
	return targets, func() { *d.kept-- }, err
}

func (d keepingDriver) RemoveLoose() error {
	if *d.kept == 0 {
		*d.removed++
	}
	return nil
}

// The links that an early probe made go where no ADD comes for them, and where that ADD gives up.
func TestEarlyProbeLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		// add is how long after the bind an ADD comes, and patience how long it waits; 0 is never and for ever.
		add, patience time.Duration
		removed       int
	}{
		"the pod never comes":    {removed: 1},
		"its ADD takes them":     {add: time.Second},
		"its ADD comes and ends": {add: time.Millisecond, patience: time.Millisecond, removed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			synctest.Test(t, func(t *testing.T) {
				var kept, removed int
				a.Drivers = Drivers{nettype.Veth: keepingDriver{segmentDriver{fakeDriver{w}, nil}, &kept, &removed}}
				a.conflicts.Prober = probeFunc(func(context.Context, []conflict.Target) ([]conflict.Conflict, error) {
					if kept == 0 {
						t.Error("a probe asks by links that nobody keeps")
					}
					time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the clock is the test's
					return nil, nil
				})
				a.Came(t.Context(), w.pod)
				if c.add > 0 {
					time.Sleep(c.add) //nolint:forbidigo // the clock is the test's
					ctx := t.Context()
					if c.patience > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, c.patience)
						defer cancel()
					}
					if _, err := a.Add(ctx, addRequest("c")); (err != nil) != (c.patience > 0) {
						t.Errorf("Add() = %v", err)
					}
				}
				time.Sleep(2 * earlyFresh) //nolint:forbidigo // the clock is the test's
				if kept != 0 || removed != c.removed {
					t.Errorf("links of %d probes are kept, and loose ones were removed %d times; want 0 and %d", kept, removed, c.removed)
				}
			})
		})
	}
}
