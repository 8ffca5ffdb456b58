// SPDX-License-Identifier: Apache-2.0

package customkind

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

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
	// generation of the object, and what the watch is told of it.
	generation atomic.Int64
	changes    chan struct{}
	// watching gets +1 when a watch begins and -1 when it ends.
	watching chan int
}

func (s *things) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	meta := fmt.Sprintf(`"metadata":{"namespace":"ns","name":"web","uid":"owner","resourceVersion":"%[1]d","generation":%[1]d}`, s.generation.Load()+1)
	answer := ""
	switch {
	case s.gone.Load() && r.URL.Path == "/apis":
		answer = `{"kind":"APIGroupList","groups":[]}`
	case r.URL.Path == "/api":
		answer = `{"kind":"APIVersions","versions":["v1"]}`
	case s.gone.Load():
		http.NotFound(w, r)
		return
	case r.URL.Path == "/apis/example.org/v1":
		answer = `{"kind":"APIResourceList","groupVersion":"example.org/v1","resources":[
			{"name":"things","kind":"Thing","namespaced":true,"verbs":["get","list","watch"]},
			{"name":"things/scale","group":"autoscaling","version":"v1","kind":"Scale","namespaced":true,"verbs":["get"]}]}`
	case r.URL.Path == "/apis/example.org/v1/namespaces/ns/things/web":
		answer = `{"apiVersion":"example.org/v1","kind":"Thing",` + meta + `,"spec":{"strategy":{"rollingUpdate":{"maxSurge":2,"maxUnavailable":0}}}}`
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
			case <-s.changes:
				meta := fmt.Sprintf(`"metadata":{"namespace":"ns","name":"web","uid":"owner","resourceVersion":"%[1]d","generation":%[1]d}`, s.generation.Load()+1)
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

// What was read is said without I/O, and whether it is what the workload is now.
func TestCached(t *testing.T) {
	owner := &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Namespace: "ns", Name: "web", UID: "owner"}
	server := &things{watching: make(chan int, 8), changes: make(chan struct{})}
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
	server.changes <- struct{}{}
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
	// It is read before the watch tells: what is known is newer.
	server.generation.Add(1)
	if _, _, err := r.Find(ctx, owner, true); err != nil {
		t.Fatal(err)
	}
	expect(Current, fixedset.Size{Replicas: 3, Spare: 2})
	cancel()
	r.Wait()
}
