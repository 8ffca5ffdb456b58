// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// What changes for many helps each request that it is for.
func TestHelpsMany(t *testing.T) {
	i := open(t, newServer(), testPool("web", "10.0.70.2"))
	shop := request("web-0", "a", "")
	for _, test := range []struct {
		change Change
		want   bool
	}{
		{Change{Everything: true}, true}, {Change{Namespace: "shop"}, true}, {Change{Namespace: "other"}, false},
	} {
		if got := i.Helps(test.change)(&shop, LackAddress); got != test.want {
			t.Errorf("%+v helps: %t", test.change, got)
		}
	}
}

// Labels of a namespace that no pool asks for change nothing.
func TestAreAdmittedAlike(t *testing.T) {
	if !new(IPAM).AreAdmittedAlike(labels.Set{}, labels.Set{"team": "a"}) {
		t.Error("before pools are known, labels make a difference")
	}
	only := testPool("only", "10.0.70.2")
	only.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	i := open(t, newServer(), testPool("all", "10.0.70.9"), only)
	for _, test := range []struct {
		before, after labels.Set
		want          bool
	}{
		{labels.Set{}, labels.Set{"other": "a"}, true}, {labels.Set{"team": "a"}, labels.Set{"team": "a", "other": "b"}, true},
		{labels.Set{}, labels.Set{"team": "a"}, false}, {labels.Set{"team": "a"}, labels.Set{"team": "b"}, false},
	} {
		if got := i.AreAdmittedAlike(test.before, test.after); got != test.want {
			t.Errorf("%v and %v are admitted alike: %t", test.before, test.after, got)
		}
	}
}

// That a full pool serves more nodes helps a pod that may preempt one there whose end frees an
// address for it.
func TestHelpsByPreemption(t *testing.T) {
	kept := request("kept", "kept", v1alpha1.ReleaseRetain)
	kept.Owner.Name, kept.Owner.UID = "db", "db"
	low := request("low", "low", v1alpha1.ReleasePodDeleted)
	setup := func(t *testing.T, change func(pool *v1alpha1.IPPool)) *IPAM {
		pool, other := testPool("web", "10.0.70.2-10.0.70.3"), testPool("other", "10.0.70.9")
		pool.Spec.Cooldown = &metav1.Duration{}
		if change != nil {
			change(pool)
		}
		i := open(t, newServer(), pool, other)
		low.Pools, kept.Pools = []string{"web"}, []string{"web"}
		for _, r := range []Request{low, kept, request("elsewhere", "elsewhere", v1alpha1.ReleasePodDeleted, "other")} {
			commit(t, i, reserve(t, i, r))
		}
		return i
	}
	wants := func(change func(*Request)) Request {
		r := request("high", "high", v1alpha1.ReleasePodDeleted, "web")
		r.MayPreempt, r.Priority = true, 10
		if change != nil {
			change(&r)
		}
		return r
	}
	for name, test := range map[string]struct {
		pool   func(*v1alpha1.IPPool)
		victim Victim
		wants  Request
		want   bool
	}{
		"one of lower priority":     {victim: Victim{UID: "low", Priority: 9}, wants: wants(nil), want: true},
		"one of the same":           {victim: Victim{UID: "low", Priority: 10}, wants: wants(nil)},
		"a pod that preempts none":  {victim: Victim{UID: "low"}, wants: wants(func(r *Request) { r.MayPreempt = false })},
		"one that retains it":       {victim: Victim{UID: "kept"}, wants: wants(nil)},
		"one of another pool":       {victim: Victim{UID: "elsewhere"}, wants: wants(nil)},
		"one that does not hold it": {victim: Victim{UID: "former"}, wants: wants(nil)},
		"an address that cools down": {
			pool: func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown.Duration = time.Minute }, victim: Victim{UID: "low"}, wants: wants(nil),
		},
		"an address that is not asked for": {
			victim: Victim{UID: "low"}, wants: wants(func(r *Request) { r.Parts = []Part{exactly("10.0.70.3")} }),
		},
		"one of a namespace at its cap": {
			pool: func(pool *v1alpha1.IPPool) { pool.Spec.MaxPerNamespace = 2 }, victim: Victim{UID: "low"}, wants: wants(nil), want: true,
		},
		"one of another namespace than that at its cap": {
			pool:   func(pool *v1alpha1.IPPool) { pool.Spec.MaxPerNamespace = 2 },
			victim: Victim{UID: "low"}, wants: wants(func(r *Request) { r.Namespace, r.Owner.Namespace = "other", "other" }), want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := setup(t, test.pool)
			test.victim.Namespace = "shop"
			if got := i.Helps(Change{Pool: "web", Victims: []Victim{test.victim}})(&test.wants, LackAddress); got != test.want {
				t.Errorf("it helps: %t", got)
			}
		})
	}
}
