// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// listed are the objects of a cluster in which some pods wait.
func listed() ([]*v1alpha1.IPPool, []*v1alpha1.IPClaim, []*v1alpha1.FloatingIP) {
	disabled := testPool("off", "10.0.70.60-10.0.70.69")
	disabled.Spec.Disabled = true
	capped := testPool("capped", "10.0.70.80-10.0.70.89")
	capped.Spec.MaxPerNamespace = 1
	six := testPool("six", "2001:db8::10")
	six.Spec.Subnet, six.Spec.Gateway = "2001:db8::/64", ""
	ip := func(name, pool string, spec v1alpha1.FloatingIPSpec) *v1alpha1.FloatingIP {
		spec.Address, spec.Pool = name, pool
		return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: "7"}, Spec: spec}
	}
	other := &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "other", UID: "o", PodName: "other"}
	held := &v1alpha1.PodReference{Name: "other", UID: "o"}
	return []*v1alpha1.IPPool{testPool("full", "10.0.70.10"), testPool("free", "10.0.70.20-10.0.70.29"), disabled, capped, six},
		[]*v1alpha1.IPClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front", UID: "c"}, Spec: v1alpha1.IPClaimSpec{Size: 1, Pools: []string{"full"}}}},
		[]*v1alpha1.FloatingIP{
			ip("10.0.70.10", "full", v1alpha1.FloatingIPSpec{Owner: other, Pod: held}),
			ip("10.0.70.80", "capped", v1alpha1.FloatingIPSpec{Owner: other, Pod: held}),
			ip("10.0.70.21", "free", v1alpha1.FloatingIPSpec{Reserved: true}),
		}
}

// A Listing answers every request as the scheduler's book does.
func TestListing(t *testing.T) {
	pools, claims, ips := listed()
	listing := NewListing(pools, claims, nil)
	s := newServer()
	for _, ip := range ips {
		s.Put(ip)
		listing.Observe(ip)
	}
	book := openWith(t, s, &poolWatch{pools: pools, claims: claims})
	for name, change := range map[string]func(*Request){
		"any pool":      func(*Request) {},
		"a full pool":   func(r *Request) { r.Pools = []string{"full"} },
		"no such pool":  func(r *Request) { r.Pools = []string{"wub"} },
		"a capped pool": func(r *Request) { r.Pools = []string{"capped"} },
		"disabled":      func(r *Request) { r.Pools = []string{"off"} },
		"IPv6 of IPv4":  func(r *Request) { r.Pools, r.Parts = []string{"free"}, []Part{{Family: v1alpha1.IPv6}} },
		"a claim":       func(r *Request) { r.Claim = "front" },
		"no claim":      func(r *Request) { r.Claim = "back" },
	} {
		t.Run(name, func(t *testing.T) {
			asked := request("web-0", "a", "")
			change(&asked)
			want, wantErr := book.Candidates(asked)
			got, err := listing.Candidates(asked)
			if text(wantErr) != text(err) {
				t.Fatalf("error is %v, the scheduler's %v", err, wantErr)
			}
			if err != nil {
				return
			}
			if got, want := got.Rejects(got.state.everywhere), want.Rejects(want.state.everywhere); (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Errorf("rejection is %+v, the scheduler's %+v", got, want)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestPerPool(t *testing.T) {
	pools, claims, ips := listed()
	listing := NewListing(pools, claims, nil)
	for _, ip := range ips {
		listing.Observe(ip)
	}
	asked := request("web-0", "a", "")
	asked.Pools = []string{"full", "free", "off", "capped", "six"}
	candidates, err := listing.Candidates(asked)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, said := range candidates.PerPool() {
		got = append(got, strings.TrimSpace(strings.Join([]string{map[bool]string{true: "+", false: "-"}[said.Has], said.Reason}, " ")))
	}
	want := []string{
		`- pool "capped" (10.0.70.80-10.0.70.89) gives namespace "shop" at most 1 addresses, and it has 1 (1 in use, 0 retained)`,
		`+ pool "free" (10.0.70.20-10.0.70.29) has 9 free`,
		`- pool "full" (10.0.70.10) has no free address (1 in use, 0 retained)`,
		`- pool "off" (10.0.70.60-10.0.70.69) is disabled`,
		`- pool "six" (2001:db8::10) has no IPv4 addresses`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	asked.Pools = []string{"free"}
	candidates, err = listing.Candidates(asked)
	if err != nil {
		t.Fatal(err)
	}
	if said := candidates.PerPool()[2]; said.Has || said.Reason != `the pod does not ask for pool "full" (10.0.70.10)` {
		t.Errorf("of another pool it says %+v", said)
	}
	asked.Pools, asked.Parts = nil, []Part{exactly("10.0.70.10")}
	candidates, err = listing.Candidates(asked)
	if err != nil {
		t.Fatal(err)
	}
	if said := candidates.PerPool()[2]; said.Has || !said.Serves || !said.Exact || said.Reason != "10.0.70.10 is held by pod shop/other" {
		t.Errorf("of an address that another pod has, its pool says %+v", said)
	}
	if _, err := listing.Terms(Request{}); err != nil {
		t.Error(err)
	}
	asked.Claim = "front"
	if terms, err := listing.Terms(asked); err != nil || terms.Owner.Kind != "IPClaim" || terms.MaxAddresses != 1 {
		t.Errorf("terms of the claim are %+v, %v", terms, err)
	}
	asked.Claim = "back"
	var shortage *ShortageError
	if _, err := listing.Terms(asked); !errors.As(err, &shortage) {
		t.Errorf("without the claim it says %v", err)
	}
}
