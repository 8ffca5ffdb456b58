// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/ipam"
)

// waiting wakes pods that found no address when a change helps them: as many as
// there is something for, and not thousands of which one can have it. The [line]
// decides who; waiting has the lock, the clock and the goroutine that wakes. Safe
// for concurrent use.
type waiting struct {
	activator fwk.PodActivator
	clock     clock.Clock
	// pending says whether the API server, by what is known here, has this very pod
	// and it is still to be scheduled. It does not block.
	pending func(pod *v1.Pod) bool

	mu   sync.Mutex
	line *line
	news chan struct{}
}

func newWaiting(activator fwk.PodActivator, book pool, pending func(*v1.Pod) bool, clock clock.Clock) *waiting {
	return &waiting{activator: activator, clock: clock, pending: pending, line: newLine(book), news: make(chan struct{}, 1)}
}

// do changes the line, and has run look at it if somebody is to be woken, or
// something is due earlier.
func (w *waiting) do(change func(l *line, now time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.line.due
	change(w.line, w.clock.Now())
	if len(w.line.wake) > 0 || w.line.due != due {
		select {
		case w.news <- struct{}{}:
		default:
		}
	}
}

// add notes that an attempt to schedule the pod begins.
func (w *waiting) add(pod *v1.Pod, request ipam.Request) {
	w.do(func(l *line, now time.Time) { l.begin(pod, request, now) })
	// Only now: had it been deleted after this look, the event would find it in the
	// line.
	if !w.pending(pod) {
		w.forget(pod.UID)
	}
}

// short notes that the attempt met a node that lacks an address for the pod.
func (w *waiting) short(uid types.UID, lack ipam.Lack) {
	w.do(func(l *line, now time.Time) { l.short(uid, lack, now) })
}

// narrowed notes that the attempt leaves out nodes because of the addresses that the
// pod's owner keeps.
func (w *waiting) narrowed(uid types.UID) {
	w.do(func(l *line, now time.Time) { l.narrowed(uid, now) })
}

// reserved forgets a pod that has these addresses now, and says since when it was
// known. kept: all were its owner's before.
func (w *waiting) reserved(uid types.UID, addrs []netip.Addr, kept bool) (since time.Time, ok bool) {
	w.do(func(l *line, now time.Time) { since, ok = l.reserved(uid, addrs, kept, now) })
	return since, ok
}

// forget forgets a pod that will not be scheduled as it is.
func (w *waiting) forget(uid types.UID) {
	w.do(func(l *line, now time.Time) { l.gone(uid, now) })
}

// changed takes note of a change.
func (w *waiting) changed(change ipam.Change) {
	w.do(func(l *line, now time.Time) { l.changed(change, now) })
}

// serves takes note that a pool serves a node that it did not serve before.
func (w *waiting) serves(pool string) {
	w.do(func(l *line, now time.Time) { l.serves(pool, now) })
}

// others says how many pods, but for the one that is being scheduled, were last
// seen without addresses.
func (w *waiting) others() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, len(w.line.order)-1)
}

// count says how many pods lack an address.
func (w *waiting) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.line.lacking()
}

// run wakes pods until ctx ends.
func (w *waiting) run(ctx context.Context) {
	timer := w.clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		pods, due := w.next()
		if len(pods) > 0 {
			wokenPods.Add(float64(len(pods)))
			w.activator.Activate(klog.FromContext(ctx), pods)
		}
		timer.Stop()
		if !due.IsZero() {
			timer.Reset(due.Sub(w.clock.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.news:
		case <-timer.C():
		}
	}
}

// next returns the pods to be woken, and when to look again even without news.
func (w *waiting) next() (pods map[string]*v1.Pod, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line.expire(w.clock.Now())
	pods = make(map[string]*v1.Pod, len(w.line.wake))
	for uid, pod := range w.line.wake {
		pods[string(uid)] = pod
	}
	clear(w.line.wake)
	return pods, w.line.due
}
