// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Hooks are called by a Counter, serially.
type Hooks struct {
	// First is called when the first of the pods that count is seen.
	First func()
	// Bound is called for each pod that is bound, also if it does not count.
	Bound func(pod *v1.Pod)
	// Last is called when all pods that count are bound.
	Last func()
}

// Counter counts the pods of a namespace that are bound. It follows them with an
// informer, because a plain watch is dropped when it falls behind.
type Counter struct {
	namespace string
	want      int
	hooks     Hooks
	factory   informers.SharedInformerFactory
	done      chan struct{}

	mu          sync.Mutex
	seen, bound int
	first, last time.Time
}

// Count starts to count until ctx ends.
func Count(ctx context.Context, config *rest.Config, namespace string, want int, hooks Hooks) (*Counter, error) {
	c := &Counter{namespace: namespace, want: want, hooks: hooks, done: make(chan struct{})}
	var err error
	c.factory, err = Follow(ctx, config, c.observe)
	return c, err
}

// Follow calls observe, serially, for the pods that there are (before is nil) and for each
// change of a pod, until ctx ends. It returns when observe has seen the pods that there are.
// The caller may wait with Shutdown, after ctx has ended, for observe's last return.
func Follow(ctx context.Context, config *rest.Config, observe func(before, after *v1.Pod)) (informers.SharedInformerFactory, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	registration, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { observe(nil, object.(*v1.Pod)) },
		UpdateFunc: func(before, after any) { observe(before.(*v1.Pod), after.(*v1.Pod)) },
	})
	if err != nil {
		return nil, fmt.Errorf("follow pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "pods", registration.HasSyncedChecker()) {
		return nil, fmt.Errorf("follow pods: %w", ctx.Err())
	}
	return factory, nil
}

// observe runs serially.
func (c *Counter) observe(before, after *v1.Pod) {
	counts := after.Namespace == c.namespace
	bound := after.Spec.NodeName != "" && (before == nil || before.Spec.NodeName == "")
	now := time.Now()
	c.mu.Lock()
	if counts && before == nil {
		c.seen++
	}
	isFirst := counts && before == nil && c.seen == 1
	if isFirst {
		c.first = now
	}
	if counts && bound {
		c.bound++
	}
	isLast := counts && bound && c.bound == c.want
	if isLast {
		c.last = now
	}
	c.mu.Unlock()

	if isFirst && c.hooks.First != nil {
		c.hooks.First()
	}
	if bound && c.hooks.Bound != nil {
		c.hooks.Bound(after)
	}
	if isLast {
		if c.hooks.Last != nil {
			c.hooks.Last()
		}
		close(c.done)
	}
}

// Wait blocks until all pods are bound and Last has returned, and says when the
// first was seen and the last was bound.
func (c *Counter) Wait(ctx context.Context) (first, last time.Time, err error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		err = fmt.Errorf("wait for pods to be bound: %w", context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("%w, %d of %d are", err, c.bound, c.want)
	}
	return c.first, c.last, err
}

// Shutdown waits until the counter has ended; its context must have.
func (c *Counter) Shutdown() { c.factory.Shutdown() }
