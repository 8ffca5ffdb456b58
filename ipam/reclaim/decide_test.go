// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Every cell of the table in the package documentation.
func TestDecide(t *testing.T) {
	set := func(pod string) *v1alpha1.Owner {
		return &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", PodName: pod}
	}
	deployment := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	barePod := &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Name: "web", PodName: "web"}
	custom := &v1alpha1.Owner{APIVersion: "example.org/v1", Kind: "Thing", Name: "web", PodName: "web-x"}
	three := workload{exists: true, known: true, replicas: 3}
	fromTwo := workload{exists: true, known: true, replicas: 3, start: 2}
	gone := workload{known: true}

	for _, test := range []struct {
		name  string
		owner *v1alpha1.Owner
		w     workload
		rank  int
		wants bool
	}{
		{"StatefulSet, in range", set("web-2"), three, 0, true},
		{"StatefulSet, scaled down", set("web-3"), three, 0, false},
		{"StatefulSet, scaled to zero", set("web-0"), workload{exists: true, known: true}, 0, false},
		{"StatefulSet, below ordinals.start", set("web-1"), fromTwo, 0, false},
		{"StatefulSet, at the end with ordinals.start", set("web-4"), fromTwo, 0, true},
		{"StatefulSet, beyond the end with ordinals.start", set("web-5"), fromTwo, 0, false},
		{"StatefulSet, near the limit of ordinals", set("web-2147483647"), workload{exists: true, known: true, start: 2147483647, replicas: 2147483647}, 0, true},
		{"StatefulSet, a second address for the pod name", set("web-0"), three, 1, false},
		{"StatefulSet, deleted", set("web-0"), gone, 0, false},
		{"StatefulSet, a pod whose name is not an ordinal's", set("other"), three, 0, true},
		{"Deployment, among the oldest", deployment, three, 2, true},
		{"Deployment, surplus", deployment, three, 3, false},
		{"Deployment, deleted", deployment, gone, 0, false},
		{"bare pod, there", barePod, workload{exists: true, known: true}, 0, true},
		{"bare pod, gone", barePod, gone, 0, false},
		{"a kind whose rules are not known", custom, workload{exists: true}, 9, true},
	} {
		for _, held := range []bool{true, false} {
			var pod *v1alpha1.PodReference
			if held {
				pod = &v1alpha1.PodReference{Name: "web-2", UID: "u"}
			}
			stays := keep
			if held {
				stays = retain
			}
			retained := free
			if test.wants {
				retained = stays
			}
			for policy, want := range map[v1alpha1.ReleasePolicy]action{
				v1alpha1.ReleasePodDeleted: free,
				v1alpha1.ReleaseRetain:     retained,
				v1alpha1.ReleaseNever:      stays,
				"":                         free,
			} {
				t.Run(fmt.Sprintf("%s/%q/held=%v", test.name, policy, held), func(t *testing.T) {
					spec := &v1alpha1.FloatingIPSpec{Owner: test.owner, Pod: pod, ReleasePolicy: policy}
					if got := decide(spec, false, test.w, test.rank); got != want {
						t.Errorf("pod gone: got %v, want %v", got, want)
					}
					if got := decide(spec, true, test.w, test.rank); got != keep {
						t.Errorf("pod alive: got %v, want keep", got)
					}
					spec.Reserved = true
					if got := decide(spec, false, test.w, test.rank); got != keep {
						t.Errorf("reserved: got %v, want keep", got)
					}
				})
			}
		}
	}
}
