// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"slices"
	"sync"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestSource(t *testing.T) {
	object := func(generation int64, labels map[string]string) *v1alpha1.IPPool {
		o := pool("web", 1, "10.0.0.2")
		o.Generation, o.Labels = generation, labels
		return o
	}
	now := object(1, nil)
	source := NewSource(func() []*v1alpha1.IPPool { return []*v1alpha1.IPPool{now} })
	first, second := source.Follow(), source.Follow()
	told := func() (n int) {
		for _, follower := range []<-chan struct{}{first, second} {
			select {
			case <-follower:
				n++
			default:
			}
		}
		return n
	}
	before := source.Snapshot()
	for _, test := range []struct {
		name  string
		after *v1alpha1.IPPool
		anew  bool
	}{
		{"its status", object(1, nil), false},
		{"its spec", object(2, nil), true},
		{"its labels", object(2, map[string]string{"rack": "a"}), true},
		{"it is gone", nil, true},
	} {
		was := now
		if test.after != nil {
			now = test.after
		}
		source.Changed(was, test.after)
		source.Changed(was, test.after)
		want := 0
		if test.anew {
			want = 2
		}
		if n := told(); n != want {
			t.Errorf("%s changed: %d followers were told, want %d", test.name, n, want)
		}
		objects, after := source.Look()
		if objects[0] != now || (after != before) != test.anew || source.Snapshot() != after {
			t.Errorf("%s changed: compiled anew %t, want %t, and the same for all, with the objects as they are", test.name, after != before, test.anew)
		}
		before = after
	}
}

// A caller that asks after a change gets the changed pools, also with concurrent callers.
func TestSourceInParallel(t *testing.T) {
	var mu sync.Mutex
	var objects []*v1alpha1.IPPool
	source := NewSource(func() []*v1alpha1.IPPool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clip(objects)
	})
	var group sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		group.Go(func() {
			changed := source.Follow()
			o := pool(name, 1, "10.0.0.2")
			mu.Lock()
			objects = append(objects, o)
			mu.Unlock()
			source.Changed(nil, o)
			<-changed
			if _, ok := source.Snapshot().Index(name); !ok {
				t.Errorf("pool %s is missing", name)
			}
		})
	}
	group.Wait()
}
