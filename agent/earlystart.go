// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
)

const (
	// earlyFresh is for how long the API's early word about a pod's addresses counts, and links that
	// were made to ask for them stay. A node that starts many pods takes long to ask for their
	// networks.
	earlyFresh = 2 * time.Minute
	// earlyPatience limits an early start, with its questions to the API.
	earlyPatience = 10 * time.Second
	// earlyParallel limits their questions to the API on the node: where many pods come at once, it
	// should answer their ADDs, too.
	earlyParallel = 8
)

// earlyStarts read the addresses of pods that were just bound to this node, and have others asked
// for them, while kubelet and runtime prepare their ADDs, which then need wait neither for the API
// nor for silence. Methods are safe in parallel.
type earlyStarts struct {
	*holdings

	// unused comes where no ADD took a start for which drivers may have made links.
	unused func(ctx context.Context)
	mu     sync.Mutex
	// byPod has the ones that no ADD has taken, by the UID of the pod. turns has an element for each
	// that asks the API.
	byPod map[string]*earlyStart
	turns chan struct{}
}

type earlyStart struct {
	// asks: its turn has come.
	asks bool
	// read is closed when held and readAt are written: the pod's addresses, nil where the API did not
	// tell.
	read   chan struct{}
	held   []podinfo.Held
	readAt time.Time
	// done is closed when it has ended, before or after read.
	done chan struct{}
	// stop ends it, with a cause.
	stop context.CancelCauseFunc
}

// start has others asked for the addresses of a pod that was bound to this node. It returns at
// once.
func (e *earlyStarts) start(ctx context.Context, pod podinfo.Pod) {
	ctx, stop := context.WithCancelCause(ctx)
	s := e.begin(pod.UID, stop)
	if s == nil {
		stop(nil)
		return
	}
	// An ADD that runs already does not look for this start.
	if slices.ContainsFunc(e.Store.List(), func(r *state.Container) bool { return r.Pod.UID == pod.UID }) {
		stop(nil)
		e.end(pod.UID, s, func() {})
		return
	}
	go func() {
		defer stop(nil)
		ctx, cancel := context.WithTimeout(ctx, earlyPatience)
		defer cancel()
		if err := e.ask(ctx, pod, s); err != nil && ctx.Err() == nil {
			// ADD meets the same error, and tells.
			klog.FromContext(ctx).V(4).Info("A pod is not asked for early", "pod", klog.KRef(pod.Namespace, pod.Name), "err", err)
		}
		e.end(pod.UID, s, func() { e.unused(ctx) })
	}()
}

// begin returns what its caller starts, or nil where there is one already. stop ends it.
func (e *earlyStarts) begin(uid string, stop context.CancelCauseFunc) *earlyStart {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byPod[uid] != nil {
		return nil
	}
	if e.byPod == nil {
		e.byPod, e.turns = map[string]*earlyStart{}, make(chan struct{}, earlyParallel)
	}
	e.byPod[uid] = &earlyStart{read: make(chan struct{}), done: make(chan struct{}), stop: stop}
	return e.byPod[uid]
}

// ask takes the pod's addresses, and returns when this node may answer for them. Until then links
// stay that drivers made.
func (e *earlyStarts) ask(ctx context.Context, pod podinfo.Pod, s *earlyStart) error {
	done, ok := e.turn(ctx, pod.UID, s)
	if !ok {
		return nil
	}
	defer done()
	attachments, held, err := e.planner(func(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error) {
		defer close(s.read)
		defer done()
		held, err := e.Pods.Addresses(ctx, pod)
		if err == nil {
			s.held, s.readAt = held, time.Now()
		}
		return held, err
	}).Attachments(ctx, pod, firstInterface)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(s.held, func(h podinfo.Held) bool { return h.Record.Stands }) {
		return nil // The pod waits for its virtual machine.
	}
	record := &state.Container{Pod: pod.Pod, Attachments: attachments, Held: held}
	targets, release, err := e.toProbe(record)
	defer release()
	if err != nil || len(targets) == 0 {
		return err
	}
	_, err = e.mayAnswer(ctx, e.holdings.take(ctx, record, targets))
	return err
}

// turn waits until a start may ask the API. It returns false where an ADD was faster, or the
// context ended; done ends the turn.
func (e *earlyStarts) turn(ctx context.Context, uid string, s *earlyStart) (done func(), ok bool) {
	select {
	case e.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.asks = e.byPod[uid] == s
	if !s.asks {
		<-e.turns
	}
	return sync.OnceFunc(func() { <-e.turns }), s.asks
}

// stop ends the start of a pod that is gone.
func (e *earlyStarts) stop(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.byPod[uid]; s != nil {
		s.stop(fmt.Errorf("%w: %s", podinfo.ErrPodReplaced, podGone))
	}
}

// end forgets the start after a while, and calls unused where no ADD took it.
func (e *earlyStarts) end(uid string, s *earlyStart, unused func()) {
	close(s.done)
	time.AfterFunc(earlyFresh, func() {
		if e.take(uid, s) {
			unused()
		}
	})
}

// take forgets a start of the pod, any where s is nil, and returns whether it was there.
func (e *earlyStarts) take(uid string, s *earlyStart) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.byPod[uid]
	if known == nil || s != nil && known != s {
		return false
	}
	delete(e.byPod, uid)
	return true
}

// asked returns the start of a pod that has asked the API, or does just now; nil where there is
// none. An ADD does not wait for the turn of another one.
func (e *earlyStarts) asked(uid string) *earlyStart {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.byPod[uid]
	if s != nil && !s.asks {
		delete(e.byPod, uid)
		return nil
	}
	return s
}

// addresses returns the addresses that an early start of the pod has read, or reads just now, and
// asks the API for others. When they move to another node meanwhile, that node has the newer
// record, as after a later answer of the API.
func (e *earlyStarts) addresses(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error) {
	if s := e.asked(pod.UID); s != nil {
		select {
		case <-s.read:
		case <-s.done:
		case <-ctx.Done():
		}
		if ctx.Err() == nil && s.held != nil && time.Since(s.readAt) < earlyFresh {
			return s.held, nil
		}
	}
	return e.Pods.Addresses(ctx, pod)
}

// planner returns a planner that has addresses of pods by a function.
func (o *Options) planner(addresses func(context.Context, podinfo.Pod) ([]podinfo.Held, error)) plan.Planner {
	return plan.Planner{Options: o.Options, Pods: o.Pods, Addresses: addresses}
}

// firstInterface is the name that every runtime of Kubernetes gives to a pod's first
// interface. The targets do not depend on it.
const firstInterface = "eth0"
