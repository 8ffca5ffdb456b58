// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func namespaceOf(name string, uid types.UID, made int64) *v1.Namespace {
	return &v1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, CreationTimestamp: metav1.Unix(made, 0)},
	}
}

// tenants is an API server that has one namespace, or none, and nothing else, and notes
// what is written.
type tenants struct {
	live   *v1.Namespace
	wrote  string
	status int
}

func (s *tenants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPatch:
		var patch []struct {
			Path  string
			Value json.RawMessage
		}
		ip := v1alpha1.FloatingIP{TypeMeta: metav1.TypeMeta{APIVersion: "berth.dev/v1alpha1", Kind: "FloatingIP"}}
		_ = json.NewDecoder(r.Body).Decode(&patch)
		for _, operation := range patch {
			if operation.Path == "/spec" {
				_ = json.Unmarshal(operation.Value, &ip.Spec)
			}
		}
		switch {
		case ip.Spec.ReleasedAt != nil:
			s.wrote = "rest"
		case ip.Spec.Owner != nil:
			s.wrote = "of " + string(ip.Spec.Owner.NamespaceUID)
		}
		_ = json.NewEncoder(w).Encode(ip)
	case r.Method == http.MethodDelete:
		s.wrote = "free"
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusSuccess})
	case s.status != 0:
		w.WriteHeader(s.status)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Code: int32(s.status)})
	case s.live != nil && strings.HasSuffix(r.URL.Path, "/namespaces/"+s.live.Name):
		_ = json.NewEncoder(w).Encode(s.live)
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	}
}

// What is kept for an owner in a namespace is freed when that namespace is gone, by
// every policy, and stays in all other cases.
func TestNamespaceGone(t *testing.T) {
	const recorded = 100
	before, now := namespaceOf("shop", "before", recorded-1), namespaceOf("shop", "now", recorded+1)
	past, later := &metav1.Time{Time: time.Unix(recorded, 0)}, &metav1.Time{Time: time.Now().Add(time.Hour)}
	awaited := &v1alpha1.Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", UID: v1alpha1.NilUID}
	claimed := &v1alpha1.Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", UID: "claim"}
	for _, test := range []struct {
		name       string
		owner      *v1alpha1.Owner
		policy     v1alpha1.ReleasePolicy
		uid        types.UID
		until      *metav1.Time
		known      *v1.Namespace // to the cache
		live       *v1.Namespace
		status     int
		want       string
		wantsAgain bool
	}{
		{"there", nil, v1alpha1.ReleaseNever, "before", nil, before, before, 0, "", false},
		{"there, the cache is behind", nil, v1alpha1.ReleaseNever, "now", nil, before, now, 0, "", false},
		{"deleted", nil, v1alpha1.ReleaseNever, "before", nil, nil, nil, 0, "free", false},
		{"deleted, a claim's", claimed, v1alpha1.ReleaseNever, "before", nil, nil, nil, 0, "free", false},
		{"made again", nil, v1alpha1.ReleaseNever, "before", nil, now, now, 0, "free", false},
		{"made again, not known yet", nil, v1alpha1.ReleaseNever, "before", nil, before, now, 0, "", false},
		{"made again, a claim's", claimed, v1alpha1.ReleaseNever, "before", nil, now, now, 0, "free", false},
		{"nobody can say", nil, v1alpha1.ReleaseNever, "before", nil, nil, nil, http.StatusInternalServerError, "", true},
		{"of an older version", nil, v1alpha1.ReleaseNever, "", nil, before, before, 0, "", false},
		{"of an older version, deleted", nil, v1alpha1.ReleaseNever, "", nil, nil, nil, 0, "free", false},
		{"of an older version, made again", nil, v1alpha1.ReleaseNever, "", nil, now, now, 0, "free", false},
		{"waits for its owner and its namespace", awaited, v1alpha1.ReleaseNever, "", nil, nil, nil, 0, "", false},
		{"waits for its owner, its namespace is there", awaited, v1alpha1.ReleaseNever, "", nil, now, now, 0, "of now", false},
		{"waits for its owner, made again", awaited, v1alpha1.ReleaseNever, "before", nil, now, now, 0, "free", false},
		{"restored, and kept yet", nil, v1alpha1.ReleaseNever, "before", later, nil, nil, 0, "", false},
		{"restored, and kept yet, made again", nil, v1alpha1.ReleaseNever, "before", later, now, now, 0, "", false},
		{"restored, and no longer kept", nil, v1alpha1.ReleaseNever, "before", past, now, now, 0, "of now", false},
		{"restored, and no longer kept, deleted", nil, v1alpha1.ReleaseNever, "before", past, nil, nil, 0, "free", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			owner := shared("apps/v1", "Deployment")
			if test.owner != nil {
				*owner = *test.owner
			}
			owner.Namespace, owner.Name, owner.NamespaceUID = "shop", "d", test.uid
			ip := record("10.0.70.2", owner, recorded, "")
			ip.Spec.Owner.UID = owner.UID
			ip.Spec.ReleasePolicy, ip.Spec.KeepUntil = test.policy, test.until
			server := &tenants{live: test.live, status: test.status}
			r, factory := cached(t, server.ServeHTTP, []*v1alpha1.FloatingIP{ip}, &v1alpha1.IPClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "d", UID: "claim"}, Spec: v1alpha1.IPClaimSpec{Size: 5},
			})
			if test.known != nil {
				if err := factory.Core().V1().Namespaces().Informer().GetIndexer().Add(test.known); err != nil {
					t.Fatal(err)
				}
			}
			r.addressChanged(ip, false)
			_, err := r.reconcile(t.Context(), ip.Name, false)
			if server.wrote != test.want || (err != nil) != test.wantsAgain {
				t.Errorf("it wrote %q, error %v; want %q", server.wrote, err, test.want)
			}
		})
	}
}

// An address goes to rest, and not to a stranger at once.
func TestNamespaceGoneCoolsDown(t *testing.T) {
	spec := &v1alpha1.FloatingIPSpec{Owner: shared("apps/v1", "Deployment"), ReleasePolicy: v1alpha1.ReleaseNever, LastPod: "d-x"}
	if v := decide(spec, situation{namespaceGone: true, cooldown: time.Hour}); v.action != cool {
		t.Errorf("it is %v", v)
	}
	spec.Reserved = true
	if v := decide(spec, situation{namespaceGone: true, cooldown: time.Hour}); v.action != keep {
		t.Errorf("a reserved one is %v", v)
	}
}
