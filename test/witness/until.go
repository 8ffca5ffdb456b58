// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// selected lists and watches with a typed client what the options select.
func selected[L runtime.Object](
	options metav1.ListOptions,
	listAll func(context.Context, metav1.ListOptions) (L, error),
	watchAll func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *cache.ListWatch {
	with := func(given metav1.ListOptions) metav1.ListOptions {
		given.LabelSelector, given.FieldSelector = options.LabelSelector, options.FieldSelector
		return given
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, given metav1.ListOptions) (runtime.Object, error) {
			return listAll(ctx, with(given))
		},
		WatchFuncWithContext: func(ctx context.Context, given metav1.ListOptions) (watch.Interface, error) {
			return watchAll(ctx, with(given))
		},
	}
}

func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, Patience, fmt.Errorf("it was not within %s", Patience))
}

// until waits for an object that is there and satisfies the condition.
func until[T runtime.Object](ctx context.Context, from cache.ListerWatcher, example T, condition func(T) bool) (found T, err error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err = watchtools.UntilWithSync(ctx, from, example, nil, func(event watch.Event) (bool, error) {
		object, ok := event.Object.(T)
		if !ok || event.Type == watch.Deleted || !condition(object) {
			return false, nil
		}
		found = object
		return true, nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return found, cause
	}
	return found, err
}

// untilAll waits until the condition holds of all objects together. It is asked
// once the whole list is there, and again after changes.
func untilAll[T runtime.Object](ctx context.Context, from cache.ListerWatcher, example T, condition func([]T) bool) error {
	ctx, cancel := patient(ctx)
	informer := cache.NewSharedIndexInformer(from, example, 0, cache.Indexers{})
	changed := make(chan struct{}, 1)
	change := func() {
		select {
		case changed <- struct{}{}:
		default: // one look after it sees this change too
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { change() }, UpdateFunc: func(any, any) { change() }, DeleteFunc: func(any) { change() },
	})
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if err != nil {
		return err
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return context.Cause(ctx)
	}
	for {
		var all []T
		for _, object := range informer.GetStore().List() {
			all = append(all, object.(T))
		}
		if condition(all) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}
