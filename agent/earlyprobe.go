// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

const (
	// earlyFresh is how long after an early probe its pod may get the addresses: as long as
	// RFC 5227 lets pass between the last probe and the first use (ANNOUNCE_WAIT).
	earlyFresh = 2 * time.Second
	// earlyPatience limits an early probe, with the questions to the API before it.
	earlyPatience = 10 * time.Second
	// earlyParallel limits them on the node: many pods that come at once keep it busy longer
	// than their probes, and the API server should answer their ADDs first.
	earlyParallel = 8
)

// earlyProbes read the addresses of pods that were just bound to this node, and ask for them, while
// kubelet and runtime prepare their ADDs, which then need wait neither for the API nor for probes. Only
// addresses that an early probe found free count: after any other outcome ADD asks itself. Methods
// are safe in parallel.
type earlyProbes struct {
	mu sync.Mutex
	// byPod has the probes that no ADD has taken, by the UID of the pod.
	byPod   map[string]*earlyProbe
	running int
}

type earlyProbe struct {
	// read is closed when held and readAt are written: the pod's addresses, nil where the API did not tell.
	read   chan struct{}
	held   []podinfo.Held
	readAt time.Time
	done   chan struct{}
	// stop ends it, with a cause.
	stop context.CancelCauseFunc
	// The fields below are written before done is closed. free are the targets if no host has one
	// of them.
	free  []conflict.Target
	ended time.Time
	// unused, if given, is called after earlyFresh where no ADD took the probe.
	unused func()
}

// begin returns the probe that its caller makes, or nil where there is one already or too many
// are under way. stop ends it.
func (e *earlyProbes) begin(uid string, stop context.CancelCauseFunc) *earlyProbe {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byPod[uid] != nil || e.running == earlyParallel {
		return nil
	}
	if e.byPod == nil {
		e.byPod = map[string]*earlyProbe{}
	}
	e.running++
	p := &earlyProbe{read: make(chan struct{}), done: make(chan struct{}), stop: stop}
	e.byPod[uid] = p
	return p
}

// stop ends the probe of a pod that is gone.
func (e *earlyProbes) stop(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.byPod[uid]; p != nil {
		p.stop(fmt.Errorf("%w: %s", podinfo.ErrPodReplaced, podGone))
	}
}

// end notes the result of the probe.
func (e *earlyProbes) end(uid string, p *earlyProbe, free []conflict.Target) {
	p.free, p.ended = free, time.Now()
	close(p.done)
	e.mu.Lock()
	e.running--
	e.mu.Unlock()
	time.AfterFunc(earlyFresh, func() {
		e.mu.Lock()
		untaken := e.byPod[uid] == p
		if untaken {
			delete(e.byPod, uid)
		}
		e.mu.Unlock()
		if untaken && p.unused != nil {
			p.unused()
		}
	})
}

// foundFree returns whether an early probe for the pod found just now that no host has one of
// the targets. It waits for a probe that is under way. Each probe counts once.
func (e *earlyProbes) foundFree(ctx context.Context, uid string, targets []conflict.Target) bool {
	e.mu.Lock()
	p := e.byPod[uid]
	delete(e.byPod, uid)
	e.mu.Unlock()
	if p == nil {
		return false
	}
	select {
	case <-ctx.Done():
		// Nobody else takes it: this ADD was the pod's.
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.byPod[uid] == nil {
			e.byPod[uid] = p
		}
		return false
	case <-p.done:
	}
	return len(p.free) > 0 && time.Since(p.ended) < earlyFresh && slices.EqualFunc(p.free, targets, func(x, y conflict.Target) bool {
		return x.Address == y.Address && x.Link == y.Link && bytes.Equal(x.Own, y.Own)
	})
}

// earlyReader keeps the addresses that an early probe reads.
type earlyReader struct {
	pods
	probe *earlyProbe
}

func (r earlyReader) Addresses(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error) {
	defer close(r.probe.read)
	held, err := r.pods.Addresses(ctx, pod)
	if err == nil {
		r.probe.held, r.probe.readAt = held, time.Now()
	}
	return held, err
}

// lateReader takes the addresses that an early probe of the pod has read, or reads just now, and asks the API for
// others. When they move to another node meanwhile, that node has the newer record, as after a later answer of the API.
type lateReader struct {
	pods
	early *earlyProbes
}

func (r lateReader) Addresses(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error) {
	r.early.mu.Lock()
	p := r.early.byPod[pod.UID]
	r.early.mu.Unlock()
	if p != nil {
		select {
		case <-p.read:
		case <-p.done:
		case <-ctx.Done():
		}
		if ctx.Err() == nil && p.held != nil && time.Since(p.readAt) < earlyFresh {
			return p.held, nil
		}
	}
	return r.pods.Addresses(ctx, pod)
}

// Came notes that a pod was bound to this node, and asks whether other hosts have its
// addresses before the runtime asks for them. It returns at once.
func (a *Agent) Came(ctx context.Context, pod podinfo.Pod) {
	if a.conflicts.Prober == nil || pod.Wants == 0 || pod.Finished {
		return
	}
	ctx, stop := context.WithCancelCause(ctx)
	p := a.early.begin(pod.UID, stop)
	if p == nil {
		stop(nil)
		return
	}
	// An ADD that runs already does not look for this probe.
	if slices.ContainsFunc(a.Store.List(), func(r *state.Container) bool { return r.Pod.UID == pod.UID }) {
		stop(nil)
		a.early.end(pod.UID, p, nil)
		return
	}
	go func() {
		defer stop(nil)
		ctx, cancel := context.WithTimeout(ctx, earlyPatience)
		defer cancel()
		free, kept, err := a.probeEarly(ctx, pod, p)
		if kept {
			p.unused = func() { a.removeLoose(ctx) }
		}
		if err != nil && ctx.Err() == nil {
			// ADD meets the same error, and tells.
			klog.FromContext(ctx).V(4).Info("No early probe for conflicts", "pod", klog.KRef(pod.Namespace, pod.Name), "err", err)
		}
		a.early.end(pod.UID, p, free)
	}()
}

// probeEarly returns the targets of a pod's addresses if no other host has one, as soon as this node may answer for
// them. kept says that drivers may have made links for the probe.
func (a *Agent) probeEarly(ctx context.Context, pod podinfo.Pod, p *earlyProbe) (free []conflict.Target, kept bool, err error) {
	attachments, held, err := a.planner(earlyReader{a.Pods, p}).attachments(ctx, pod, firstInterface)
	if err != nil {
		return nil, false, err
	}
	record := &state.Container{Pod: pod.Pod, Attachments: attachments, Held: held}
	targets, release, err := a.toProbe(record)
	if release != nil {
		defer release()
	}
	if err != nil || len(targets) == 0 {
		return nil, release != nil, err
	}
	addrs, answer := a.take(ctx, record, targets), make(chan error, 1)
	go func() { answer <- a.mayAnswer(ctx, addrs) }()
	conflicts, err := a.conflicts.Prober.Probe(ctx, targets)
	probed := time.Now()
	// A host that was found may be the pod of a node that had not fallen silent yet.
	if err = errors.Join(err, <-answer); err != nil || len(conflicts) > 0 || time.Since(probed) >= earlyFresh {
		return nil, release != nil, err
	}
	return targets, release != nil, nil
}

// firstInterface is the name that every runtime of Kubernetes gives to a pod's first
// interface. The targets do not depend on it.
const firstInterface = "eth0"
