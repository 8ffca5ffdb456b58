// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/view"
)

// nobody is an API server that must not be asked.
func nobody(t testing.TB) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked the API server: %s %s", r.Method, r.URL) }
}

// cached returns a Reclaimer with these objects in its caches, whose informers do
// not run, and its factory of informers.
func cached(t testing.TB, server http.HandlerFunc, ips []*v1alpha1.FloatingIP, claims ...*v1alpha1.IPClaim) (*Reclaimer, informers.SharedInformerFactory) {
	t.Helper()
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: listener.URL})
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.NewForConfig(&rest.Config{Host: listener.URL})
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(Slim))
	seen, err := view.New(api, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Kube: kube, Berth: api, View: seen, Factory: factory})
	if err != nil {
		t.Fatal(err)
	}
	if err := factory.Core().V1().Namespaces().Informer().GetIndexer().Add(namespaceOf("ns", "now", 0)); err != nil {
		t.Fatal(err)
	}
	for _, claim := range claims {
		if err := seen.IPClaims.GetIndexer().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
	for _, ip := range ips {
		if err := seen.FloatingIPs.GetIndexer().Add(ip); err != nil {
			t.Fatal(err)
		}
	}
	return r, factory
}

// recorder is an API server that answers reads with a status, writes with what was
// written, and notes the writes.
type recorder struct {
	status int
	writes []string
}

func (s *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		reason := metav1.StatusReasonInternalError
		if s.status == http.StatusNotFound {
			reason = metav1.StatusReasonNotFound
		}
		w.WriteHeader(s.status)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Code: int32(s.status), Reason: reason})
		return
	}
	s.writes = append(s.writes, r.Method+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
	_ = json.NewEncoder(w).Encode(v1alpha1.FloatingIP{TypeMeta: metav1.TypeMeta{APIVersion: "berth.dev/v1alpha1", Kind: "FloatingIP"}})
}

// While nobody knows what a workload wants its addresses are kept, but no longer than
// they may be.
func TestRetainForWhileTheWorkloadIsUnknown(t *testing.T) {
	const name = "10.0.70.2"
	for _, owner := range []*v1alpha1.Owner{shared("apps/v1", "Deployment"), set("web-0"), shared("batch/v1", "Job")} {
		for _, test := range []struct {
			name   string
			held   bool
			age    time.Duration
			limit  time.Duration
			want   []string
			unsure bool // it has to be looked at again
		}{
			{"retained for long enough", false, 2 * time.Hour, time.Hour, []string{"DELETE " + name}, false},
			{"retained for less", false, time.Minute, time.Hour, nil, true},
			{"retained without a limit", false, 2 * time.Hour, 0, nil, true},
			{"its pod is gone, and its time begins", true, 2 * time.Hour, time.Hour, []string{"PATCH " + name}, false},
			{"its pod is gone, and there is no limit", true, 2 * time.Hour, 0, nil, true},
		} {
			t.Run(owner.Kind+"/"+test.name, func(t *testing.T) {
				pod := ""
				if test.held {
					pod = "web-0"
				}
				owner.Namespace = "ns"
				ip := record(name, owner, 1, pod)
				since := metav1.NewTime(time.Now().Add(-test.age))
				ip.Spec.ReleasePolicy, ip.Spec.LastPod, ip.Spec.Since = v1alpha1.ReleaseRetain, "web-0", &since
				if test.limit > 0 {
					ip.Spec.RetainFor = &metav1.Duration{Duration: test.limit}
				}
				server := &recorder{status: http.StatusInternalServerError}
				r, _ := cached(t, server.ServeHTTP, []*v1alpha1.FloatingIP{ip})
				if test.held {
					r.deleted.Add(ip.Spec.Pod.UID, true)
				}
				r.addressChanged(ip, false)
				_, err := r.reconcile(t.Context(), name, false)
				if !slices.Equal(server.writes, test.want) || (err != nil) != test.unsure {
					t.Errorf("wrote %v, error %v; want %v", server.writes, err, test.want)
				}
			})
		}
	}
}

// An address whose recorded owner is a pod is kept while that pod is there, also
// where it is not the pod that had it, as an author can write.
func TestAnotherPodAsOwner(t *testing.T) {
	for _, named := range []string{"driver", ""} {
		for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleasePodDeleted} {
			t.Run(fmt.Sprintf("%q %s", named, policy), func(t *testing.T) {
				ip := record("10.0.70.2", &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: named}, 1, "")
				ip.Spec.ReleasePolicy, ip.Spec.LastPod = policy, "executor"
				server := &recorder{status: http.StatusNotFound}
				r, _ := cached(t, server.ServeHTTP, []*v1alpha1.FloatingIP{ip})
				r.addressChanged(ip, false)
				if _, err := r.reconcile(t.Context(), ip.Name, false); err != nil {
					t.Fatal(err)
				}
				if want := []string{"DELETE " + ip.Name}; !slices.Equal(server.writes, want) {
					t.Errorf("wrote %v, want %v", server.writes, want)
				}
				if named != "" && len(r.indexed(byPodName, podKey("ns", named))) != 1 {
					t.Error("the end of the pod does not lead to the address")
				}
			})
		}
	}
}

// Kinds that nobody has to look up are not needed. A ReplicationController is read as if
// it were of a custom kind.
func TestNeededKinds(t *testing.T) {
	never := record("10.0.70.1", shared("example.com/v1", "Other"), 1, "")
	never.Spec.ReleasePolicy = v1alpha1.ReleaseNever
	ips := []*v1alpha1.FloatingIP{never, record("10.0.70.2", shared("example.org/v1", "Thing"), 1, ""), record("10.0.70.3", shared("v1", "ReplicationController"), 1, "")}
	for _, ip := range ips[1:] {
		ip.Spec.ReleasePolicy = v1alpha1.ReleaseRetain
	}
	r, _ := cached(t, nobody(t), ips)
	want := map[schema.GroupKind]bool{{Group: "example.org", Kind: "Thing"}: true, {Kind: "ReplicationController"}: true}
	if got := r.neededKinds(); !maps.Equal(got, want) {
		t.Errorf("needed are %v, want %v", got, want)
	}
}
