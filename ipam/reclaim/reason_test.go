// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The reason is the one for which decide decides.
func TestWhy(t *testing.T) {
	now := time.Now()
	long := metav1.NewTime(now.Add(-time.Hour))
	pod := &v1alpha1.PodReference{Name: "web-0", UID: "u"}
	owner := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "w", PodName: "web-0"}
	spec := func(policy v1alpha1.ReleasePolicy, pod *v1alpha1.PodReference) v1alpha1.FloatingIPSpec {
		return v1alpha1.FloatingIPSpec{Owner: owner, ReleasePolicy: policy, Pod: pod, LastPod: "web-0", Since: &long}
	}
	timed := spec(v1alpha1.ReleaseNever, nil)
	timed.RetainFor = &metav1.Duration{Duration: time.Minute}
	alive := workload{exists: true, replicas: 1}
	for _, test := range []struct {
		spec v1alpha1.FloatingIPSpec
		s    situation
		want string
	}{
		{spec(v1alpha1.ReleasePodDeleted, pod), situation{}, "the pod is gone"},
		{spec(v1alpha1.ReleaseRetain, pod), situation{owner: alive, at: standing{family: v1alpha1.IPv4}}, "the pod is gone; release policy Retain keeps it for StatefulSet web"},
		{spec(v1alpha1.ReleaseRetain, nil), situation{}, "StatefulSet web is gone"},
		{spec(v1alpha1.ReleaseRetain, nil), situation{owner: workload{exists: true}, at: standing{family: v1alpha1.IPv4}}, "StatefulSet web does not want it any more"},
		{spec(v1alpha1.ReleaseRetain, nil), situation{superseded: true, owner: alive}, "pod web-0 runs with another address"},
		{spec(v1alpha1.ReleaseNever, nil), situation{namespaceGone: true}, "namespace shop was deleted"},
		{spec(v1alpha1.ReleaseNever, pod), situation{}, "the pod is gone; release policy Never keeps it for StatefulSet web"},
		{spec(v1alpha1.ReleaseRetain, pod), situation{unused: true}, "no pod ever ran with it"},
		{timed, situation{}, "its retainFor of 1m0s is over"},
		{v1alpha1.FloatingIPSpec{ReleasedAt: &long}, situation{}, "its cooldown is over"},
	} {
		test.s.now = now
		v := decide(&test.spec, test.s)
		if v.action == keep {
			t.Errorf("%q: the address is kept", test.want)
		}
		if got := why(&test.spec, test.s, v.action); got != test.want {
			t.Errorf("why = %q, want %q", got, test.want)
		}
	}
}
