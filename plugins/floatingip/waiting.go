// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
)

// waiting is the pods for which no address was reserved yet, and wakes those that
// a change may help. It does so from one goroutine, so that many changes at once
// wake a pod once. Safe for concurrent use.
type waiting struct {
	activator fwk.PodActivator

	mu      sync.Mutex
	pods    map[types.UID]waitingPod
	changes []ipam.Change
	wake    chan struct{}
}

type waitingPod struct {
	pod     *v1.Pod
	request ipam.Request
}

func newWaiting(activator fwk.PodActivator) *waiting {
	return &waiting{activator: activator, pods: map[types.UID]waitingPod{}, wake: make(chan struct{}, 1)}
}

func (w *waiting) add(pod *v1.Pod, request ipam.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[pod.UID] = waitingPod{pod: pod, request: request}
}

func (w *waiting) remove(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// changed takes note of a change; run acts on it.
func (w *waiting) changed(change ipam.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pods) == 0 {
		return
	}
	w.changes = append(w.changes, change)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run wakes pods until ctx ends.
func (w *waiting) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		if pods := w.helped(); len(pods) > 0 {
			w.activator.Activate(klog.FromContext(ctx), pods)
		}
	}
}

// helped returns the pods that the changes since the last call may help.
func (w *waiting) helped() map[string]*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var everybody bool
	pools := map[string]bool{}
	var owners []ipam.Owner
	for _, change := range w.changes {
		everybody = everybody || change.Everything
		if change.Pool != "" {
			pools[change.Pool] = true
		}
		if change.Owner != nil {
			owners = append(owners, *change.Owner)
		}
	}
	w.changes = nil

	pods := map[string]*v1.Pod{}
	for uid, waiter := range w.pods {
		if everybody || waiter.wantsAnyOf(pools) || slices.ContainsFunc(owners, waiter.request.Owner.SameWorkload) {
			pods[string(uid)] = waiter.pod
		}
	}
	return pods
}

func (p *waitingPod) wantsAnyOf(pools map[string]bool) bool {
	if len(p.request.Pools) == 0 {
		return len(pools) > 0
	}
	return slices.ContainsFunc(p.request.Pools, func(name string) bool { return pools[name] })
}
