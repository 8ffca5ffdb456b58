// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func namespaceOf(name string, uid types.UID, made int64) *v1.Namespace {
	return &v1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, CreationTimestamp: metav1.Unix(made, 0)},
	}
}

// Addresses kept for an owner in a namespace are freed when that namespace is gone, by
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
		fails      error
		want       string
		wantsAgain bool
	}{
		{"there", nil, v1alpha1.ReleaseNever, "before", nil, before, before, nil, "", false},
		{"there, the cache is behind", nil, v1alpha1.ReleaseNever, "now", nil, before, now, nil, "", false},
		{"deleted", nil, v1alpha1.ReleaseNever, "before", nil, nil, nil, nil, "free", false},
		{"deleted, a claim's", claimed, v1alpha1.ReleaseNever, "before", nil, nil, nil, nil, "free", false},
		{"made again", nil, v1alpha1.ReleaseNever, "before", nil, now, now, nil, "free", false},
		{"made again, not known yet", nil, v1alpha1.ReleaseNever, "before", nil, before, now, nil, "", false},
		{"made again, a claim's", claimed, v1alpha1.ReleaseNever, "before", nil, now, now, nil, "free", false},
		{"nobody can say", nil, v1alpha1.ReleaseNever, "before", nil, nil, nil, errUnreachable, "", true},
		{"without a UID", nil, v1alpha1.ReleaseNever, "", nil, before, before, nil, "", false},
		{"without a UID, deleted", nil, v1alpha1.ReleaseNever, "", nil, nil, nil, nil, "free", false},
		{"without a UID, made again", nil, v1alpha1.ReleaseNever, "", nil, now, now, nil, "free", false},
		{"waits for its owner and its namespace", awaited, v1alpha1.ReleaseNever, "", nil, nil, nil, nil, "", false},
		{"waits for its owner, its namespace is there", awaited, v1alpha1.ReleaseNever, "", nil, now, now, nil, "of now", false},
		{"waits for its owner, made again", awaited, v1alpha1.ReleaseNever, "before", nil, now, now, nil, "free", false},
		{"restored, and kept yet", nil, v1alpha1.ReleaseNever, "before", later, nil, nil, nil, "", false},
		{"restored, and kept yet, made again", nil, v1alpha1.ReleaseNever, "before", later, now, now, nil, "", false},
		{"restored, and no longer kept", nil, v1alpha1.ReleaseNever, "before", past, now, now, nil, "of now", false},
		{"restored, and no longer kept, deleted", nil, v1alpha1.ReleaseNever, "before", past, nil, nil, nil, "free", false},
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
			objects := []runtime.Object{ip, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "d", UID: "claim"}, Spec: v1alpha1.IPClaimSpec{Size: 5}}}
			if test.live != nil {
				objects = append(objects, test.live)
			}
			w := newFixture(t, objects...)
			w.cache(objects[:2]...)
			if test.fails != nil {
				w.failsReads(test.fails)
			}
			if test.known != nil {
				w.cache(test.known)
			}
			err := w.look(ip.Name)
			wrote := ""
			switch now := w.berth.IP(ip.Name); {
			case now == nil:
				wrote = "free"
			case now.Spec.ReleasedAt != nil:
				wrote = "rest"
			case len(w.berth.Writes()) > 0:
				wrote = "of " + string(now.Spec.Owner.NamespaceUID)
			}
			if wrote != test.want || (err != nil) != test.wantsAgain {
				t.Errorf("it wrote %q, error %v; want %q", wrote, err, test.want)
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
