// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/measure"
)

// Throughput runs one case on an API server of its own.
func Throughput(ctx context.Context, options Options, c load.Case, round int) (*measure.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	run := &measure.Run{Case: c.ID, Round: round, Nodes: options.Nodes, Pods: options.Pods}
	var err error
	if run.Load, err = measure.LoadAverage(); err != nil {
		return nil, err
	}
	w, err := newWorld(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("case %s: %w", c.ID, err)
	}
	if err := errors.Join(w.throughput(ctx, c, run), w.stop()); err != nil {
		return nil, fmt.Errorf("case %s: %w", c.ID, err)
	}
	return run, nil
}

func (w *world) throughput(ctx context.Context, c load.Case, run *measure.Run) error {
	scheduler, prepared, err := w.prepared(ctx, c)
	if err != nil {
		return err
	}
	claimer, err := load.NewClaimer(w.config)
	if err != nil {
		return err
	}
	hooks := load.Hooks{Bound: func(pod *v1.Pod) { prepared.Bound(ctx, pod) }}
	if c.Claims {
		hooks.Bound = func(pod *v1.Pod) { claimer.Claim(ctx, pod) }
	}

	warmPods := max(w.Pods/10, 100)
	if err := w.warm(ctx, warmPods, func(int) *v1.Pod { return c.Pod() }, hooks); err != nil {
		return err
	}
	if err := w.wait(ctx, c); err != nil {
		return err
	}
	if c.Claims {
		if _, err := claimer.Wait(ctx, warm, warmPods); err != nil {
			return err
		}
	}

	// Only the first counter claims: it follows all pods.
	var after [2]*measure.Snapshot
	var afterErr error
	counter, err := load.Count(ctx, w.config, measured, w.Pods, load.Hooks{Last: func() { after, afterErr = w.snapshots(ctx, scheduler) }})
	if err != nil {
		return err
	}
	before, err := w.snapshots(ctx, scheduler)
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- w.profile(ctx, scheduler, fmt.Sprintf("programs-%d-%s.pprof", run.Round, c.ID)) }()
	if err := w.createPods(ctx, measured, w.Pods, func(i int) *v1.Pod { return measuredPod(c, prepared, i) }); err != nil {
		return err
	}
	first, last, err := counter.Wait(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(afterErr, <-profiled, prepared.Wait()); err != nil {
		return err
	}
	if c.Claims {
		claimed, err := claimer.Wait(ctx, measured, w.Pods)
		if err != nil {
			return err
		}
		run.ClaimedPerSecond = float64(w.Pods) / claimed.Sub(first).Seconds()
	}
	run.Seconds = last.Sub(first).Seconds()
	run.PodsPerSecond = float64(w.Pods) / run.Seconds
	cost(run, before, after)
	return nil
}

// measuredPod returns the pod of a number of a case.
func measuredPod(c load.Case, prepared *load.Prepared, i int) *v1.Pod {
	if c.Ordinary(i) {
		return c.Pod()
	}
	return prepared.OwnersPod(strconv.Itoa(i))
}

// cost notes what the scheduler and the API server used between two snapshots of both.
func cost(run *measure.Run, before, after [2]*measure.Snapshot) {
	scheduling, serving := measure.Interval{Before: before[0], After: after[0]}, measure.Interval{Before: before[1], After: after[1]}
	run.Scheduler(scheduling)
	run.Server(serving)
	run.CPU("scheduler", scheduling)
	run.CPU("API server", serving)
}

// prepared makes the case's objects and starts its scheduler.
func (w *world) prepared(ctx context.Context, c load.Case) (*process, *load.Prepared, error) {
	prepared, err := c.Prepare(ctx, w.config, w.Nodes, w.Pods)
	if err != nil {
		return nil, nil, err
	}
	scheduler, err := w.scheduler(ctx, c.Berth)
	return scheduler, prepared, err
}

// wait makes the case's waiting pods and returns when the scheduler has tried all.
func (w *world) wait(ctx context.Context, c load.Case) error {
	waiting := c.Waiting(w.Pods)
	if waiting == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tried, all := map[string]bool{}, make(chan struct{})
	if _, err := load.Follow(ctx, w.config, func(_, pod *v1.Pod) {
		if pod.Namespace != load.Waiting || tried[pod.Name] || len(pod.Status.Conditions) == 0 {
			return
		}
		if tried[pod.Name] = true; len(tried) == waiting {
			close(all)
		}
	}); err != nil {
		return err
	}
	if err := w.createPods(ctx, load.Waiting, waiting, func(int) *v1.Pod { return c.WaitingPod() }); err != nil {
		return err
	}
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until the scheduler has tried the waiting pods: %w", ctx.Err())
	}
}

// warm has the scheduler bind pods before anything is measured.
func (w *world) warm(ctx context.Context, pods int, newPod func(int) *v1.Pod, hooks load.Hooks) error {
	warmed, err := load.Count(ctx, w.config, warm, pods, hooks)
	if err != nil {
		return err
	}
	if err := w.createPods(ctx, warm, pods, newPod); err != nil {
		return err
	}
	_, _, err = warmed.Wait(ctx)
	return err
}

// snapshots are the metrics of the scheduler and of the API server.
func (w *world) snapshots(ctx context.Context, scheduler *process) (both [2]*measure.Snapshot, err error) {
	if both[0], err = scheduler.metrics(ctx); err != nil {
		return both, err
	}
	both[1], err = w.serverMetrics(ctx)
	return both, err
}

// profile writes a CPU profile of the scheduler while it schedules. How long it
// will take is not known; a scheduler that has nothing left to do adds nothing.
func (w *world) profile(ctx context.Context, scheduler *process, name string) error {
	file, err := os.Create(filepath.Join(w.Out, name))
	if err != nil {
		return err
	}
	length := max(5*time.Second, time.Duration(w.Pods)*time.Second/200)
	err = scheduler.get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(length.Seconds())), file)
	return errors.Join(err, file.Close())
}
