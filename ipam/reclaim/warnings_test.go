// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
)

// An event reports owners whose wishes are unknown, if somebody can fix it.
func TestUnknown(t *testing.T) {
	things := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}
	forbidden := &customkind.ForbiddenError{Resource: things, Err: errors.New("no")}
	const kept = ": The address is kept, because it is unknown whether its workload still wants it: "
	for _, test := range []struct {
		name  string
		owner *v1alpha1.Owner
		pod   *v1.Pod
		err   error
		want  []string
	}{
		{"of a built-in kind", shared("apps/v1", "Deployment"), nil, errUnreachable, nil},
		{"of the core group", shared("v1", "ReplicationController"), nil, errUnreachable, nil},
		{"of a custom kind", shared("example.org/v1", "Thing"), nil, errUnreachable, []string{"UnknownWorkload of 10.0.70.2" + kept + errUnreachable.Error()}},
		{"of a custom kind, and its pod", shared("example.org/v1", "Thing"), with("x"), errUnreachable, []string{"UnknownWorkload of 10.0.70.2" + kept + errUnreachable.Error(), "UnknownWorkload of x and 10.0.70.2" + kept + errUnreachable.Error()}},
		{"of a custom kind that is served elsewhere", shared("example.org/v1", "Thing"), nil, fmt.Errorf("get it: %w", customkind.ErrMoved), nil},
		{"of a custom kind that may not be read", shared("example.org/v1", "Thing"), nil, fmt.Errorf("get it: %w", forbidden), []string{"MissingPermission of 10.0.70.2" + kept + "get it: " + forbidden.Error()}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFixture(t)
			if err := w.unknown(given("10.0.70.2", test.owner, ""), test.pod, test.err); !errors.Is(err, test.err) {
				t.Errorf("it returns %v", err)
			}
			if diff := cmp.Diff(test.want, w.emitted); diff != "" {
				t.Error(diff)
			}
			w.events = nil
			_ = w.unknown(given("10.0.70.2", test.owner, ""), test.pod, test.err) // Nobody is told.
		})
	}
}

// A kind that may not be watched is told of at one of its addresses.
func TestUnfollowed(t *testing.T) {
	never := given("10.0.70.3", shared("example.org/v1", "Thing"), "", under(v1alpha1.ReleaseNever))
	other, nobodys := given("10.0.70.4", shared("example.com/v1", "Thing"), ""), given("10.0.70.5", shared("v1", "Pod"), "")
	nobodys.Spec.Owner = nil
	forbidden := &customkind.ForbiddenError{Resource: schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}, Err: errors.New("no")}
	for _, test := range []struct {
		ips  []*v1alpha1.FloatingIP
		want []string
	}{
		{[]*v1alpha1.FloatingIP{never, other, nobodys}, nil},
		{[]*v1alpha1.FloatingIP{never, other, nobodys, given("10.0.70.2", shared("example.org/v1", "Thing"), "")}, []string{
			"MissingPermission of 10.0.70.2: When its workload is scaled down or deleted, the address is freed late: " + forbidden.Error(),
		}},
	} {
		w := newFixture(t)
		for _, ip := range test.ips {
			w.put(ip)
			w.cache(ip)
		}
		w.unfollowed(t.Context(), forbidden)
		if !slices.Equal(w.emitted, test.want) {
			t.Errorf("it tells %q, want %q", w.emitted, test.want)
		}
	}
}
