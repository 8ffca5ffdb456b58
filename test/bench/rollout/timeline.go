// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// timeline notes when the pods of a namespace were created, bound and Running, as a watch
// of them tells. Safe for concurrent use.
type timeline struct {
	namespace string
	want      int
	// all is closed when as many pods as wanted have been Running.
	all chan struct{}

	mu      sync.Mutex
	pods    map[types.UID]*milestones
	running int
	last    time.Time // when the last pod was Running
}

// milestones of one pod. A zero time has not come.
type milestones struct{ created, bound, running time.Time }

func newTimeline(namespace string, want int) *timeline {
	return &timeline{namespace: namespace, want: want, all: make(chan struct{}), pods: map[types.UID]*milestones{}}
}

// observe notes what a pod has become by now.
func (t *timeline) observe(now time.Time, pod *v1.Pod) {
	if pod.Namespace != t.namespace {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pods[pod.UID]
	if p == nil {
		p = &milestones{created: now}
		t.pods[pod.UID] = p
	}
	if p.bound.IsZero() && pod.Spec.NodeName != "" {
		p.bound = now
	}
	if p.running.IsZero() && pod.Status.Phase == v1.PodRunning {
		p.running = now
		t.running++
		t.last = now
		if t.running == t.want {
			close(t.all)
		}
	}
}

// count returns how many pods have been created, and how many have been Running.
func (t *timeline) count() (created, running int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pods), t.running
}

// durations returns the times of the pods that have been Running, from creation to binding
// and to Running, and when the last one was.
func (t *timeline) durations() (bound, running []time.Duration, last time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.pods {
		if !p.running.IsZero() {
			bound = append(bound, p.bound.Sub(p.created))
			running = append(running, p.running.Sub(p.created))
		}
	}
	return bound, running, t.last
}
