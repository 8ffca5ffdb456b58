// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/conflict"
)

// countingPods counts how often the API is asked for a pod's addresses. An answer takes a second.
type countingPods struct {
	pods
	reads *int
	err   error
}

func (p countingPods) Addresses(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error) {
	*p.reads++
	<-time.After(time.Second)
	if *p.reads == 1 && p.err != nil {
		return nil, p.err
	}
	return p.pods.Addresses(ctx, pod)
}

// asked is how long the others of a network are asked.
const asked = 300 * time.Millisecond

// An ADD takes the addresses that the early start of its pod has read, or reads, and waits no
// longer than that start would. It asks the API for the addresses of other pods.
func TestEarlyStart(t *testing.T) {
	for name, c := range map[string]struct {
		wait  time.Duration
		err   error
		other bool
		reads int
		took  time.Duration
	}{
		"before the ADD":         {wait: 1500 * time.Millisecond, reads: 1},
		"while others are asked": {wait: 1100 * time.Millisecond, reads: 1, took: asked - 100*time.Millisecond},
		"while the API is asked": {wait: 200 * time.Millisecond, reads: 1, took: 800*time.Millisecond + asked},
		"too long ago":           {wait: time.Second + asked + earlyFresh + time.Millisecond, reads: 2, took: time.Second},
		"it failed":              {wait: 200 * time.Millisecond, err: errors.New("no answer"), reads: 2, took: 1800*time.Millisecond + asked},
		"another pod's":          {wait: 200 * time.Millisecond, other: true, reads: 2, took: 800*time.Millisecond + asked},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			reads := 0
			o := *first.Options
			o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
			o.Pods = countingPods{o.Pods, &reads, c.err}
			startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
				pod := w.pod
				if c.other {
					pod.UID = "another"
				}
				a.Came(ctx, pod)
				pass(c.wait)
				began := time.Now()
				if _, err := a.Add(ctx, addRequest("c")); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); reads != c.reads || took != c.took {
					t.Errorf("the API was asked %d times, and ADD took %s; want %d and %s", reads, took, c.reads, c.took)
				}
				pass(2 * earlyFresh)
				if len(a.early.byPod) > 0 || len(a.early.turns) > 0 {
					t.Errorf("%d early starts are kept and %d run, want none", len(a.early.byPod), len(a.early.turns))
				}
			})
		})
	}
}

// Pods without a floating IP have no early start, nor do pods whose ADD runs, and of many that
// come at once only some do: their ADDs ask.
func TestEarlyStartsAreFew(t *testing.T) {
	first, w := newAgent(t)
	reads := 0
	o := *first.Options
	o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
	o.Pods = countingPods{o.Pods, &reads, nil}
	startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
		ordinary := w.pod
		ordinary.Wants = 0
		a.Came(ctx, ordinary)
		if _, err := a.Add(ctx, addRequest("c")); err != nil {
			t.Fatal(err)
		}
		a.Came(ctx, w.pod) // the watch is late
		synctest.Wait()
		if reads != 1 {
			t.Errorf("the API was asked %d times, want by the ADD alone", reads)
		}
		for i := range 2 * earlyParallel {
			pod := w.pod
			pod.UID = string(rune('A' + i))
			a.Came(ctx, pod)
		}
		synctest.Wait()
		if reads != 1+earlyParallel {
			t.Errorf("%d early starts at once, want %d", reads-1, earlyParallel)
		}
		pass(2*time.Second + earlyFresh)
		if len(a.early.byPod) > 0 || len(a.early.turns) > 0 {
			t.Errorf("%d early starts are kept and %d run, want none", len(a.early.byPod), len(a.early.turns))
		}
	})
}

// keepingDriver makes links by which others are asked, which stay until a release and RemoveLoose.
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

// The links that an early start made stay while others are asked, and go where no ADD comes for
// them.
func TestEarlyStartLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		add     time.Duration
		removed int
	}{
		"the pod never comes": {removed: 1},
		"its ADD takes them":  {add: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			var kept, removed int
			o := *first.Options
			o.Drivers = Drivers{nettype.Veth: keepingDriver{segmentDriver{fakeDriver{w}, nil}, &kept, &removed}}
			startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
				a.Came(ctx, w.pod)
				pass(asked / 3)
				if kept == 0 {
					t.Error("others are asked by links that nobody keeps")
				}
				if c.add > 0 {
					if _, err := a.Add(ctx, addRequest("c")); err != nil {
						t.Fatal(err)
					}
				}
				pass(2 * earlyFresh)
				if kept != 0 || removed != c.removed {
					t.Errorf("links of %d starts are kept, and loose ones were removed %d times; want 0 and %d", kept, removed, c.removed)
				}
			})
		})
	}
}

// Where many pods come at once, their starts ask the API in turns. An ADD that is faster than the
// turn of its pod asks by itself.
func TestEarlyTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e earlyStarts
		var ends []func()
		for i := range earlyParallel {
			uid := fmt.Sprint(i)
			end, ok := e.turn(t.Context(), uid, e.begin(uid, nil))
			if !ok || e.asked(uid) == nil {
				t.Fatalf("start %d has no turn", i)
			}
			ends = append(ends, end)
		}
		turns := map[string]chan bool{"faster ADD": make(chan bool, 1), "next": make(chan bool, 1)}
		for _, uid := range []string{"faster ADD", "next"} {
			s := e.begin(uid, nil)
			go func() {
				_, ok := e.turn(t.Context(), uid, s)
				turns[uid] <- ok
			}()
			synctest.Wait()
		}
		if e.asked("faster ADD") != nil {
			t.Error("an ADD waits for the turn of its pod's start")
		}
		for _, end := range ends[:2] {
			end()
			end()
		}
		if <-turns["faster ADD"] {
			t.Error("a start asks though its ADD was faster")
		}
		if !<-turns["next"] || e.asked("next") == nil {
			t.Error("a start whose turn has come does not ask")
		}
	})
}
