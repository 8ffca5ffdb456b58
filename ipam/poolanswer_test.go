// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// A pool says whether it has an address for a part of the request, or why it never will.
func TestPoolAnswer(t *testing.T) {
	const web = `pool "web" (10.0.70.2-10.0.70.3)`
	closed := testPool("web", "10.0.70.2-10.0.70.3")
	closed.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	cloud := testPool("web", "10.0.70.2-10.0.70.3")
	cloud.Spec.ExternalAssigner = true
	for _, test := range []struct {
		name string
		pool *v1alpha1.IPPool
		edit func(*Request)
		kept bool // 10.0.70.20 of another pool is retained for the pod
		want PoolAnswer
	}{
		{name: "it has some", edit: func(*Request) {}, want: PoolAnswer{Named: true, Serves: true, Has: true, Reason: web + " has 2 free"}},
		{
			name: "it has the listed address", edit: func(r *Request) { r.Parts = []Part{exactly("10.0.70.3")} },
			want: PoolAnswer{Named: true, Serves: true, Has: true, Reason: web + " has 2 free"},
		},
		{
			name: "it does not contain the listed address", edit: func(r *Request) { r.Parts = []Part{exactly("10.0.70.20")} },
			want: PoolAnswer{Named: true, Reason: web + " has none of 10.0.70.20"},
		},
		{
			name: "it has an address for one part", edit: func(r *Request) { r.Parts = []Part{exactly("10.0.70.20"), {}} },
			want: PoolAnswer{Named: true, Serves: true, Has: true, Reason: web + " has 2 free"},
		},
		{
			name: "it does not admit the namespace", pool: closed, edit: func(*Request) {},
			want: PoolAnswer{Named: true, Reason: web + ` does not admit namespace "shop"`},
		},
		{
			name: "it is for pods", pool: cloud, edit: func(r *Request) { r.OfService = true },
			want: PoolAnswer{Named: true, Reason: web + " has addresses for pods only (spec.externalAssigner)"},
		},
		{
			name: "another pool has the pod's own address", edit: func(*Request) {}, kept: true,
			want: PoolAnswer{Named: true, Reason: web + " does not have the address that is retained for the pod"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.pool == nil {
				test.pool = testPool("web", "10.0.70.2-10.0.70.3")
			}
			i := open(t, newServer(), test.pool, testPool("other", "10.0.70.20-10.0.70.21"))
			r := request("web-0", "a", v1alpha1.ReleaseRetain)
			if test.kept {
				before := request("web-0", "before", v1alpha1.ReleaseRetain, "other")
				commit(t, i, reserve(t, i, before))
			}
			test.edit(&r)
			c, err := i.Candidates(r)
			if err != nil {
				t.Fatal(err)
			}
			got := c.PerPool()[position(t, i, test.pool.Name)]
			if got.Pool.Name != test.pool.Name {
				t.Errorf("the answer is of pool %s", got.Pool.Name)
			}
			if got.Pool = nil; got != test.want {
				t.Errorf("the pool answers\n%+v, want\n%+v", got, test.want)
			}
			if !test.kept {
				return
			}
			want := PoolAnswer{Named: true, Serves: true, Has: true, Reason: `pool "other" (10.0.70.20-10.0.70.21) has 10.0.70.20, which is retained for the pod`}
			other := c.PerPool()[position(t, i, "other")]
			if other.Pool = nil; other != want {
				t.Errorf("the pool with the retained address answers\n%+v, want\n%+v", other, want)
			}
		})
	}
}

// Whether routers lead an address to a node, and whether the node lacks a BGP session for it,
// depends on the pools that the pod may use, or that have an address of its own.
func TestRoutedPools(t *testing.T) {
	routed := testPool("routed", "10.0.70.20-10.0.70.29")
	routed.Spec.Gateway, routed.Spec.Mode, routed.Spec.RequireSession = "", v1alpha1.NetworkRouted, true
	for _, test := range []struct {
		name  string
		named string
		kept  bool // an address of the routed pool
		want  bool
	}{
		{"the pod may use it", "", false, true},
		{"it names it", "routed", false, true},
		{"it names another", "web", false, false},
		{"it names another, and gives up an address of it", "web", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := open(t, newServer(), testPool("web", "10.0.70.2-10.0.70.9"), routed)
			if test.kept {
				commit(t, i, reserve(t, i, request("web-0", "before", v1alpha1.ReleaseRetain, "routed")))
			}
			r := request("web-0", "a", v1alpha1.ReleaseRetain)
			if test.named != "" {
				r.Pools = []string{test.named}
			}
			c, err := i.Candidates(r)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.HasRouted(); got != test.want {
				t.Errorf("HasRouted() = %t, want %t", got, test.want)
			}
			rejection := c.WithoutSession(everywhere(c))
			if (rejection != nil) != test.want {
				t.Fatalf("WithoutSession() = %+v, want a rejection %t", rejection, test.want)
			}
			if rejection != nil && (rejection.Reason != ReasonNoSession+"routed requires" || !rejection.Unresolvable || rejection.Lacks != LackAgent) {
				t.Errorf("WithoutSession() = %+v", rejection)
			}
			if rejection := c.WithoutSession(pools.NewReach(position(t, i, "web"))); rejection != nil {
				t.Errorf("of a node without the routed pool: WithoutSession() = %+v", rejection)
			}
		})
	}
}

// A node is within reach of the pools whose nodeSubnets or nodeSelector it has.
func TestPoolsOf(t *testing.T) {
	rack := testPool("rack", "10.0.70.20-10.0.70.29")
	rack.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
	i := open(t, newServer(), testPool("web", "10.0.70.2-10.0.70.9"), rack)
	for rack, want := range map[string][]string{"1": {"rack", "web"}, "2": {"web"}} {
		got := i.PoolsOf(Node{Name: "node1", Labels: map[string]string{"rack": rack}})
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("a node of rack %s has the pools %q, want %q", rack, got, want)
		}
	}
	if got := (&IPAM{}).PoolsOf(node); got != nil {
		t.Errorf("before the pools are known: %q", got)
	}
}
