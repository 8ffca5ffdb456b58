// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The rights that the manifests give. Every other test shows that they are enough: there the
// programs have these permissions and no others, and start fails the test where
// one of their requests is forbidden.
func TestPermissions(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	tests := []struct {
		account string
		// each is "verb group/resource[/subresource] [namespace/name]".
		may, mayNot []string
	}{
		{
			account: "berth-scheduler",
			may: []string{
				"create berth.dev/floatingips", "patch berth.dev/floatingips", "delete berth.dev/floatingips", "get berth.dev/floatingips",
				"watch berth.dev/ippools", "create /pods/binding", "list apps/replicasets", "list batch/jobs", "watch batch/jobs", "list /namespaces", "get /pods",
				"update coordination.k8s.io/leases berth-system/berth-scheduler",
				"delete berth.dev/floatingips/held", "get /configmaps kube-system/extension-apiserver-authentication",
			},
			mayNot: []string{
				"update berth.dev/floatingips", "deletecollection berth.dev/floatingips", "patch berth.dev/nodeassignments/status", "update berth.dev/nodeassignments/status",
				"create berth.dev/ippools", "update berth.dev/ippools", "patch berth.dev/ippools", "delete berth.dev/ippools", "patch berth.dev/ippools/status",
				"patch /replicationcontrollers", "update /replicationcontrollers/scale",
				"create /pods", "update /pods", "get /secrets", "list /secrets", "create apps/deployments", "patch /nodes",
				"update coordination.k8s.io/leases berth-system/berth-controller", "delete coordination.k8s.io/leases berth-system/berth-scheduler",
				"create rbac.authorization.k8s.io/clusterrolebindings",
			},
		},
		{
			account: "berth-controller",
			may: []string{
				"list berth.dev/floatingips", "watch berth.dev/floatingips", "patch berth.dev/floatingips", "delete berth.dev/floatingips",
				"watch berth.dev/ippools", "patch berth.dev/ippools/status", "list /services", "get /pods", "list /pods", "watch /pods", "patch /pods/status",
				"watch berth.dev/nodeassignments", "create berth.dev/nodeassignments", "update berth.dev/nodeassignments", "delete berth.dev/nodeassignments",
				"create berth.dev/floatingips", "get berth.dev/ipclaims", "watch /nodes", "watch /resourcequotas", "create events.k8s.io/events",
				"get apps/statefulsets", "get apps/deployments", "get apps/replicasets", "get apps/daemonsets", "get batch/jobs", "get batch/cronjobs", "watch batch/cronjobs",
				"update coordination.k8s.io/leases berth-system/berth-controller",
				"get /secrets berth-system/berth-agent-ca", "update /secrets berth-system/berth-agent-ca",
				"get /configmaps berth-system/berth-agent-ca", "update /configmaps berth-system/berth-agent-ca",
				"watch certificates.k8s.io/certificatesigningrequests", "update certificates.k8s.io/certificatesigningrequests/approval",
				"update certificates.k8s.io/certificatesigningrequests/status", "approve certificates.k8s.io/signers /berth.dev/agent", "sign certificates.k8s.io/signers /berth.dev/agent",
				"delete berth.dev/floatingips/held", "create authentication.k8s.io/tokenreviews", "create authorization.k8s.io/subjectaccessreviews",
			},
			mayNot: []string{
				"update berth.dev/floatingips", "deletecollection berth.dev/floatingips",
				"patch berth.dev/ippools", "create berth.dev/ippools", "delete berth.dev/ippools", "assign berth.dev/ippools",
				"get /services", "watch /services", "patch /services/status", "create /pods", "delete /pods", "patch /pods", "update /pods/status", "patch berth.dev/nodeassignments/status", "create /pods/binding", "get /secrets", "list /secrets", "list /configmaps",
				"get /secrets berth-system/another", "create /secrets berth-system/", "list /secrets berth-system/", "delete /secrets berth-system/berth-agent-ca",
				"get /secrets default/berth-agent-ca", "get /configmaps berth-system/another", "update /configmaps default/berth-agent-ca",
				"create certificates.k8s.io/certificatesigningrequests", "delete certificates.k8s.io/certificatesigningrequests",
				"create externaldns.k8s.io/dnsendpoints berth-system/",
				"approve certificates.k8s.io/signers /kubernetes.io/kube-apiserver-client", "sign certificates.k8s.io/signers /kubernetes.io/kube-apiserver-client",
				"update apps/statefulsets", "update apps/deployments", "patch /nodes", "update berth.dev/ipclaims",
				"update coordination.k8s.io/leases berth-system/berth-scheduler", "create rbac.authorization.k8s.io/clusterrolebindings",
			},
		},
		{
			account: "berth-agent",
			may: []string{
				"get /pods", "list /pods", "watch /pods", "get berth.dev/floatingips", "list berth.dev/floatingips", "watch berth.dev/floatingips", "patch berth.dev/floatingips/status",
				"list networking.k8s.io/servicecidrs", "list berth.dev/nodeassignments", "watch berth.dev/nodeassignments", "patch berth.dev/nodeassignments/status",
				"get k8s.cni.cncf.io/network-attachment-definitions", "act berth.dev/agents",
				"list /namespaces", "watch /namespaces", "list berth.dev/networkprofiles", "watch berth.dev/networkprofiles",
				"get /namespaces", "list networking.k8s.io/networkpolicies", "watch networking.k8s.io/networkpolicies",
				"list policy.networking.k8s.io/clusternetworkpolicies", "watch policy.networking.k8s.io/clusternetworkpolicies",
				"watch apiextensions.k8s.io/customresourcedefinitions /clusternetworkpolicies.policy.networking.k8s.io",
				"create /events", "patch /events", "create certificates.k8s.io/certificatesigningrequests", "get certificates.k8s.io/certificatesigningrequests",
				"create authentication.k8s.io/tokenreviews", "create authorization.k8s.io/subjectaccessreviews",
			},
			mayNot: []string{
				"patch networking.k8s.io/networkpolicies", "patch policy.networking.k8s.io/clusternetworkpolicies", "patch policy.networking.k8s.io/clusternetworkpolicies/status",
				"list apiextensions.k8s.io/customresourcedefinitions", "watch apiextensions.k8s.io/customresourcedefinitions /others.example.org",
				"patch /namespaces", "create berth.dev/networkprofiles", "patch berth.dev/networkprofiles", "update berth.dev/networkprofiles", "delete /events", "list /events",
				"create berth.dev/floatingips", "update berth.dev/floatingips", "watch networking.k8s.io/servicecidrs",
				"patch berth.dev/floatingips", "delete berth.dev/floatingips", "delete berth.dev/floatingips/held",
				"create berth.dev/nodeassignments", "patch berth.dev/nodeassignments", "update berth.dev/nodeassignments", "delete berth.dev/nodeassignments", "update berth.dev/nodeassignments/status",
				"get berth.dev/ippools", "get berth.dev/ipclaims", "create /pods", "update /pods", "patch /pods", "delete /pods", "update /pods/status", "patch /pods/status",
				"update berth.dev/floatingips/status", "list k8s.cni.cncf.io/network-attachment-definitions",
				"create /pods/binding", "create /pods/exec", "get /nodes", "patch /nodes", "patch /nodes/status", "get /secrets", "get /configmaps",
				"list certificates.k8s.io/certificatesigningrequests", "watch certificates.k8s.io/certificatesigningrequests", "delete certificates.k8s.io/certificatesigningrequests",
				"update certificates.k8s.io/certificatesigningrequests/approval", "sign certificates.k8s.io/signers /berth.dev/agent", "approve certificates.k8s.io/signers /berth.dev/agent",
				"get coordination.k8s.io/leases", "create /serviceaccounts/token", "administer berth.dev/agents",
			},
		},
	}
	// Who may change all that Kubernetes has in namespaces (no controller adds these rules to edit
	// here) may change nothing of Berth's, and bind no pod.
	w.Bind("system:aggregate-to-edit", "tenant")
	w.Eventually("wait until the API server's authorizer has seen the binding", func() error {
		if !w.UserAllowed("tenant", "create /pods") {
			return errors.New("the tenant may not create pods")
		}
		return nil
	})
	for access, want := range map[string]bool{
		"create /pods": true, "patch /pods": true, "delete apps/deployments": true, "create /pods/binding": false,
		"create berth.dev/floatingips": false, "patch berth.dev/floatingips": false, "delete berth.dev/floatingips": false,
		"create berth.dev/ippools": false, "patch berth.dev/ippools": false, "delete berth.dev/ippools": false, "assign berth.dev/ippools": false,
	} {
		if got := w.UserAllowed("tenant", access); got != want {
			t.Errorf("a tenant may %s: %t, want %t", access, got, want)
		}
	}
	// Kubernetes' own roles of a namespace read its claims, by a label; the controller that adds the
	// rules does not run here.
	claims, err := w.Kube.RbacV1().ClusterRoles().Get(w.Ctx, "berth-view", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"view", "edit", "admin"} {
		if claims.Labels["rbac.authorization.k8s.io/aggregate-to-"+role] != "true" {
			t.Errorf("%s does not aggregate to %s", claims.Name, role)
		}
	}
	w.Bind(claims.Name, "tenant")
	for access, want := range map[string]bool{
		"get berth.dev/ipclaims": true, "list berth.dev/ipclaims": true, "watch berth.dev/ipclaims": true,
		"create berth.dev/ipclaims": false, "update berth.dev/ipclaims": false, "patch berth.dev/ipclaims": false, "delete berth.dev/ipclaims": false,
		"list berth.dev/floatingips": false, "list berth.dev/ippools": false,
	} {
		if got := w.UserAllowed("tenant", access); got != want {
			t.Errorf("a tenant may %s: %t, want %t", access, got, want)
		}
	}
	for _, tc := range tests {
		t.Run(tc.account, func(t *testing.T) {
			w := w.On(t)
			for _, access := range tc.may {
				if !w.Allowed(tc.account, access) {
					t.Errorf("may not %s", access)
				}
			}
			for _, access := range tc.mayNot {
				if w.Allowed(tc.account, access) {
					t.Errorf("may %s", access)
				}
			}
		})
	}
}
