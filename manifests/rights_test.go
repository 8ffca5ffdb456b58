// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// A right to do more than read that is not here is one too many: docs/explanation/security.md says what the programs do
// with theirs.
func TestRightsToWrite(t *testing.T) {
	want := map[string][]string{
		"scheduler/rbac.yaml": {
			"create berth.dev/floatingips", "create coordination.k8s.io/leases", "delete berth.dev/floatingips", "delete berth.dev/floatingips/held",
			"patch berth.dev/floatingips", "update coordination.k8s.io/leases berth-scheduler",
		},
		"controller/rbac.yaml": {
			"approve certificates.k8s.io/signers berth.dev/agent", "create berth.dev/floatingips", "create berth.dev/nodeassignments", "create coordination.k8s.io/leases", "create events.k8s.io/events",
			"delete berth.dev/floatingips", "delete berth.dev/floatingips/held", "delete berth.dev/nodeassignments",
			"patch /pods/status", "patch berth.dev/floatingips", "patch berth.dev/ipclaims/status", "patch berth.dev/ippools/status", "patch events.k8s.io/events",
			"sign certificates.k8s.io/signers berth.dev/agent", "update /configmaps berth-agent-ca", "update /secrets berth-agent-ca", "update berth.dev/nodeassignments",
			"update certificates.k8s.io/certificatesigningrequests/approval", "update certificates.k8s.io/certificatesigningrequests/status", "update coordination.k8s.io/leases berth-controller",
		},
		"agent/rbac.yaml": {
			"act berth.dev/agents", "create /events", "create certificates.k8s.io/certificatesigningrequests", "patch /events", "patch berth.dev/floatingips/status",
			"patch berth.dev/nodeassignments/status",
		},
		"agent/overlay/rbac.yaml": {"patch /nodes"},
		"agent/diagnosis.yaml": {
			"create /pods/proxy", "create /serviceaccounts/token berth-diagnosis", "create /serviceaccounts/token berth-failover-operator",
			"post /v1/resume", "post /v1/take-over",
		},
		"examples/operator-rbac.yaml": {"create berth.dev/floatingips", "delete berth.dev/floatingips", "update berth.dev/floatingips"},
		"examples/backup-rbac.yaml": {
			"create berth.dev/floatingips", "create berth.dev/ipclaims", "create berth.dev/ippools", "delete berth.dev/floatingips/held",
			"update berth.dev/floatingips",
		},
		"examples/galaxy-import-rbac.yaml": {
			"create berth.dev/floatingips", "create berth.dev/ipclaims", "create berth.dev/ippools", "delete berth.dev/floatingips/held",
			"update berth.dev/floatingips",
		},
	}
	got := map[string][]string{}
	for path, object := range manifests(t) {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			got[path] = append(got[path], writes(o.Rules)...)
		case *rbacv1.Role:
			got[path] = append(got[path], writes(o.Rules)...)
		}
	}
	for path, rights := range got {
		slices.Sort(rights)
		if rights = slices.Compact(rights); len(rights) > 0 && !slices.Equal(rights, want[path]) {
			t.Errorf("%s gives the rights %q, want %q", path, rights, want[path])
		}
		delete(want, path)
	}
	if len(want) > 0 {
		t.Errorf("there are no roles in %v", want)
	}
}

func writes(rules []rbacv1.PolicyRule) (rights []string) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			if verb == "get" || verb == "list" || verb == "watch" {
				continue
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					rights = append(rights, strings.Join(append([]string{verb, group + "/" + resource}, rule.ResourceNames...), " "))
				}
			}
			for _, url := range rule.NonResourceURLs {
				rights = append(rights, verb+" "+url)
			}
		}
	}
	return rights
}

// Each write of each kubelet would reach a policy that matches pods/status, and pay for it before its first condition.
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
