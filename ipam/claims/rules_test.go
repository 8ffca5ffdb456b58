// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
)

const namespace = "shop"

// newClaim returns a claim whose UID is its name.
func newClaim(name string, size int32, options ...func(*v1alpha1.IPClaim)) *v1alpha1.IPClaim {
	claim := &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Generation: 1},
		Spec:       v1alpha1.IPClaimSpec{Size: size, ReleasePolicy: v1alpha1.ReleaseRetain},
	}
	for _, option := range options {
		option(claim)
	}
	return claim
}

func preallocating(families ...v1alpha1.IPFamily) func(*v1alpha1.IPClaim) {
	return func(c *v1alpha1.IPClaim) { c.Spec.Preallocate, c.Spec.Families = true, families }
}

func deleted(c *v1alpha1.IPClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

// newIP returns an address of a claim, with a pod unless pod is empty.
func newIP(address, claim, pod string, age int64) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address, UID: types.UID(address), CreationTimestamp: metav1.Unix(age, 0)},
		Spec: v1alpha1.FloatingIPSpec{
			Address: address, Pool: "web", ReleasePolicy: v1alpha1.ReleaseRetain,
			Owner: &v1alpha1.Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: namespace, Name: claim, UID: types.UID(claim)},
		},
	}
	if pod != "" {
		ip.Spec.Pod = &v1alpha1.PodReference{Name: pod, UID: types.UID(pod)}
	}
	return ip
}

func TestPick(t *testing.T) {
	reserved := newIP("10.0.0.7", "a", "", 0)
	reserved.Spec.Reserved = true
	ips := []*v1alpha1.FloatingIP{
		newIP("10.0.0.1", "a", "", 1), newIP("10.0.0.2", "a", "", 2), newIP("10.0.0.3", "a", "p3", 3), reserved,
		newIP("2001-0db8-0000-0000-0000-0000-0000-0001", "a", "", 4), newIP("2001-0db8-0000-0000-0000-0000-0000-0002", "a", "p2", 5),
	}
	tests := []struct {
		four, six int
		want      []string
	}{
		{0, 0, nil},
		{-1, -3, nil},
		{1, 1, []string{"10.0.0.3", "2001-0db8-0000-0000-0000-0000-0000-0002"}},
		{2, 0, []string{"10.0.0.3", "10.0.0.1"}},
		{9, 0, []string{"10.0.0.3", "10.0.0.1", "10.0.0.2"}},
	}
	for _, tc := range tests {
		var got []string
		for _, ip := range Pick(ips, map[v1alpha1.IPFamily]int{v1alpha1.IPv4: tc.four, v1alpha1.IPv6: tc.six}) {
			got = append(got, ip.Name)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("room for %d and %d: %s", tc.four, tc.six, diff)
		}
	}
	if len(ips) != 6 || ips[0].Name != "10.0.0.1" {
		t.Error("it changed its argument")
	}
}

func TestStatus(t *testing.T) {
	two := []*v1alpha1.FloatingIP{newIP("10.0.0.1", "a", "p", 1), newIP("10.0.0.2", "a", "", 1)}
	left := newIP("10.0.0.3", "a", "q", 1)
	left.Spec.Owner.UID = "the claim before"
	tests := []struct {
		name  string
		claim *v1alpha1.IPClaim
		ips   []*v1alpha1.FloatingIP
		wrong *preallocation.Problem
		want  string
	}{
		{"on demand, empty", newClaim("a", 2), nil, nil, "0=0+0 Ready=True OnDemand Oversized=False WithinSize"},
		{"on demand, full", newClaim("a", 2), two, nil, "2=1+1 Ready=True OnDemand Oversized=False WithinSize"},
		{"preallocated", newClaim("a", 2, preallocating()), two, nil, "2=1+1 Ready=True Preallocated Oversized=False WithinSize"},
		{"short", newClaim("a", 3, preallocating()), two, &preallocation.Problem{Reason: preallocation.ReasonPoolsExhausted, Message: "why"}, "2=1+1 Ready=False PoolsExhausted Oversized=False WithinSize"},
		{"shrunk", newClaim("a", 1), two, nil, "2=1+1 Ready=True OnDemand Oversized=True MoreThanSize"},
		{"addresses that an earlier claim left count", newClaim("a", 2), append([]*v1alpha1.FloatingIP{left}, two...), nil, "3=2+1 Ready=True OnDemand Oversized=True MoreThanSize"},
		{"size is of each family", newClaim("a", 1), []*v1alpha1.FloatingIP{two[0], newIP("2001-0db8-0000-0000-0000-0000-0000-0001", "a", "", 1)}, nil,
			"2=1+1 Ready=True OnDemand Oversized=False WithinSize"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			tally := count(tc.claim, tc.ips)
			s := statusOf(tc.claim, v1alpha1.IPClaimStatus{}, &tally, tc.wrong, nil, metav1.Unix(5, 0))
			got := fmt.Sprintf("%d=%d+%d", s.Addresses, s.Allocated, s.Retained)
			for _, c := range s.Conditions {
				got += fmt.Sprintf(" %s=%s %s", c.Type, c.Status, c.Reason)
				if c.Message == "" || c.ObservedGeneration != 1 {
					t.Errorf("condition %+v", c)
				}
			}
			if got != tc.want {
				t.Errorf("it is %q, want %q", got, tc.want)
			}
			// A second look changes nothing, not even the time.
			again := statusOf(tc.claim, s, &tally, tc.wrong, nil, metav1.Unix(6, 0))
			if diff := cmp.Diff(s, again); diff != "" {
				t.Error(diff)
			}
			if meta.FindStatusCondition(s.Conditions, v1alpha1.ClaimReady).LastTransitionTime != metav1.Unix(5, 0) {
				t.Error("the time is wrong")
			}
		})
	}
}

func TestChanges(t *testing.T) {
	conditions := func(ready, oversized string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ClaimReady, Reason: ready}, {Type: v1alpha1.ClaimOversized, Reason: oversized}}
	}
	tests := []struct {
		name          string
		claim         *v1alpha1.IPClaim
		before, after []metav1.Condition
		want          []string
	}{
		{"new", newClaim("a", 1), nil, conditions(ReasonOnDemand, ReasonWithinSize), nil},
		{"preallocated", newClaim("a", 1, preallocating()), conditions(preallocation.ReasonPreallocating, ReasonWithinSize), conditions(ReasonPreallocated, ReasonWithinSize), []string{"Preallocated"}},
		{"still", newClaim("a", 1, preallocating()), conditions(ReasonPreallocated, ReasonWithinSize), conditions(ReasonPreallocated, ReasonWithinSize), nil},
		{"short", newClaim("a", 1, preallocating()), conditions(preallocation.ReasonPreallocating, ReasonWithinSize), conditions(preallocation.ReasonPoolsExhausted, ReasonWithinSize), []string{"PreallocationFailed"}},
		{"no pool", newClaim("a", 1), nil, conditions(preallocation.ReasonNoSuchPool, ReasonWithinSize), []string{"Unserved"}},
		{"shrunk", newClaim("a", 1), conditions(ReasonOnDemand, ReasonWithinSize), conditions(ReasonOnDemand, ReasonMoreThanSize), []string{"Oversized"}},
		{"still too many", newClaim("a", 1), conditions(ReasonOnDemand, ReasonMoreThanSize), conditions(ReasonOnDemand, ReasonMoreThanSize), nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, e := range changes(tc.claim, tc.before, tc.after) {
				got = append(got, e.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
