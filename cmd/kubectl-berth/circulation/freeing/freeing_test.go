// SPDX-License-Identifier: Apache-2.0

package freeing

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// What somebody has, or may still have, is left.
func TestOf(t *testing.T) {
	now := metav1.Now()
	web := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web"}
	for name, test := range map[string]struct {
		spec   v1alpha1.FloatingIPSpec
		status v1alpha1.FloatingIPStatus
		want   Reason // empty: it is freed
	}{
		"retained": {spec: v1alpha1.FloatingIPSpec{Owner: web, LastPod: "web-0", Since: &now}},
		"at rest":  {spec: v1alpha1.FloatingIPSpec{LastPod: "web-0", ReleasedAt: &now}},
		"of a pod": {spec: v1alpha1.FloatingIPSpec{Owner: web, Pod: &v1alpha1.PodReference{Name: "web-0"}}, want: Held},
		"of a Service": {spec: v1alpha1.FloatingIPSpec{
			Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "front"}, Service: &v1alpha1.ServiceReference{Name: "front"},
		}, want: Held},
		"of a node":   {spec: v1alpha1.FloatingIPSpec{Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "node1"}, Node: "node1"}, want: Held},
		"reserved":    {spec: v1alpha1.FloatingIPSpec{Reserved: true}, want: Reserved},
		"attached":    {spec: v1alpha1.FloatingIPSpec{Owner: web, ExternallyAssigned: true, Node: "node1"}, want: Attached},
		"in conflict": {spec: v1alpha1.FloatingIPSpec{Owner: web}, status: v1alpha1.FloatingIPStatus{Conditions: []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue}}}, want: Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			got := Of(&v1alpha1.FloatingIP{Spec: test.spec, Status: test.status})
			if got.Reason != test.want || (got.Outcome == ToFree) != (test.want == "") {
				t.Errorf("%s, because %q, want because %q", got.Outcome, got.Reason, test.want)
			}
		})
	}
}
