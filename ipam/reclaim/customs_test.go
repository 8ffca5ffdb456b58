// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// things is an API server with a kind Thing, which has one object, until it is gone.
type things struct {
	gone atomic.Bool
	// watching gets +1 when a watch begins and -1 when it ends.
	watching chan int
}

func (s *things) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const meta = `"metadata":{"namespace":"ns","name":"web","uid":"owner","resourceVersion":"1","generation":1}`
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
		answer = `{"apiVersion":"example.org/v1","kind":"Thing",` + meta + `}`
	case r.URL.Path == "/apis/example.org/v1/namespaces/ns/things/web/scale":
		answer = `{"apiVersion":"autoscaling/v1","kind":"Scale",` + meta + `,"spec":{"replicas":1}}`
	case r.URL.Path == "/apis/example.org/v1/things" && r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			_, _ = fmt.Fprintln(w, `{"type":"ADDED","object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata",`+meta+`}}`)
			_, _ = fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
		}
		w.(http.Flusher).Flush()
		s.watching <- +1
		<-r.Context().Done()
		s.watching <- -1
		return
	case r.URL.Path == "/apis/example.org/v1/things":
		answer = `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"1"},"items":[{` + meta + `}]}`
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(answer))
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
			config := &rest.Config{Host: listener.URL}
			c := &customs{
				changed: func(string, string, string) {}, refused: func(_ context.Context, err *forbiddenError) { t.Error(err) },
				kinds: map[schema.GroupKind]*customKind{}, views: map[types.UID]view{}, followed: map[schema.GroupVersionResource]*followed{},
			}
			var err error
			if c.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
				t.Fatal(err)
			}
			if c.objects, err = dynamic.NewForConfig(config); err != nil {
				t.Fatal(err)
			}
			if c.metadata, err = metadata.NewForConfig(config); err != nil {
				t.Fatal(err)
			}
			find := func() bool {
				t.Helper()
				w, _, _, err := c.find(ctx, owner, true)
				if err != nil {
					t.Fatal(err)
				}
				return w.exists
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
				c.prune(ctx, func() map[schema.GroupKind]bool { return map[schema.GroupKind]bool{kind: test.needed} })
			} else {
				c.forget(kind) // as the answer to the first request for an object does
				if find() {
					t.Error("a workload of a kind that is not served exists")
				}
			}
			if test.stays {
				if len(c.followed) != 1 || len(c.views) != 1 {
					t.Errorf("%d kinds are followed, %d workloads remembered", len(c.followed), len(c.views))
				}
				cancel()
			}
			expect(-1)
			c.running.Wait()
			if !test.stays && (len(c.followed) > 0 || len(c.views) > 0 || len(c.kinds) > 0) {
				t.Errorf("%d kinds are followed, %d workloads and %d kinds remembered", len(c.followed), len(c.views), len(c.kinds))
			}
		})
	}
}

// Kinds that nobody has to look up are not needed.
func TestNeededKinds(t *testing.T) {
	thing := shared("example.org/v1", "Thing")
	never := record("10.0.70.1", shared("example.com/v1", "Other"), 1, "")
	never.Spec.ReleasePolicy = v1alpha1.ReleaseNever
	ips := []*v1alpha1.FloatingIP{never, record("10.0.70.2", thing, 1, ""), record("10.0.70.3", shared("apps/v1", "Deployment"), 1, ""), record("10.0.70.4", claim, 1, "")}
	for _, ip := range ips[1:] {
		ip.Spec.ReleasePolicy = v1alpha1.ReleaseRetain
	}
	r, _ := cached(t, nobody(t), ips)
	if got := r.neededKinds(); len(got) != 1 || !got[schema.GroupKind{Group: "example.org", Kind: "Thing"}] {
		t.Errorf("needed are %v", got)
	}
}
