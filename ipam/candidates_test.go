// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// The one pool of a pod's addresses is told, where there is one.
func TestOnlyPool(t *testing.T) {
	six := testPool("six", "2001:db8::2-2001:db8::9")
	six.Spec.Subnet, six.Spec.Gateway = "2001:db8::/64", ""
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"), testPool("db", "10.0.70.20-10.0.70.29"), six)
	kept := request("web-0", "a", v1alpha1.ReleaseRetain)
	kept.Pools = []string{"db"}
	commit(t, i, reserve(t, i, kept))
	s.Retain("10.0.70.20")
	kept.UID, kept.Pools = "b", nil
	of := func(change func(*Request)) Request {
		r := request("web-1", "c", "")
		change(&r)
		return r
	}
	for name, test := range map[string]struct {
		request Request
		want    string
		// within are positions at which there are the addresses that are kept for it, and without such
		// that have none.
		within, without []int
	}{
		"any pool":      {request: of(func(*Request) {}), within: []int{0}},
		"a named pool":  {request: of(func(r *Request) { r.Pools = []string{"db"} }), want: "db", within: []int{0}},
		"one of two":    {request: of(func(r *Request) { r.Pools = []string{"db", "web"} }), within: []int{0}},
		"a family":      {request: of(func(r *Request) { r.Parts = []Part{{Family: v1alpha1.IPv6}} }), want: "six", within: []int{0}},
		"two of a pool": {request: of(func(r *Request) { r.Pools, r.Parts = []string{"db"}, make([]Part, 2) }), want: "db", within: []int{0}},
		"both families": {request: of(func(r *Request) {
			r.Pools, r.Parts = []string{"db", "six"}, []Part{{Family: v1alpha1.IPv4}, {Family: v1alpha1.IPv6}}
		}), within: []int{0}},
		"a retained address": {request: kept, want: "db", within: []int{position(t, i, "web"), position(t, i, "db")}, without: []int{position(t, i, "web"), position(t, i, "six")}},
	} {
		c, err := i.Candidates(test.request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := c.OnlyPool(); got != test.want {
			t.Errorf("%s: the only pool is %q, want %q", name, got, test.want)
		}
		if !c.KeptWithin(pools.NewReach(test.within...)) {
			t.Errorf("%s: no address is within %v", name, test.within)
		}
		if test.without != nil && c.KeptWithin(pools.NewReach(test.without...)) {
			t.Errorf("%s: an address is within %v", name, test.without)
		}
	}
}

func position(t *testing.T, i *IPAM, pool string) int {
	t.Helper()
	at, ok := i.state.Load().snapshot.Index(pool)
	if !ok {
		t.Fatalf("there is no pool %s", pool)
	}
	return at
}

// A namespace at its quota preallocates no more, and the address that was one too many is free
// again.
func TestPreallocateWithinQuota(t *testing.T) {
	i := open(t, newServer(), testPool("web", "10.0.70.2-10.0.70.9"))
	owner := request("", "", v1alpha1.ReleaseRetain)
	owner.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "web"}
	owner.Quota = new(int64)
	*owner.Quota = 2
	confirmed := 0
	confirm := func(context.Context) error { confirmed++; return nil }
	made, err := i.Preallocate(t.Context(), owner, 3, confirm)
	var shortage *ShortageError
	if made != 2 || confirmed != 2 || !errors.As(err, &shortage) || shortage.Cause != AtQuota {
		t.Fatalf("%d were made and %d confirmed, want 2: %v", made, confirmed, err)
	}
	if want := []string{`a ResourceQuota allows namespace "shop" 2 addresses, and it has 2`}; !slices.Equal(shortage.Reasons, want) {
		t.Errorf("the reasons are %q, want %q", shortage.Reasons, want)
	}
	if free := i.state.Load().view.Free(0); free != 6 {
		t.Errorf("%d are free, want 6", free)
	}
	*owner.Quota = 3
	if made, err := i.Preallocate(t.Context(), owner, 1, confirm); made != 1 || err != nil {
		t.Errorf("with a quota of 3, %d were made: %v", made, err)
	}
}

// A request with a claim has its addresses from the pools of the claim; from none, while there is
// no claim.
func TestSourcesOfClaim(t *testing.T) {
	claim := &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{Size: 2, Pools: []string{"db"}}}
	claim.Namespace, claim.Name, claim.UID = "shop", "web", "claim"
	i := openWith(t, newServer(), &poolWatch{pools: []*v1alpha1.IPPool{testPool("db", "10.0.70.2"), testPool("web", "10.0.70.3")}, claims: []*v1alpha1.IPClaim{claim}})
	for name, want := range map[string][]int{"": {0, 1}, "web": {position(t, i, "db")}, "none": nil} {
		r := request("web-0", "a", "")
		r.Claim = name
		if got := i.Sources(&r, i.state.Load().snapshot).Positions(); !slices.Equal(got, want) {
			t.Errorf("with claim %q the pools are %v, want %v", name, got, want)
		}
	}
}
