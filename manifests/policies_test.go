// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// Each write of each kubelet would reach a policy that matches pods/status, and pay for it before
// its first condition.
func TestNoPolicyOfPodStatus(t *testing.T) {
	policies := 0
	for path, object := range manifests(t) {
		policy, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		policies++
		for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
			for _, resource := range rule.Resources {
				if slices.Contains([]string{"*", "*/*", "*/status", "pods/*", "pods/status"}, resource) {
					t.Errorf("%s: %s matches %s", path, policy.Name, resource)
				}
			}
		}
	}
	if policies == 0 {
		t.Error("there are no policies")
	}
}

// The component pod-defaults takes away the warning of pods without a scheduler's name by its
// place.
func TestFirstWarningIsOfTheScheduler(t *testing.T) {
	for _, object := range manifests(t) {
		policy, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if ok && policy.Name == "workloads.berth.dev" {
			if first := policy.Spec.Validations[0]; !strings.Contains(first.Expression, "schedulerName") {
				t.Errorf("the first is %s", first.Expression)
			}
			return
		}
	}
	t.Error("there is no such policy")
}
