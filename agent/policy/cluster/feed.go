// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// feed follows the objects of one kind: it is the source and the store of a cache.Reflector. The
// reflector lists, watches, and begins again after errors. The reflector's own lists, also streamed
// lists, have all objects in memory at once. So the feed itself passes on each object of a list as
// it comes, and the reflector sees a list without objects.
type feed struct {
	kind   string
	source cache.ListerWatcher
	// selector is a field selector.
	selector string
	// absent is called if the API server does not serve the kind, so its objects are not known; nil if
	// the API server always serves it.
	absent func(error)

	// begin is called before a full list, end after it with the version of the list: an object that
	// was not put in between is gone. live says that an object is from the watch, in the order of
	// versions; objects of a list have no order.
	begin  func()
	put    func(object runtime.Object, live bool)
	remove func(object runtime.Object, live bool)
	end    func(resourceVersion string)
	// reached is called with the result of each list and watch.
	reached func(error)

	// list is locked during a full list.
	list sync.Mutex
	// pages says that the API server cannot stream.
	pages bool
}

const (
	// pageSize is the number of objects in a page of a list.
	pageSize = 500
	// streamSeconds is how long the API server may take to stream all objects.
	streamSeconds = 600
	// The wait before the next request for a kind that the API server does not serve.
	absentMin, absentMax = time.Second, time.Minute
)

// run follows until the context ends. Nothing is called after it returned.
func (f *feed) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	cache.NewReflectorWithOptions(f, nil, f, cache.ReflectorOptions{Logger: &logger, Name: "policy", TypeDescription: f.kind}).RunWithContext(ctx)
	// The reflector does not wait for a list.
	f.list.Lock()
	defer f.list.Unlock()
}

// ListWithContext reads all objects and returns a list without any.
func (f *feed) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	f.list.Lock()
	defer f.list.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for pause := absentMin; ; pause = min(2*pause, absentMax) {
		version, err := f.all(ctx)
		if f.absent != nil && apierrors.IsNotFound(err) {
			f.absent(err)
			klog.FromContext(ctx).V(2).Info("The API server does not serve a kind, will ask again", "kind", f.kind, "after", pause)
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause + rand.N(pause)):
			}
			continue
		}
		if ctx.Err() == nil {
			f.reached(err)
		}
		if err != nil {
			return nil, err
		}
		f.end(version)
		return &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
	}
}

func (f *feed) all(ctx context.Context) (version string, err error) {
	if !f.pages && !watchlist.DoesClientNotSupportWatchListSemantics(f.source) {
		version, err = f.stream(ctx)
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			return version, err
		}
		klog.FromContext(ctx).V(2).Info("The API server cannot stream lists, will read pages", "kind", f.kind, "err", err)
		f.pages = true
	}
	return f.readPages(ctx)
}

// stream reads the objects with a watch that begins with all existing ones.
func (f *feed) stream(ctx context.Context) (version string, err error) {
	w, err := cache.ToWatcherWithContext(f.source).WatchWithContext(ctx, metav1.ListOptions{
		FieldSelector: f.selector, AllowWatchBookmarks: true, TimeoutSeconds: ptr.To[int64](streamSeconds),
		SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return "", err
	}
	defer w.Stop()
	f.begin()
	for {
		var event watch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case event, ok = <-w.ResultChan():
		}
		switch {
		case !ok:
			return "", fmt.Errorf("read all %s: %w", f.kind, errEnded)
		case event.Type == watch.Added, event.Type == watch.Modified:
			f.put(event.Object, false)
		case event.Type == watch.Deleted:
			f.remove(event.Object, false)
		case event.Type == watch.Error:
			return "", apierrors.FromObject(event.Object)
		case event.Type == watch.Bookmark:
			bookmark, err := meta.Accessor(event.Object)
			if err != nil {
				return "", fmt.Errorf("read all %s: %w", f.kind, err)
			}
			if bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				return bookmark.GetResourceVersion(), nil
			}
		}
	}
}

var errEnded = errors.New("the stream ended too early")

func (f *feed) readPages(ctx context.Context) (version string, err error) {
	lister := cache.ToListerWithContext(f.source)
	// There is no version, because with a version the API server returns all objects at once.
	options := metav1.ListOptions{FieldSelector: f.selector, Limit: pageSize}
	for {
		list, err := lister.ListWithContext(ctx, options)
		if err != nil {
			return "", err
		}
		about, err := meta.ListAccessor(list)
		if err != nil {
			return "", fmt.Errorf("read a page of %s: %w", f.kind, err)
		}
		if options.Continue == "" {
			f.begin()
		}
		err = meta.EachListItem(list, func(object runtime.Object) error { f.put(object, false); return nil })
		if err != nil {
			return "", fmt.Errorf("read a page of %s: %w", f.kind, err)
		}
		if options.Continue = about.GetContinue(); options.Continue == "" {
			return about.GetResourceVersion(), nil
		}
	}
}

// WatchWithContext watches from where the list ended.
func (f *feed) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = f.selector
	w, err := cache.ToWatcherWithContext(f.source).WatchWithContext(ctx, options)
	if ctx.Err() == nil {
		f.reached(err)
	}
	if f.absent != nil && apierrors.IsNotFound(err) {
		// The reflector lists again, and ListWithContext waits.
		return nil, apierrors.NewResourceExpired(f.kind + " are not served any more")
	}
	return w, err
}

// List is not called: the reflector has a context.
func (f *feed) List(options metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), options)
}

// Watch is not called: the reflector has a context.
func (f *feed) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported keeps the reflector from streaming lists by itself.
func (f *feed) IsWatchListSemanticsUnSupported() bool { return true }

// The rest is the store of the reflector.

func (f *feed) accept(obj any, into func(runtime.Object, bool)) error {
	object, ok := obj.(runtime.Object)
	if !ok {
		return fmt.Errorf("%s: got a %T", f.kind, obj)
	}
	into(object, true)
	return nil
}

// Add takes an event of the watch.
func (f *feed) Add(obj any) error { return f.accept(obj, f.put) }

// Update takes an event of the watch.
func (f *feed) Update(obj any) error { return f.accept(obj, f.put) }

// Delete takes an event of the watch.
func (f *feed) Delete(obj any) error { return f.accept(obj, f.remove) }

// Replace does nothing: the objects of the list are there already.
func (f *feed) Replace([]any, string) error { return nil }

// Resync does nothing.
func (f *feed) Resync() error { return nil }
