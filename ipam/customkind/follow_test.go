// SPDX-License-Identifier: Apache-2.0

package customkind

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
)

// things is an API server with a kind Thing, which has one object, until it is gone.
type things struct {
	gone atomic.Bool
	// generation of the object. updates are changes without a new generation. changes are
	// told to the watch.
	generation, updates atomic.Int64
	changes             chan string
	// uncounted: the objects have no generation.
	uncounted bool
	// unscalable: the kind has no scale subresource.
	unscalable bool
	// missing is the answer that there is no such object.
	missing string
	// unscaled: nobody but its controller knows the object's number of replicas.
	unscaled bool
	// deleted: the object is being deleted.
	deleted bool
	// held delays lists and watches until it is closed.
	held chan struct{}
	// discoveries counts the requests for the kinds.
	discoveries atomic.Int64
	// watching gets +1 when a watch begins and -1 when it ends.
	watching chan int
}

// meta is the object's metadata.
func (s *things) meta() string {
	generation := s.generation.Load() + 1
	version := generation + s.updates.Load()
	if s.uncounted {
		generation = 0
	}
	deleted := ""
	if s.deleted {
		deleted = `,"deletionTimestamp":"2026-01-02T03:04:05Z"`
	}
	return fmt.Sprintf(`"metadata":{"namespace":"ns","name":"web","uid":"owner","resourceVersion":"%d","generation":%d%s}`, version, generation, deleted)
}

func (s *things) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/apis/example.org/v1/things" && s.held != nil {
		select {
		case <-s.held:
		case <-r.Context().Done():
			return
		}
	}
	meta := s.meta()
	var answer string
	switch {
	case s.gone.Load() && r.URL.Path == "/apis":
		answer = `{"kind":"APIGroupList","groups":[]}`
	case r.URL.Path == "/api":
		answer = `{"kind":"APIVersions","versions":["v1"]}`
	case s.gone.Load():
		http.NotFound(w, r)
		return
	case r.URL.Path == "/apis/example.org/v1":
		s.discoveries.Add(1)
		scale := `,{"name":"things/scale","group":"autoscaling","version":"v1","kind":"Scale","namespaced":true,"verbs":["get"]}`
		if s.unscalable {
			scale = ""
		}
		answer = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[
			{"name":"things","kind":"Thing","namespaced":true,"verbs":["get","list","watch"]}` + scale + `]}`
	case r.URL.Path == "/apis/example.org/v1/namespaces/ns/things/web" && s.missing != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(s.missing))
		return
	case r.URL.Path == "/apis/example.org/v1/namespaces/ns/things/web":
		answer = `{"apiVersion":"example.org/v1","kind":"Thing",` + meta + `,"spec":{"template":{},"strategy":{"rollingUpdate":{"maxSurge":2,"maxUnavailable":0}}}}`
	case r.URL.Path == "/apis/example.org/v1/namespaces/ns/things/web/scale" && s.unscaled:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`))
		return
	case r.URL.Path == "/apis/example.org/v1/namespaces/ns/things/web/scale":
		answer = `{"apiVersion":"autoscaling/v1","kind":"Scale",` + meta + `,"spec":{"replicas":` + fmt.Sprint(s.generation.Load()+1) + `}}`
	case r.URL.Path == "/apis/example.org/v1/things" && r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			_, _ = fmt.Fprintln(w, `{"type":"ADDED","object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata",`+meta+`}}`)
			_, _ = fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		}
		w.(http.Flusher).Flush()
		s.watching <- +1
		for {
			select {
			case meta := <-s.changes:
				_, _ = fmt.Fprintln(w, `{"type":"MODIFIED","object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata",`+meta+`}}`)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				s.watching <- -1
				return
			}
		}
	case r.URL.Path == "/apis/example.org/v1/things":
		answer = `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"1"},"items":[{` + meta + `}]}`
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(answer))
}

// reader of that API server.
func (s *things) reader(t *testing.T, url string, changed func(kind string, workload metav1.Object)) *Reader {
	t.Helper()
	config := &rest.Config{Host: url}
	c := Config{Changed: changed, Refused: func(_ context.Context, err *ForbiddenError) { t.Error(err) }}
	var err error
	if c.Discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.Objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.Metadata, err = metadata.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return NewReader(c)
}

// A kind is watched for as long as it is needed and served; then the watch and the
// goroutines end, and nothing is remembered.
func TestKindsAreFollowedWhileNeeded(t *testing.T) {
	kind := schema.GroupKind{Group: "example.org", Kind: "Thing"}
	owner := &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "ns", Name: "web", UID: "owner"}
	for _, test := range []struct {
		name   string
		needed bool
		gone   bool
		// prune: by that, else because it is asked for again.
		prune bool
		stays bool
	}{
		{name: "needed and served", needed: true, prune: true, stays: true},
		{name: "no longer needed", prune: true},
		{name: "no longer served, found by looking", needed: true, gone: true, prune: true},
		{name: "no longer served, found by asking", needed: true, gone: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := &things{watching: make(chan int, 8)}
			listener := httptest.NewServer(server)
			ctx, cancel := context.WithCancel(t.Context())
			defer listener.Close()
			defer cancel()
			r := server.reader(t, listener.URL, func(string, metav1.Object) {})
			find := func() bool {
				t.Helper()
				w, _, err := r.Find(ctx, owner, true)
				if err != nil {
					t.Fatal(err)
				}
				return w.Exists
			}
			if !find() {
				t.Fatal("the workload is not found")
			}
			expect := func(want int) {
				t.Helper()
				select {
				case got := <-server.watching:
					if got != want {
						t.Fatalf("a watch began or ended: %d, want %d", got, want)
					}
				case <-time.After(time.Minute):
					t.Fatalf("no watch began or ended, want %d", want)
				}
			}
			expect(+1)
			find() // now that it is followed it is remembered

			server.gone.Store(test.gone)
			if test.prune {
				r.Prune(ctx, func() map[schema.GroupKind]bool { return map[schema.GroupKind]bool{kind: test.needed} })
			} else {
				r.forget(kind) // as the answer to the first request for an object does
				if find() {
					t.Error("a workload of a kind that is not served exists")
				}
			}
			if test.stays {
				if len(r.followed) != 1 || len(r.views) != 1 {
					t.Errorf("%d kinds are followed, %d workloads remembered", len(r.followed), len(r.views))
				}
				cancel()
			}
			expect(-1)
			r.Wait()
			if !test.stays && (len(r.followed) > 0 || len(r.views) > 0 || len(r.kinds) > 0) {
				t.Errorf("%d kinds are followed, %d workloads and %d kinds remembered", len(r.followed), len(r.views), len(r.kinds))
			}
		})
	}
}

// Cached answers without I/O, and says whether the workload is still as it was read.
func TestCached(t *testing.T) {
	owner := &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "ns", Name: "web", UID: "owner"}
	server := &things{watching: make(chan int, 8), changes: make(chan string)}
	listener := httptest.NewServer(server)
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan int64, 8)
	r := server.reader(t, listener.URL, func(_ string, workload metav1.Object) { changed <- workload.GetGeneration() })
	expect := func(want Standing, size fixedset.Size) {
		t.Helper()
		if w, got := r.Cached(owner); got != want || w.Size != size {
			t.Fatalf("standing %d, %+v; want %d, %+v", got, w.Size, want, size)
		}
	}
	find := func() {
		t.Helper()
		if w, _, err := r.Find(ctx, owner, false); err != nil || !w.Exists || !w.Scaled {
			t.Fatalf("found %+v, %v", w, err)
		}
	}
	expect(Unread, fixedset.Size{})
	find()
	// The watch tells of it first when it begins.
	if <-changed != 1 {
		t.Fatal("another generation")
	}
	one, two := fixedset.Size{Replicas: 1, Spare: 2}, fixedset.Size{Replicas: 2, Spare: 2}
	expect(Current, one)
	<-server.watching

	server.generation.Add(1)
	server.changes <- server.meta()
	if <-changed != 2 {
		t.Fatal("another generation")
	}
	expect(Outdated, one)
	find()
	expect(Current, two)

	other := *owner
	other.Name = "other"
	if w, standing := r.Cached(&other); standing != Unread {
		t.Errorf("another workload under its UID: standing %d, %+v", standing, w)
	}
	// It is read before the watch tells: the known object is newer.
	server.generation.Add(1)
	if _, _, err := r.Find(ctx, owner, true); err != nil {
		t.Fatal(err)
	}
	expect(Current, fixedset.Size{Replicas: 3, Spare: 2})
	cancel()
	r.Wait()
	// The kind is now served in another version.
	r.kinds[schema.GroupKind{Group: "example.org", Kind: "Thing"}] = &servedKind{resource: schema.GroupVersionResource{Group: "example.org", Version: "v2", Resource: "things"}}
	expect(Unread, fixedset.Size{})
}

// The cached state of a workload counts only if the watch can tell that it is old.
func TestUnwatched(t *testing.T) {
	owner := &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "ns", Name: "web", UID: "owner"}
	one := Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 1, Spare: 2}}
	for _, test := range []struct {
		name   string
		server *things
		found  Workload
		// before the watch lists the objects, and after.
		before, after Standing
	}{
		{"an ordinary workload", &things{}, one, Unwatched, Current},
		{"its generations are not counted", &things{uncounted: true}, one, Unwatched, Unwatched},
		{"its number of replicas is unknown", &things{unscaled: true}, Workload{Exists: true}, Unread, Unread},
		{"it is being deleted", &things{deleted: true}, Workload{Scaled: true, Size: one.Size}, Unread, Unread},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := test.server
			server.watching, server.held = make(chan int, 8), make(chan struct{})
			listener := httptest.NewServer(server)
			defer listener.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			changed := make(chan struct{}, 8)
			r := server.reader(t, listener.URL, func(string, metav1.Object) { changed <- struct{}{} })
			if got, live, err := r.Find(ctx, owner, false); err != nil || !live || !cmp.Equal(got, test.found) {
				t.Fatalf("found %+v, live %v, %v", got, live, err)
			}
			if _, got := r.Cached(owner); got != test.before {
				t.Errorf("before the watch begins: standing %d, want %d", got, test.before)
			}
			close(server.held)
			<-changed
			if _, got := r.Cached(owner); got != test.after {
				t.Errorf("then: standing %d, want %d", got, test.after)
			}
			cancel()
			r.Wait()
		})
	}
}

// A change is told if it is a new generation, or if changes without one may matter.
func TestChanged(t *testing.T) {
	owner := &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "ns", Name: "web", UID: "owner"}
	for _, test := range []struct {
		name      string
		uncounted bool
		passing   func(*Workload) bool
		updates   int64 // 0: the watch repeats the last object
		told      bool
	}{
		{"an update", false, nil, 1, false},
		{"an update of a workload that does not pass", false, func(*Workload) bool { return false }, 1, false},
		{"an update of a workload that passes", false, func(w *Workload) bool { return w.Exists }, 1, true},
		{"an update without generations", true, nil, 1, true},
		{"no update", false, nil, 0, false},
		{"no update of a workload that passes", false, func(w *Workload) bool { return w.Exists }, 0, false},
		{"no update without generations", true, nil, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := &things{uncounted: test.uncounted, watching: make(chan int, 8), changes: make(chan string)}
			listener := httptest.NewServer(server)
			defer listener.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			changed := make(chan string, 8)
			r := server.reader(t, listener.URL, func(_ string, workload metav1.Object) { changed <- workload.GetResourceVersion() })
			r.config.IsPassing = test.passing
			if w, live, err := r.Find(ctx, owner, false); err != nil || !live || !w.Exists {
				t.Fatalf("found %+v, live %v, %v", w, live, err)
			}
			<-changed
			server.updates.Add(test.updates)
			server.changes <- server.meta()
			want := fmt.Sprint(1 + test.updates)
			if !test.told {
				want = fmt.Sprint(2 + test.updates)
			}
			server.generation.Add(1)
			server.changes <- server.meta()
			if got := <-changed; got != want {
				t.Errorf("version %s is told, want %s", got, want)
			}
			cancel()
			r.Wait()
		})
	}
}

// A workload counts as gone only if the API server says so of the object.
func TestFind(t *testing.T) {
	owner := v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "ns", Name: "web", UID: "owner"}
	other := owner
	other.UID = "other"
	notFound := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"web","kind":"things"}}`
	sized := Workload{Exists: true, Scaled: true, Size: fixedset.Size{Replicas: 1, Spare: 2}}
	for _, test := range []struct {
		name         string
		server       *things
		owner        v1alpha1.Owner
		scalableOnly bool
		want         Workload
		live         bool
		err          error
		// discoveries for two lookups.
		discoveries int64
	}{
		{"there", &things{}, owner, false, sized, true, nil, 1},
		{"another of its name", &things{}, other, false, Workload{}, true, nil, 1},
		{"not there", &things{missing: notFound}, owner, false, Workload{}, true, nil, 1},
		{"no longer served there", &things{missing: "404 page not found"}, owner, false, Workload{}, false, ErrMoved, 2},
		{"without a scale subresource", &things{unscalable: true}, owner, false, Workload{Exists: true}, true, nil, 1},
		{"only with a scale subresource, which it has", &things{}, owner, true, sized, true, nil, 1},
		{"only with a scale subresource, which it has not", &things{unscalable: true}, owner, true, Workload{}, true, nil, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := test.server
			server.watching = make(chan int, 8)
			listener := httptest.NewServer(server)
			defer listener.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := server.reader(t, listener.URL, func(string, metav1.Object) {})
			r.config.ScalableOnly = test.scalableOnly
			for range 2 {
				got, live, err := r.Find(ctx, &test.owner, true)
				if !errors.Is(err, test.err) || live != test.live || !cmp.Equal(got, test.want) {
					t.Errorf("found %+v, live %v, %v; want %+v, %v, %v", got, live, err, test.want, test.live, test.err)
				}
			}
			if got := server.discoveries.Load(); got != test.discoveries {
				t.Errorf("discovery was asked %d times, want %d", got, test.discoveries)
			}
			cancel()
			r.Wait()
		})
	}
}

// A kind may get a scale subresource later.
func TestResolveAsksAgain(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"}
	for _, test := range []struct {
		name        string
		unscalable  bool
		since       time.Duration
		discoveries int64
	}{
		{"scalable", false, askAgain, 1},
		{"not scalable, asked just now", true, 0, 1},
		{"not scalable, asked long ago", true, askAgain, 2},
	} {
		server := &things{unscalable: test.unscalable}
		listener := httptest.NewServer(server)
		defer listener.Close()
		r := server.reader(t, listener.URL, nil)
		for range 2 {
			if got, err := r.resolve(kind); err != nil || got == nil || got.scalable == test.unscalable {
				t.Fatalf("%s: got %+v, %v", test.name, got, err)
			}
			r.kinds[kind.GroupKind()].asked = r.kinds[kind.GroupKind()].asked.Add(-test.since)
		}
		if got := server.discoveries.Load(); got != test.discoveries {
			t.Errorf("%s: discovery was asked %d times, want %d", test.name, got, test.discoveries)
		}
	}
}
