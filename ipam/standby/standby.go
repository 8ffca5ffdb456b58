// SPDX-License-Identifier: Apache-2.0

// Package standby has a work queue for programs with several replicas: only the leader does the
// work.
package standby

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Queue drops keys that are added before Open, because a replica that does not lead sees all events
// but handles no keys. A new leader calls Open, and then adds the keys of all objects. Safe for
// concurrent use.
type Queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	open atomic.Bool
}

// New returns a queue whose metrics have a name. A key that failed waits from first to longest.
func New[K comparable](name string, first, longest time.Duration) *Queue[K] {
	return &Queue[K]{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, longest),
		workqueue.TypedRateLimitingQueueConfig[K]{Name: name})}
}

// Open makes the queue keep the keys that are added from now on.
func (q *Queue[K]) Open() { q.open.Store(true) }

// Add adds a key.
func (q *Queue[K]) Add(key K) {
	if q.open.Load() {
		q.TypedRateLimitingInterface.Add(key)
	}
}

// AddAfter adds a key later.
func (q *Queue[K]) AddAfter(key K, delay time.Duration) {
	if q.open.Load() {
		q.TypedRateLimitingInterface.AddAfter(key, delay)
	}
}

// Contained calls step and returns a panic as an error. An object that the code cannot handle must
// not stop the work on all others, in each new leader.
func Contained(step func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return step()
}
