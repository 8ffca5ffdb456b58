// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation"
)

// Berth works in any namespace: its programs find their leases, and are known to
// the admission policy, which knows nobody else.
func TestAnotherNamespace(t *testing.T) {
	t.Parallel()
	const system = "network"
	w := simulation.NewWith(t, simulation.Options{System: system})
	for document := range strings.SplitSeq(string(w.Kustomized(system)), "\n---\n") {
		if strings.Contains(document, "\nkind: FlowSchema\n") {
			continue // docs/how-to/installation.md has this to be done by hand
		}
		for line := range strings.Lines(document) {
			// Nothing may stay where kustomize does not look, nor be moved to where
			// it has no effect.
			if strings.Contains(line, deploy.Namespace) || strings.Contains(line, "kube-system") && strings.Contains(line, "namespace:") {
				t.Errorf("installed in namespace %s, the manifests have the line %q", system, strings.TrimSpace(line))
			}
		}
	}
	w.Nodes(1)
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{Elect: true})
	w.Controller("--leader-elect=true", "--leader-elect-resource-namespace="+system)
	w.Pool("web", "10.0.70.2")
	w.Create(simulation.NewPod("web-0"))
	w.Bound("web-0")
	for _, name := range []string{"berth-scheduler", "berth-controller"} {
		if _, err := w.Kube.CoordinationV1().Leases(system).Get(w.Ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("the lease of %s: %v", name, err)
		}
	}
	deletesNoHeld(w, "10.0.70.2")

	w.Delete("web-0")
	w.Create(simulation.NewPod("web-1"))
	w.Bound("web-1")
	w.DeleteAll()
	w.Invariants()
}

// deletesNoHeld tries to delete an address that a pod holds as everybody who may
// delete FloatingIPs, or nearly.
func deletesNoHeld(w *simulation.World, address string) {
	w.T.Helper()
	_, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "deleter"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"berth.dev"}, Resources: []string{"floatingips"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	bind := func(role string, subjects ...rbacv1.Subject) {
		_, err := w.Kube.RbacV1().ClusterRoleBindings().Create(w.Ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   subjects,
		}, metav1.CreateOptions{})
		if err != nil {
			w.T.Fatal(err)
		}
	}
	account := func(namespace, name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
	}
	user := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
	}
	bind("deleter", account("tenant", "berth-controller"), account("tenant", "berth-scheduler"), user("berth-controller"))
	bind("cluster-admin", account("flux", "flux"), account(w.System, "not-berth-controller"), user("root"))
	for _, name := range []string{
		"system:serviceaccount:tenant:berth-controller", "system:serviceaccount:tenant:berth-scheduler", "berth-controller",
		"system:serviceaccount:flux:flux", "system:serviceaccount:" + w.System + ":not-berth-controller", "root",
		"", // the test's own, of the group system:masters
	} {
		config := rest.CopyConfig(w.Config)
		if name != "" {
			config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
		}
		berth, err := client.NewForConfig(config)
		if err != nil {
			w.T.Fatal(err)
		}
		w.Eventually(fmt.Sprintf("wait for user %q to be refused by the policy", name), func() error {
			err := berth.FloatingIPs.Delete(w.Ctx, address, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the address is held by pod") {
				return fmt.Errorf("deleting a held address: %w", err)
			}
			return nil
		})
	}
}
