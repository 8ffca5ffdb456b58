// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/pools"
)

// Each record that the API server admits counts once, and as retained only for an owner.
func TestCombinations(t *testing.T) {
	web := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/8", Ranges: []string{"10.0.0.0/8"}, MaxPerNamespace: 7}}
	all := []*v1alpha1.IPPool{web}
	snapshot := pools.Compile(all)
	for ip, refused := range ipamtest.FloatingIPs(time.Now()) {
		if refused != nil {
			continue
		}
		counted := count(all, snapshot, slices.Values([]*v1alpha1.FloatingIP{ip}))
		u := counted.pools["web"]
		if u.allocated+u.retained+u.reserved+u.cooling != 1 || u.retained == 1 && ip.Spec.Owner == nil {
			t.Fatalf("%+v counts as %+v", ip.Spec, u)
		}
	}
}

// A status that the controller would write otherwise is stale, and the text says in which counts.
func TestStale(t *testing.T) {
	ips := slices.Values([]*v1alpha1.FloatingIP{
		ip("10.0.0.10", "web", "held"), ip("10.0.0.11", "web", "retained"), ip("10.0.0.12", "web", "reserved"), ip("10.0.0.13", "web", "cooling"),
		ip("10.0.0.99", "web", "held"),
	})
	now := time.Unix(9, 0)
	for name, test := range map[string]struct {
		edit func(*v1alpha1.IPPoolStatus)
		want string
	}{
		"it is right":    {func(*v1alpha1.IPPoolStatus) {}, ""},
		"capacity":       {func(s *v1alpha1.IPPoolStatus) { s.Capacity = 7 }, "capacity is 7, counted 6"},
		"allocated":      {func(s *v1alpha1.IPPoolStatus) { s.Allocated = 0 }, "allocated is 0, counted 1"},
		"retained":       {func(s *v1alpha1.IPPoolStatus) { s.Retained = 0 }, "retained is 0, counted 1"},
		"reserved":       {func(s *v1alpha1.IPPoolStatus) { s.Reserved = 2 }, "reserved is 2, counted 1"},
		"cooling":        {func(s *v1alpha1.IPPoolStatus) { s.Cooling = 0 }, "cooling is 0, counted 1"},
		"free":           {func(s *v1alpha1.IPPoolStatus) { s.Free = 3 }, "free is 3, counted 2"},
		"outside":        {func(s *v1alpha1.IPPoolStatus) { s.Outside = 0 }, "outside is 0, counted 1"},
		"the generation": {func(s *v1alpha1.IPPoolStatus) { s.ObservedGeneration = 2 }, "observedGeneration is 2, counted 3"},
		"two counts":     {func(s *v1alpha1.IPPoolStatus) { s.Allocated, s.Free = 2, 1 }, "allocated is 2, counted 1; free is 1, counted 2"},
		"a condition": {func(s *v1alpha1.IPPoolStatus) {
			s.Conditions = slices.Clone(s.Conditions)
			s.Conditions[0].Status = metav1.ConditionUnknown
		}, "conditions or namespaces do not match the addresses"},
	} {
		objects := []*v1alpha1.IPPool{pool("web", 1, "10.0.0.10-10.0.0.15"), pool("db", 2, "10.0.0.20")}
		snapshot := pools.Compile(objects)
		written := compute(objects, make([]v1alpha1.IPPoolStatus, len(objects)), snapshot, snapshot.Reached(slices.Values(oneNode)), count(objects, snapshot, ips), metav1.NewTime(now))
		for i := range objects {
			objects[i].Status = written[i]
		}
		test.edit(&objects[0].Status)
		want := map[string]string{}
		if test.want != "" {
			want["web"] = test.want
		}
		if got := Stale(objects, snapshot, slices.Values(oneNode), ips, now.Add(time.Hour)); !maps.Equal(got, want) {
			t.Errorf("%s: Stale() = %q, want %q", name, got, want)
		}
	}
}
