// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
)

// lookAgain is when waiting looks whether an address that came free is still
// free: whoever was woken for it may have found no room on the nodes. The wait
// doubles, and so does the number of pods that are woken then.
const lookAgain = 250 * time.Millisecond

// waiting is the pods that found no address, and wakes those that a change helps:
// for an address that came free the first of them, by priority and then by how
// long they wait, and not thousands of which one can have it. It does so from one
// goroutine, so that many changes at once wake a pod once. Safe for concurrent
// use.
type waiting struct {
	activator fwk.PodActivator
	book      pool

	mu      sync.Mutex
	pods    map[types.UID]*waiter
	changes []ipam.Change
	wake    chan struct{}
}

// pool is what waiting asks the book. Neither method blocks.
type pool interface {
	Helps(change ipam.Change, request *ipam.Request) bool
	HasFree(pool string) bool
}

type waiter struct {
	pod     *v1.Pod
	request ipam.Request
	since   time.Time
	// short: the last attempt to schedule the pod found no address for it. Not
	// short: an attempt is under way, or failed for another reason.
	short bool
	// missed: something changed during the attempt.
	missed bool
	// woken: an attempt is to come.
	woken bool
}

func newWaiting(activator fwk.PodActivator, book pool) *waiting {
	return &waiting{activator: activator, book: book, pods: map[types.UID]*waiter{}, wake: make(chan struct{}, 1)}
}

// add notes that an attempt to schedule the pod begins.
func (w *waiting) add(pod *v1.Pod, request ipam.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	since := time.Now()
	if known := w.pods[pod.UID]; known != nil {
		since = known.since
	}
	w.pods[pod.UID] = &waiter{pod: pod, request: request, since: since}
}

// short notes that the attempt found no address on some node.
func (w *waiting) short(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.pods[uid]
	if known == nil {
		return
	}
	known.short = true
	if known.missed {
		owner := known.request.Holder()
		w.note(ipam.Change{Owner: &owner})
	}
}

// remove forgets a pod, which has its addresses or is gone, and says since when
// it was known.
func (w *waiting) remove(uid types.UID) (since time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.pods[uid]
	if known == nil {
		return time.Time{}, false
	}
	delete(w.pods, uid)
	return known.since, true
}

// others says how many pods, but for the one that is being scheduled, were last
// seen without addresses.
func (w *waiting) others() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, len(w.pods)-1)
}

// count says how many pods lack an address.
func (w *waiting) count() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.pods {
		if known.short {
			n++
		}
	}
	return n
}

// changed takes note of a change; run acts on it.
func (w *waiting) changed(change ipam.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pods) > 0 {
		w.note(change)
	}
}

func (w *waiting) note(change ipam.Change) {
	w.changes = append(w.changes, change)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// freed is an address that came free, and how many pods are to be woken should it
// still be free at the next look.
type freed struct {
	ipam.Change
	next int
}

// run wakes pods until ctx ends.
func (w *waiting) run(ctx context.Context) {
	var open []freed
	pause := lookAgain
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var again bool
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			pause = lookAgain
		case <-timer.C:
			again = true
		}
		pods, rest := w.helped(open, again)
		open = rest
		if len(pods) > 0 {
			w.activator.Activate(klog.FromContext(ctx), pods)
		}
		if len(open) > 0 && (again || pause == lookAgain) {
			timer.Reset(pause)
			pause = min(2*pause, 30*time.Second)
		}
	}
}

// helped returns the pods that changes since the last call may help, and, where
// again, those that what came free before may. It also returns what came free and
// others may still wait for.
func (w *waiting) helped(open []freed, again bool) (map[string]*v1.Pod, []freed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := w.changes
	w.changes = nil

	pods := map[string]*v1.Pod{}
	wake := func(known *waiter) {
		known.woken = true
		pods[string(known.pod.UID)] = known.pod
	}
	for _, change := range changes {
		if change.Pool != "" {
			open = append(open, freed{Change: change, next: 1})
		}
		for _, known := range w.pods {
			if !w.book.Helps(change, &known.request) {
				continue
			}
			switch {
			case !known.short:
				known.missed = true
			case change.Pool == "":
				wake(known)
			}
		}
	}
	if len(open) == 0 {
		return pods, nil
	}
	queue := w.queue()
	var rest []freed
	for _, f := range open {
		if !w.book.HasFree(f.Pool) {
			continue
		}
		if f.next == 1 || again {
			left := f.next
			for _, known := range queue {
				if left == 0 {
					break
				}
				if known.woken && f.next == 1 || !w.book.Helps(f.Change, &known.request) {
					continue
				}
				wake(known)
				left--
			}
			if left > 0 {
				// Everybody was woken that it may help.
				continue
			}
			f.next *= 2
		}
		rest = append(rest, f)
	}
	return pods, rest
}

// queue is the pods that lack an address, in the order of their turn.
func (w *waiting) queue() []*waiter {
	var queue []*waiter
	for _, known := range w.pods {
		if known.short {
			queue = append(queue, known)
		}
	}
	slices.SortFunc(queue, func(a, b *waiter) int {
		return cmp.Or(
			cmp.Compare(corev1helpers.PodPriority(b.pod), corev1helpers.PodPriority(a.pod)),
			a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return queue
}
