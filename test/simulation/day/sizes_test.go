// SPDX-License-Identifier: Apache-2.0

package day

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// sizesOf walks through all that can be reached from some values and returns the sum of the
// lengths of maps, slices and channels, by the type and the field that has them. It looks into
// Berth's own types and client-go's caches and queues; objects of the API, clients and closures
// it leaves out. Nothing may change meanwhile.
func sizesOf(roots ...any) map[string]int {
	w := walker{sizes: map[string]int{}, seen: map[visit]bool{}}
	for _, root := range roots {
		w.walk(reflect.ValueOf(root), reflect.TypeOf(root).String())
	}
	return w.sizes
}

type visit struct {
	at   uintptr
	kind reflect.Type
}

type walker struct {
	sizes map[string]int
	seen  map[visit]bool
}

// looksInto says whether the fields of a package's types are looked at.
func looksInto(path string) bool {
	const own = "github.com/berth-dev/berth/"
	switch {
	case strings.HasPrefix(path, own+"test/"), strings.HasPrefix(path, own+"ipam/api/"), strings.HasPrefix(path, own+"ipam/client"), strings.HasPrefix(path, own+"ipam/ipamtest"):
		return false
	case strings.HasPrefix(path, own):
		return true
	}
	return path == "k8s.io/client-go/tools/cache" || path == "k8s.io/client-go/util/workqueue" || strings.HasPrefix(path, "k8s.io/utils/")
}

// holds says whether values of a type may have others in them.
func holds(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Map, reflect.Slice, reflect.Array, reflect.Chan, reflect.Interface:
		return true
	case reflect.Pointer:
		return holds(t.Elem())
	case reflect.Struct:
		return looksInto(t.PkgPath())
	}
	return false
}

func (w *walker) walk(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || !holds(v.Type().Elem()) {
			return
		}
		if key := (visit{v.Pointer(), v.Type()}); w.seen[key] {
			return
		} else {
			w.seen[key] = true
		}
		w.walk(v.Elem(), name)
	case reflect.Interface:
		if !v.IsNil() {
			w.walk(v.Elem(), name)
		}
	case reflect.Struct:
		if !looksInto(v.Type().PkgPath()) {
			return
		}
		kind, _, _ := strings.Cut(v.Type().String(), "[")
		for i := range v.NumField() {
			w.walk(v.Field(i), kind+"."+v.Type().Field(i).Name)
		}
	case reflect.Map:
		w.sizes[name] += v.Len()
		if holds(v.Type().Elem()) {
			for all := v.MapRange(); all.Next(); {
				w.walk(all.Value(), name+"[]")
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice {
			w.sizes[name] += v.Len()
		}
		if holds(v.Type().Elem()) {
			for i := range v.Len() {
				w.walk(v.Index(i), name+"[]")
			}
		}
	case reflect.Chan:
		w.sizes[name] += v.Len()
	}
}

// A queue that grows is found wherever it is, and once.
func TestSizes(t *testing.T) {
	queue := workqueue.NewTyped[string]()
	defer queue.ShutDown()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	before := sizesOf(queue, store)
	for i := range 7 {
		queue.Add(fmt.Sprint(i))
		if err := store.Add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	after := sizesOf(queue, []any{store, store, queue})
	for _, name := range []string{"workqueue.Typed.queue", "workqueue.Typed.dirty", "cache.threadSafeMap.items"} {
		if before[name] != 0 || after[name] != 7 {
			t.Errorf("%s: %d before, %d after 7 were added; all sizes: %v", name, before[name], after[name], after)
		}
	}
}
