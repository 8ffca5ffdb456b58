// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// The terms of a claim replace the terms of its pods.
func TestClaimTerms(t *testing.T) {
	rack := testPool("rack", "10.0.70.20-10.0.70.29")
	rack.Labels = map[string]string{"rack": "7"}
	now := metav1.Now()
	for _, test := range []struct {
		name   string
		change func(*v1alpha1.IPClaim)
		asked  Part
		want   string // the address, or the text of the error
	}{
		{"none", func(*v1alpha1.IPClaim) {}, Part{}, "10.0.70.20"},
		{"pools", func(c *v1alpha1.IPClaim) { c.Spec.Pools = []string{"web"} }, Part{}, "10.0.70.2"},
		{"a selector of pools", func(c *v1alpha1.IPClaim) {
			c.Spec.PoolSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: metav1.LabelSelectorOpDoesNotExist}}}
		}, Part{}, "10.0.70.2"},
		{"an invalid selector", func(c *v1alpha1.IPClaim) {
			c.Spec.PoolSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Near"}}}
		}, Part{}, `IPClaim "licences": spec.poolSelector: "Near" is not a valid label selector operator`},
		{"ranges", func(c *v1alpha1.IPClaim) { c.Spec.Ranges = []string{"10.0.70.6-10.0.70.7", "10.0.70.3"} }, Part{}, "10.0.70.6"},
		{"an invalid range", func(c *v1alpha1.IPClaim) { c.Spec.Ranges = []string{"10.0.70.6", "x"} }, Part{}, `IPClaim "licences": spec.ranges[1]: range "x": "x" is not an IP address`},
		{"addresses of the pod", func(*v1alpha1.IPClaim) {}, exactly("10.0.70.5"), "10.0.70.5"},
		{"ranges, and addresses of the pod", func(c *v1alpha1.IPClaim) { c.Spec.Ranges = []string{"10.0.70.6"} }, exactly("10.0.70.6"),
			`IPClaim "licences": spec.ranges limits the addresses, but the pod also has annotation ` + v1alpha1.AnnotationAddresses},
		{"deleted", func(c *v1alpha1.IPClaim) { c.DeletionTimestamp = &now }, Part{},
			`there is no IPClaim "licences" in namespace "shop" (create it, or correct the pod's annotation ` + v1alpha1.AnnotationClaim + ")"},
	} {
		t.Run(test.name, func(t *testing.T) {
			claim := claimOf(9)
			test.change(claim)
			i := openWith(t, newServer(), &poolWatch{pools: []*v1alpha1.IPPool{rack, testPool("web", "10.0.70.2-10.0.70.9")}, claims: []*v1alpha1.IPClaim{claim}})
			r := claiming("db-0", "db-0")
			r.Parts = []Part{test.asked}
			var got string
			if _, err := i.Candidates(r); err != nil {
				got = err.Error()
			} else {
				got = reserve(t, i, r).Names()
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestRecordedTerms(t *testing.T) {
	for _, test := range []struct {
		retainFor *metav1.Duration
		policy    v1alpha1.ReleasePolicy
		want      v1alpha1.ReleasePolicy
	}{
		{nil, "", v1alpha1.ReleaseRetain},
		{&metav1.Duration{Duration: time.Hour}, v1alpha1.ReleaseRetain, v1alpha1.ReleaseRetain},
		{nil, v1alpha1.ReleaseNever, v1alpha1.ReleaseNever},
	} {
		claim := claimOf(1)
		claim.Spec.RetainFor, claim.Spec.ReleasePolicy = test.retainFor, test.policy
		s := newServer()
		i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2")}, claims: []*v1alpha1.IPClaim{claim}})
		r := claiming("db-0", "db-0")
		r.RetainFor = time.Minute // The claim has precedence.
		commit(t, i, reserve(t, i, r))
		spec := s.IP("10.0.70.2").Spec
		if (spec.RetainFor == nil) != (test.retainFor == nil) || spec.RetainFor != nil && *spec.RetainFor != *test.retainFor || spec.ReleasePolicy != test.want {
			t.Errorf("recorded are %v and %s, want %v and %s", spec.RetainFor, spec.ReleasePolicy, test.retainFor, test.want)
		}
	}
}

// An owner that shares addresses gets one family, and an owner with addresses of both
// gets the default.
func TestSharedFamilyOf(t *testing.T) {
	four, six := testPool("four", "10.0.70.2"), poolOfSix("six", "2001:db8::2")
	both, onlySix := pools.Compile([]*v1alpha1.IPPool{four, six}), pools.Compile([]*v1alpha1.IPPool{six})
	for _, test := range []struct {
		pools  *pools.Snapshot
		v4, v6 bool
		want   v1alpha1.IPFamily
	}{
		{both, false, false, ""},
		{both, true, false, v1alpha1.IPv4},
		{both, false, true, v1alpha1.IPv6},
		{both, true, true, v1alpha1.IPv4},
		{onlySix, true, true, v1alpha1.IPv6},
		{onlySix, true, false, ""},
		{onlySix, false, true, v1alpha1.IPv6},
	} {
		r := request("web-0", "a", v1alpha1.ReleaseRetain)
		if got := r.sharedFamily(test.pools, test.v4, test.v6); got != test.want {
			t.Errorf("with IPv4 %t, IPv6 %t, and %d pools: %q, want %q", test.v4, test.v6, len(test.pools.Pools()), got, test.want)
		}
	}
}

func TestWhoSharesAddresses(t *testing.T) {
	deployment := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}
	set, daemon := deployment, deployment
	set.PodName, daemon.NodeName = "web-0", "node1"
	for _, test := range []struct {
		name   string
		owner  Owner
		claim  string
		policy v1alpha1.ReleasePolicy
		want   bool
	}{
		{"a Deployment", deployment, "", v1alpha1.ReleaseRetain, true},
		{"a Deployment that keeps nothing", deployment, "", v1alpha1.ReleasePodDeleted, false},
		{"a StatefulSet", set, "", v1alpha1.ReleaseRetain, false},
		{"a DaemonSet", daemon, "", v1alpha1.ReleaseRetain, false},
		{"a claim", deployment, "licences", v1alpha1.ReleaseRetain, true},
		{"a claim that keeps nothing", deployment, "licences", v1alpha1.ReleasePodDeleted, true},
	} {
		r := request("web-0", "a", test.policy)
		r.Owner, r.Claim = test.owner, test.claim
		if got := r.shares(); got != test.want {
			t.Errorf("%s: shares = %v, want %v", test.name, got, test.want)
		}
	}
}

// A pod keeps the order of its addresses: a FloatingIP records its position.
func TestOrderIsKept(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	r := request("web-0", "a", v1alpha1.ReleaseRetain)
	r.Parts = []Part{exactly("10.0.70.5"), exactly("10.0.70.4"), exactly("10.0.70.6")}
	commit(t, i, reserve(t, i, r))
	for _, name := range []string{"10.0.70.4", "10.0.70.5", "10.0.70.6"} {
		s.Retain(name)
	}
	next := request("web-0", "b", v1alpha1.ReleaseRetain)
	next.Parts = make([]Part, 3)
	if got, want := reserve(t, i, next).Names(), "10.0.70.5,10.0.70.4,10.0.70.6"; got != want {
		t.Errorf("the next pod has %s, want %s", got, want)
	}
}

// A victim's address no longer counts towards the limit of the claim.
func TestPreemptionAtLimit(t *testing.T) {
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		claim := claimOf(1)
		claim.Spec.ReleasePolicy = v1alpha1.ReleasePodDeleted
		i := openWith(t, newServer(), &poolWatch{
			pools:  []*v1alpha1.IPPool{testPool("four", "10.0.70.2-10.0.70.9"), poolOfSix("six", "2001:db8::2-2001:db8::9")},
			claims: []*v1alpha1.IPClaim{claim},
		})
		low, urgent := claiming("low", "low"), claiming("urgent", "urgent")
		low.Parts, urgent.Parts = []Part{{Family: family}}, []Part{{Family: family}}
		commit(t, i, reserve(t, i, low))
		c, err := i.Candidates(urgent)
		if err != nil {
			t.Fatal(err)
		}
		for uid, want := range map[string]bool{"low": true, "another": false} {
			preemption := &Preemption{}
			c.AddVictim(preemption, "shop", uid)
			if rejection := c.RejectsAfter(everywhere(c), preemption); (rejection == nil) != want {
				t.Errorf("%s: after the end of %s: %v, want success %v", family, uid, rejection, want)
			}
		}
	}
}
