// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/fixedset"
)

// fakeReader has one workload. Find caches its present state.
type fakeReader struct {
	now    customkind.Workload
	err    error
	cached customkind.Workload
	// standing of the cached workload, and of the next one found.
	standing, becomes customkind.Standing
	finds             int
}

func (r *fakeReader) Cached(owner *v1alpha1.Owner) (customkind.Workload, customkind.Standing) {
	if owner.Name != web.Name {
		return customkind.Workload{}, customkind.Unread
	}
	return r.cached, r.standing
}

func (r *fakeReader) Find(_ context.Context, owner *v1alpha1.Owner, _ bool) (customkind.Workload, bool, error) {
	r.finds++
	if owner.Name != web.Name {
		return customkind.Workload{}, true, nil
	}
	if r.err == nil && r.now.Scaled {
		r.cached, r.standing = r.now, r.becomes
	}
	return r.now, true, r.err
}

func (*fakeReader) Prune(context.Context, func() map[schema.GroupKind]bool) {}
func (*fakeReader) Wait()                                                   {}

var web = ipam.Owner{APIVersion: "example.dev/v1", Kind: "Fleet", Namespace: "shop", Name: "web", UID: "web"}

// customWorld is a workload, and the pods that ask for the size of its set.
type customWorld struct {
	*customSets
	t      *testing.T
	reader *fakeReader
	woken  int
}

func newCustomWorld(t *testing.T) *customWorld {
	w := &customWorld{t: t}
	w.reader = &fakeReader{now: customkind.Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 3, Spare: 1}}, becomes: customkind.Current}
	w.customSets = customSetsOf(w.reader, func(owner ipam.Owner) {
		if owner != web {
			t.Errorf("pods of %v are woken", owner)
		}
		w.woken++
	})
	t.Cleanup(w.queue.ShutDown)
	return w
}

// waits, has and free check the answer to a pod.
func (w *customWorld) waits() {
	w.t.Helper()
	var reading *beingReadError
	if size, known, err := w.size(&web); known || !errors.As(err, &reading) {
		w.t.Fatalf("got %+v, %v, %v; want to wait", size, known, err)
	}
}

func (w *customWorld) has(want fixedset.Size) {
	w.t.Helper()
	if size, known, err := w.size(&web); !known || err != nil || size != want {
		w.t.Fatalf("got %+v, %v, %v; want %+v", size, known, err, want)
	}
}

func (w *customWorld) free() {
	w.t.Helper()
	if size, known, err := w.size(&web); known || err != nil {
		w.t.Fatalf("got %+v, %v, %v; want no set", size, known, err)
	}
}

// reads makes a worker read once, and returns whether pods were woken.
func (w *customWorld) reads() bool {
	w.t.Helper()
	before := w.woken
	w.next(w.t.Context())
	return w.woken > before
}

// idle fails the test if there is something to read.
func (w *customWorld) idle() {
	w.t.Helper()
	if n := w.queue.Len(); n > 0 {
		w.t.Fatalf("%d workloads are to be read", n)
	}
}

func TestCustomSetIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCustomWorld(t)
		w.waits()
		w.waits()
		if w.queue.Len() != 1 {
			t.Fatalf("%d are to be read, want 1: one workload is read once", w.queue.Len())
		}
		if !w.reads() {
			t.Error("no pod is woken")
		}
		w.has(fixedset.Size{Replicas: 3, Spare: 1})
		w.idle()

		// A newer generation is read before its pods get addresses.
		w.reader.now.Size.Replicas, w.reader.standing = 5, customkind.Outdated
		w.waits()
		w.reads()
		w.has(fixedset.Size{Replicas: 5, Spare: 1})
		w.idle()
	})
}

// Pods that wait for an address of the set are woken if it may have become larger.
func TestCustomSetChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCustomWorld(t)
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: types.UID(web.UID)}}
		w.noticed(object)
		w.idle() // no pod asked
		w.waits()
		w.reads()
		<-time.After(time.Second)
		w.has(fixedset.Size{Replicas: 3, Spare: 1})
		w.reader.now.Size.Replicas, w.reader.standing = 5, customkind.Outdated
		w.noticed(object)
		<-time.After(time.Second)
		if !w.reads() {
			t.Error("no pod is woken")
		}
		w.noticed(object)
		w.idle() // no pod asked since
		w.has(fixedset.Size{Replicas: 5, Spare: 1})
	})
}

// A workload that cannot be read, for any reason, has no fixed set: no pod waits. It is
// read again after a time, and no pod waits during that either.
func TestCustomSetCannotBeRead(t *testing.T) {
	for _, test := range []struct {
		name string
		now  customkind.Workload
		err  error
	}{
		{"not there, or its kind is not served", customkind.Workload{}, nil},
		{"being deleted", customkind.Workload{Scaled: true}, nil},
		{"not scalable", customkind.Workload{Exists: true}, nil},
		{"not permitted", customkind.Workload{}, &customkind.ForbiddenError{Err: errors.New("no")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCustomWorld(t)
				good := w.reader.now
				w.reader.now, w.reader.err = test.now, test.err
				w.reader.becomes = customkind.Unread
				w.waits()
				if !w.reads() {
					t.Error("no pod is woken")
				}
				w.free()
				w.idle()
				<-time.After(askAgain)
				w.free()
				w.reader.now, w.reader.err, w.reader.becomes = good, nil, customkind.Current
				if !w.reads() {
					t.Error("no pod is woken")
				}
				w.has(good.Size)
			})
		})
	}
}

// A temporary error costs some time; a permanent one costs no more than patience.
func TestCustomSetErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCustomWorld(t)
		w.reader.err = errors.New("the API server is ill")
		w.waits()
		if w.reads() {
			t.Error("pods are woken while it may be read yet")
		}
		w.waits()
		w.reader.err = nil
		w.reads()
		w.has(fixedset.Size{Replicas: 3, Spare: 1})

		w = newCustomWorld(t)
		w.reader.err = errors.New("the API server is ill")
		w.waits()
		w.reads()
		<-time.After(patience)
		before := w.reader.finds
		if !w.reads() {
			t.Error("no pod is woken")
		}
		if w.reader.finds != before {
			t.Error("it was read although nobody waits any more")
		}
		w.free()
	})
}

// The first error of a kind is logged, and that it can be read again.
func TestCustomSetComplains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCustomWorld(t)
		var logged []string
		ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{}))
		w.waits()
		for _, step := range []struct {
			err  error
			want string
		}{
			{nil, ""},
			{&customkind.ForbiddenError{Err: errors.New("no")}, "Failed to read a workload"},
			{&customkind.ForbiddenError{Err: errors.New("no")}, ""},
			{nil, "can be read again"},
			{nil, ""},
			{&customkind.ForbiddenError{Err: errors.New("no")}, "Failed to read a workload"},
		} {
			w.reader.err, logged = step.err, nil
			w.want(w.setOf(&web), time.Now())
			w.next(ctx)
			if got := strings.Join(logged, "; "); !strings.Contains(got, step.want) || step.want == "" && got != "" {
				t.Errorf("error %v: logged %q, want %q", step.err, got, step.want)
			}
		}
	})
}

// growingReader has a workload that wants one more pod at each look.
type growingReader struct {
	*fakeReader
	replicas int64
}

func (r *growingReader) Cached(*v1alpha1.Owner) (customkind.Workload, customkind.Standing) {
	r.replicas++
	return customkind.Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: r.replicas}}, customkind.Current
}

// A pod waits with the size of its set that was read after it joined the line: a change
// of a size that was read before may have come before.
func TestSizeOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := pod("web-x", of("example.dev/v1", "Fleet", "web"), retain)
		c := newCluster(t, oneWeb, pod)
		reader := &growingReader{fakeReader: &fakeReader{}}
		c.plugin.sets.customs.reader = reader
		c.framework.RunPreFilterPlugins(c.ctx, framework.NewCycleState(), pod)
		if got := c.plugin.waiting.line.pods[pod.UID].request.MaxPods; reader.replicas < 2 || got != int(reader.replicas) {
			t.Errorf("the pod waits for one of %d pods, want %d", got, reader.replicas)
		}
	})
}

// A workload of another UID is not the pod's.
func TestSizeOfAnother(t *testing.T) {
	deployments, replicaSets := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, err := range []error{deployments.Add(deployment("web", 3)), replicaSets.Add(replicaSet("web", ""))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &fixedSets{deployments: appslisters.NewDeploymentLister(deployments), replicaSets: appslisters.NewReplicaSetLister(replicaSets)}
	for _, kind := range []string{"Deployment", "ReplicaSet"} {
		for _, test := range []struct {
			name, uid string
			known     bool
		}{
			{"web", "web", true},
			{"web", "other", false},
			{"other", "web", false},
		} {
			owner := &ipam.Owner{APIVersion: "apps/v1", Kind: kind, Namespace: "shop", Name: test.name, UID: test.uid}
			if size, known, err := s.size(owner); known != test.known || err != nil {
				t.Errorf("%s %s with UID %s: %+v, %v, %v", kind, test.name, test.uid, size, known, err)
			}
		}
	}
}

// A workload that is not watched is read again at intervals, and no pod waits for that.
func TestCustomSetUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCustomWorld(t)
		w.reader.becomes = customkind.Unwatched
		w.waits()
		w.reads()
		w.has(fixedset.Size{Replicas: 3, Spare: 1})
		w.idle()
		w.reader.now.Size.Replicas = 5
		<-time.After(checkAgain)
		w.has(fixedset.Size{Replicas: 3, Spare: 1})
		if !w.reads() {
			t.Error("no pod is woken")
		}
		w.has(fixedset.Size{Replicas: 5, Spare: 1})
	})
}

func TestCustomSetsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCustomWorld(t)
		w.waits()
		w.reads()
		<-time.After(forgetAfter - time.Second)
		w.purge()
		if len(w.sets) != 1 || !w.kinds()[schema.GroupKind{Group: "example.dev", Kind: "Fleet"}] {
			t.Error("it is forgotten while pods may ask for it")
		}
		<-time.After(time.Second)
		w.purge()
		if len(w.sets) != 0 || len(w.kinds()) != 0 {
			t.Error("it is remembered")
		}
	})
}

// A pod whose author made up an owner with a workload's UID changes nothing for the
// workload's pods.
func TestCustomSetForged(t *testing.T) {
	w := newCustomWorld(t)
	w.changed = func(ipam.Owner) {}
	forged := web
	forged.Namespace, forged.Name = "other", "forged"
	var reading *beingReadError
	if _, _, err := w.size(&forged); !errors.As(err, &reading) {
		t.Fatalf("the made-up owner: %v, want to wait", err)
	}
	w.next(t.Context())
	if _, known, err := w.size(&forged); known || err != nil {
		t.Fatalf("the made-up owner has a set: %v, %v", known, err)
	}
	w.waits()
	w.next(t.Context())
	w.has(fixedset.Size{Replicas: 3, Spare: 1})
}

// A pod of a workload whose scale counts only some of its pods waits for none of them.
func TestPartialSet(t *testing.T) {
	w := newCustomWorld(t)
	w.reader.cached, w.reader.standing = customkind.Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 3, Partial: true}}, customkind.Current
	request := ipam.Request{Owner: web}
	request.Policy = v1alpha1.ReleaseRetain
	if err := (&fixedSets{customs: w.customSets}).limit(&request); err != nil || request.FixedSet {
		t.Errorf("the pod waits for %d others: %v", request.MaxPods, err)
	}
}
