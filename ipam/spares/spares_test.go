// SPDX-License-Identifier: Apache-2.0

package spares

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// How a set becomes whole is tested with all programs: test/scheduler/fixedset, and of DaemonSets
// test/scheduler/retention.

// A workload has addresses for any of its pods if it keeps them, for no pod's name and without an
// end.
func TestIsShared(t *testing.T) {
	web := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "u"}
	for name, test := range map[string]struct {
		change func(*v1alpha1.FloatingIPSpec)
		want   bool
	}{
		"a Deployment's":                 {func(*v1alpha1.FloatingIPSpec) {}, true},
		"never freed":                    {func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy = v1alpha1.ReleaseNever }, true},
		"a DaemonSet's on a node":        {func(s *v1alpha1.FloatingIPSpec) { s.Owner.Kind, s.Owner.NodeName = "DaemonSet", "node1" }, true},
		"a custom kind's":                {func(s *v1alpha1.FloatingIPSpec) { s.Owner.APIVersion, s.Owner.Kind = "argoproj.io/v1alpha1", "Rollout" }, true},
		"freed with its pod":             {func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy = v1alpha1.ReleasePodDeleted }, false},
		"kept for a while":               {func(s *v1alpha1.FloatingIPSpec) { s.RetainFor = &metav1.Duration{Duration: 1} }, false},
		"of a StatefulSet's pod":         {func(s *v1alpha1.FloatingIPSpec) { s.Owner.Kind, s.Owner.PodName = "StatefulSet", "web-0" }, false},
		"a claim's":                      {func(s *v1alpha1.FloatingIPSpec) { s.Owner.APIVersion, s.Owner.Kind = "berth.dev/v1alpha1", "IPClaim" }, false},
		"a Service's":                    {func(s *v1alpha1.FloatingIPSpec) { s.Owner.APIVersion, s.Owner.Kind = "v1", "Service" }, false},
		"a pod's without a workload":     {func(s *v1alpha1.FloatingIPSpec) { s.Owner.APIVersion, s.Owner.Kind = "v1", "Pod" }, false},
		"nobody's, which rests":          {func(s *v1alpha1.FloatingIPSpec) { s.Owner = nil }, false},
		"without a policy, as it begins": {func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy = "" }, false},
	} {
		owner := web
		spec := &v1alpha1.FloatingIPSpec{Owner: &owner, ReleasePolicy: v1alpha1.ReleaseRetain}
		test.change(spec)
		if got := isShared(spec); got != test.want {
			t.Errorf("an address %s: isShared is %t", name, got)
		}
		if spec.Owner == nil {
			continue
		}
		spec.Owner.UID, spec.Owner.PodName = "", ""
		if back := ownerOf(keyOf(spec.Owner)); *back != *spec.Owner {
			t.Errorf("the key of %+v is of %+v", spec.Owner, back)
		}
	}
}
