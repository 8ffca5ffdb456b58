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

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// waiting wakes pods that found no address when a change may help them. It wakes only as many pods
// as the change can serve, not thousands for one address. The [line] decides which pods; waiting
// has the lock, the timer and the goroutine that wakes them. Safe for concurrent use.
type waiting struct {
	activator fwk.PodActivator
	// pending says whether, by the caches, the pod with this UID exists and is still to
	// be scheduled. It does not block.
	pending func(pod *v1.Pod) bool

	mu   sync.Mutex
	line *line
	news wakeup.Signal
}

func newWaiting(activator fwk.PodActivator, supply supply, pending func(*v1.Pod) bool) *waiting {
	return &waiting{activator: activator, pending: pending, line: newLine(supply), news: wakeup.New()}
}

// do changes the line. It signals run if pods must be woken or the deadline changed.
func (w *waiting) do(change func(l *line, now time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.line.due
	change(w.line, time.Now())
	if len(w.line.wake) > 0 || w.line.due != due {
		w.news.Send()
	}
}

// add notes that an attempt to schedule the pod begins.
func (w *waiting) add(pod *v1.Pod, request ipam.Request) {
	w.do(func(l *line, now time.Time) { l.begin(pod, request, now) })
	// The check comes after begin: if the pod is deleted after the check, the event finds it in the
	// line.
	if !w.pending(pod) {
		w.forget(pod.UID)
	}
}

// short notes that the attempt met a node that lacks an address for the pod, and why.
func (w *waiting) short(uid types.UID, lack ipam.Lack, reason why) {
	w.do(func(l *line, now time.Time) {
		l.short(uid, lack, now)
		l.because(uid, reason)
	})
}

// outdated notes that Reserve found the pod's attempt outdated, and what the node lacks and why.
func (w *waiting) outdated(uid types.UID, lack ipam.Lack, reason why) {
	w.do(func(l *line, now time.Time) {
		if lack != 0 {
			l.short(uid, lack, now)
			l.because(uid, reason)
		}
		l.outdated(uid, now)
	})
}

func (w *waiting) wants(uid types.UID, wanted int) {
	w.do(func(l *line, _ time.Time) { l.wants(uid, wanted) })
}

// hold notes at the end of an attempt whether the pod is held for addresses that become free
// anyway: see [line.hold].
func (w *waiting) hold(uid types.UID, covered bool) {
	w.do(func(l *line, now time.Time) { l.hold(uid, covered, now) })
}

func (w *waiting) ahead(uid types.UID, changes []ipam.Change) map[types.UID]nominee {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.line.ahead(uid, changes)
}

// narrowed notes that the attempt leaves out nodes that the owner's kept addresses do not reach.
func (w *waiting) narrowed(uid types.UID) {
	w.do(func(l *line, now time.Time) { l.narrowed(uid, now) })
}

// reserved takes a pod that has these addresses now out of the line. It returns when the pod joined
// the line; ok is false if the pod was not in the line. kept says that its owner had all addresses
// before.
func (w *waiting) reserved(uid types.UID, addrs []netip.Addr, kept bool) (since time.Time, ok bool) {
	w.do(func(l *line, now time.Time) { since, ok = l.reserved(uid, addrs, kept, now) })
	return since, ok
}

// forget takes a pod out of the line if it will not be scheduled in its present form.
func (w *waiting) forget(uid types.UID) {
	w.do(func(l *line, now time.Time) { l.gone(uid, now) })
}

func (w *waiting) changed(change ipam.Change) {
	w.do(func(l *line, now time.Time) { l.changed(change, now) })
}

// serves notes that a pool serves a node that it did not serve before: see [line.serves].
func (w *waiting) serves(change ipam.Change) {
	w.do(func(l *line, now time.Time) { l.serves(change, now) })
}

func (w *waiting) help(uid types.UID, changes []ipam.Change) bool {
	if len(changes) == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.line.help(uid, changes)
}

// demand returns the addresses that the pods of the line may take, without the pod that is being
// scheduled.
func (w *waiting) demand(snapshot *pools.Snapshot) *ipam.Demand {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.line.demand(snapshot)
}

func (w *waiting) count() map[group]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.line.lacking()
}

func (w *waiting) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		pods, due := w.next()
		if len(pods) > 0 {
			wokenPods.Add(float64(len(pods)))
			w.activator.Activate(klog.FromContext(ctx), pods)
		}
		timer.Stop()
		if !due.IsZero() {
			timer.Reset(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.news:
		case <-timer.C:
		}
	}
}

// next returns the pods to wake and the next deadline (zero: none).
func (w *waiting) next() (pods map[string]*v1.Pod, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line.expire(time.Now())
	pods = make(map[string]*v1.Pod, len(w.line.wake))
	for uid, pod := range w.line.wake {
		pods[string(uid)] = pod
	}
	clear(w.line.wake)
	return pods, w.line.due
}
