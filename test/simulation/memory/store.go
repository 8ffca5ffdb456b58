// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
)

// data are all objects of a server, in the place of etcd. Safe for concurrent use.
type data struct {
	mu      sync.Mutex
	version uint64
	tables  map[string]*table // resource → its objects
}

func newData() *data { return &data{version: 1, tables: map[string]*table{}} }

// table has the objects of a resource, which nobody changes: other versions replace them.
type table struct {
	objects map[string]runtime.Object
	events  []event
	watches map[*watcher]bool
}

type event struct {
	version uint64
	key     string
	kind    watch.EventType
	// object, and how it was before.
	object, before runtime.Object
}

func (d *data) table(resource string) *table {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tables[resource]
	if t == nil {
		t = &table{objects: map[string]runtime.Object{}, watches: map[*watcher]bool{}}
		d.tables[resource] = t
	}
	return t
}

// copyOf returns the same objects, for another server.
func (d *data) copyOf() *data {
	d.mu.Lock()
	defer d.mu.Unlock()
	other := &data{version: d.version, tables: map[string]*table{}}
	for resource, t := range d.tables {
		other.tables[resource] = &table{objects: maps.Clone(t.objects), watches: map[*watcher]bool{}}
	}
	return other
}

// store is a resource as the registries of kube-apiserver want it.
type store struct {
	data *data
	*table
	versioner storage.APIObjectVersioner
	newFunc   func() runtime.Object
}

var _ storage.Interface = (*store)(nil)

func (s *store) Versioner() storage.Versioner { return s.versioner }

func (s *store) Stats(context.Context) (storage.Stats, error) { return storage.Stats{}, nil }

func (s *store) ReadinessCheck() error { return nil }

func (s *store) RequestWatchProgress(context.Context) error { return nil }

func (s *store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

func (s *store) CompactRevision() int64 { return 0 }

func (s *store) GetCurrentResourceVersion(context.Context) (uint64, error) {
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	return s.data.version, nil
}

// now returns an object that nobody may change; nil where there is none.
func (s *store) now(key string) runtime.Object {
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	return s.objects[key]
}

// fill makes out a copy of an object.
func fill(out, object runtime.Object) {
	if out != nil {
		reflect.ValueOf(out).Elem().Set(reflect.ValueOf(object.DeepCopyObject()).Elem())
	}
}

// put replaces an object, which is nil for none, by another, if it is still there.
func (s *store) put(key string, before, object runtime.Object) (bool, error) {
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	if s.objects[key] != before {
		return false, nil
	}
	s.data.version++
	e := event{version: s.data.version, key: key, kind: watch.Modified, object: object, before: before}
	switch {
	case before == nil:
		e.kind = watch.Added
	case object == nil:
		e.kind, e.object = watch.Deleted, before.DeepCopyObject()
	}
	if err := s.versioner.UpdateObject(e.object, e.version); err != nil {
		return false, err
	}
	if object == nil {
		delete(s.objects, key)
	} else {
		s.objects[key] = object
	}
	s.events = append(s.events, e)
	for w := range s.watches {
		w.tell()
	}
	return true, nil
}

func (s *store) Create(_ context.Context, key string, object, out runtime.Object, _ uint64) error {
	if version, err := s.versioner.ObjectResourceVersion(object); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	object = object.DeepCopyObject()
	if pod, is := object.(*core.Pod); is {
		// Kubernetes' controller of ReplicaSets divides by the age of pods, and in a bubble time stands
		// still.
		pod.CreationTimestamp.Time = pod.CreationTimestamp.Add(-time.Second)
	}
	if e, is := object.(*core.Event); is {
		// Recorders name an event by the nanosecond, which in a bubble is the same for all that happens
		// at once.
		for s.now(key) != nil {
			key, e.Name = key+"0", e.Name+"0"
		}
	}
	ok, err := s.put(key, nil, object)
	if err != nil {
		return err
	}
	if !ok {
		return storage.NewKeyExistsError(key, 0)
	}
	fill(out, object)
	return nil
}

func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions) error {
	for {
		now := s.now(key)
		if now == nil {
			return storage.NewKeyNotFoundError(key, 0)
		}
		if err := preconditions.Check(key, now); err != nil {
			return err
		}
		if err := validate(ctx, now.DeepCopyObject()); err != nil {
			return err
		}
		if ok, err := s.put(key, now, nil); err != nil || ok {
			fill(out, now)
			return err
		}
	}
}

func (s *store) Get(_ context.Context, key string, options storage.GetOptions, out runtime.Object) error {
	now := s.now(key)
	switch {
	case now != nil:
		fill(out, now)
	case options.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	default:
		return storage.NewKeyNotFoundError(key, 0)
	}
	return nil
}

func (s *store) GuaranteedUpdate(_ context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, change storage.UpdateFunc, _ runtime.Object) error {
	for {
		now := s.now(key)
		var object runtime.Object
		var version uint64
		if now != nil {
			object = now.DeepCopyObject()
			version, _ = s.versioner.ObjectResourceVersion(now)
		} else {
			if !ignoreNotFound {
				return storage.NewKeyNotFoundError(key, 0)
			}
			object = s.newFunc()
		}
		if err := preconditions.Check(key, object); err != nil {
			return err
		}
		object, _, err := change(object, storage.ResponseMeta{ResourceVersion: version})
		if err != nil {
			return err
		}
		object = object.DeepCopyObject()
		if now != nil {
			if err := s.versioner.UpdateObject(object, version); err != nil {
				return err
			}
			if equality.Semantic.DeepEqual(now, object) {
				fill(out, now)
				return nil
			}
		}
		if ok, err := s.put(key, now, object); err != nil || ok {
			fill(out, object)
			return err
		}
	}
}

// keys are those of the objects at a key or, with recursive, below it, in order. Under the lock.
func (s *store) keys(key string, recursive bool) []string {
	var keys []string
	for k := range s.objects {
		if isAt(k, key, recursive) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func isAt(k, key string, recursive bool) bool {
	return k == key || recursive && strings.HasPrefix(k, strings.TrimSuffix(key, "/")+"/")
}

func (s *store) GetList(_ context.Context, key string, options storage.ListOptions, list runtime.Object) error {
	s.data.mu.Lock()
	var found []runtime.Object
	for _, k := range s.keys(key, options.Recursive) {
		found = append(found, s.objects[k])
	}
	version := s.data.version
	s.data.mu.Unlock()
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	slice := reflect.ValueOf(items).Elem()
	if slice.IsNil() {
		slice.Set(reflect.MakeSlice(slice.Type(), 0, 0)) // an empty list is "[]"
	}
	for _, object := range found {
		if ok, err := options.Predicate.Matches(object); err != nil {
			return err
		} else if ok {
			slice.Set(reflect.Append(slice, reflect.ValueOf(object.DeepCopyObject()).Elem()))
		}
	}
	return s.versioner.UpdateList(list, version, "", nil)
}

// Watch begins with all objects where the client wants them, or else after a version.
func (s *store) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	seen, err := s.versioner.ParseResourceVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{store: s, key: key, options: options, cancel: cancel, more: make(chan struct{}, 1), result: make(chan watch.Event)}
	announced := options.SendInitialEvents != nil && *options.SendInitialEvents
	s.data.mu.Lock()
	defer s.data.mu.Unlock()
	if announced || options.SendInitialEvents == nil && seen == 0 {
		for _, k := range s.keys(key, options.Recursive) {
			w.first = append(w.first, event{key: k, kind: watch.Added, object: s.objects[k]})
		}
		if announced && options.Predicate.AllowWatchBookmarks {
			w.first = append(w.first, event{version: s.data.version, kind: watch.Bookmark})
		}
		seen = s.data.version
	}
	w.at, _ = slices.BinarySearchFunc(s.events, seen+1, func(e event, version uint64) int { return cmp.Compare(e.version, version) })
	s.watches[w] = true
	go w.run(ctx)
	return w, nil
}

// watcher reads on in the events of a table.
type watcher struct {
	store   *store
	key     string
	options storage.ListOptions
	cancel  context.CancelFunc
	more    chan struct{}
	result  chan watch.Event
	first   []event
	at      int
}

func (w *watcher) Stop() { w.cancel() }

func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

func (w *watcher) tell() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.result)
	defer func() {
		w.store.data.mu.Lock()
		defer w.store.data.mu.Unlock()
		delete(w.store.watches, w)
	}()
	events := w.first
	for {
		for _, e := range events {
			told, is := w.tells(e)
			if !is {
				continue
			}
			select {
			case w.result <- told:
			case <-ctx.Done():
				return
			}
		}
		w.store.data.mu.Lock()
		events = w.store.events[w.at:]
		w.at = len(w.store.events)
		w.store.data.mu.Unlock()
		if len(events) > 0 {
			continue
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		}
	}
}

// tells returns what the client of a watch is told of an event: of an object that comes to match
// its selectors, that it was added.
func (w *watcher) tells(e event) (told watch.Event, is bool) {
	if e.kind == watch.Bookmark {
		object := w.store.newFunc()
		_ = w.store.versioner.UpdateObject(object, e.version) // an object has metadata
		if o, err := meta.Accessor(object); err == nil {
			o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
		return watch.Event{Type: watch.Bookmark, Object: object}, true
	}
	if !isAt(e.key, w.key, w.options.Recursive) {
		return watch.Event{}, false
	}
	matched, matches := w.matches(e.before), e.kind != watch.Deleted && w.matches(e.object)
	switch {
	case matches && matched:
		return watch.Event{Type: watch.Modified, Object: e.object.DeepCopyObject()}, true
	case matches:
		return watch.Event{Type: watch.Added, Object: e.object.DeepCopyObject()}, true
	case matched:
		object := e.before.DeepCopyObject()
		_ = w.store.versioner.UpdateObject(object, e.version) // an object has metadata
		return watch.Event{Type: watch.Deleted, Object: object}, true
	}
	return watch.Event{}, false
}

func (w *watcher) matches(object runtime.Object) bool {
	if object == nil {
		return false
	}
	ok, err := w.options.Predicate.Matches(object)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", w.key, err))
	}
	return ok
}
