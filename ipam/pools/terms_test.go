// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestAllows(t *testing.T) {
	compiled := func(policies []v1alpha1.ReleasePolicy, retainFor time.Duration) *Pool {
		object := pool("p", 1, "10.0.0.9")
		object.Spec.ReleasePolicies = policies
		if retainFor != 0 {
			object.Spec.MaxRetainFor = &metav1.Duration{Duration: retainFor}
		}
		return Compile([]*v1alpha1.IPPool{object}).Pools()[0]
	}
	const deleted, retain, never = v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever
	free, short := compiled(nil, 0), compiled(nil, time.Hour)
	for _, test := range []struct {
		name  string
		pool  *Pool
		terms Terms
		want  bool
	}{
		{"no rules", free, Terms{Policy: never, Preallocate: true}, true},
		{"an allowed policy", compiled([]v1alpha1.ReleasePolicy{deleted, retain}, 0), Terms{Policy: retain}, true},
		{"another policy", compiled([]v1alpha1.ReleasePolicy{deleted, retain}, 0), Terms{Policy: never}, false},
		{"no policy is PodDeleted", compiled([]v1alpha1.ReleasePolicy{deleted}, 0), Terms{}, true},
		{"PodDeleted is a policy like others", compiled([]v1alpha1.ReleasePolicy{retain}, 0), Terms{}, false},
		{"the longest time", short, Terms{Policy: never, RetainFor: time.Hour}, true},
		{"a longer time", short, Terms{Policy: retain, RetainFor: time.Hour + 1}, false},
		{"any time", short, Terms{Policy: retain}, false},
		{"no time without a pod", short, Terms{Policy: deleted}, true},
		{"preallocated, whatever the policy", short, Terms{Policy: deleted, Preallocate: true}, false},
		{"preallocated, whatever the time", short, Terms{Policy: retain, RetainFor: 1, Preallocate: true}, false},
	} {
		if got := test.pool.Allows(test.terms); got != test.want {
			t.Errorf("%s: Allows(%+v) = %t", test.name, test.terms, got)
		}
	}
}
