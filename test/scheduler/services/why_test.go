// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// TestWhy: kubectl berth why says of a Service which nodes carry its addresses, or why it has none,
// as the controller's events do.
func TestWhy(t *testing.T) {
	t.Parallel()
	w := start(t, 1)
	w.Grant("viewer-rbac.yaml", "viewer")
	w.agents.set(true, "node1")
	w.Controller("--services")
	w.Pool("web", "10.0.70.2")
	w.create("front", func(service *v1.Service) { service.Annotations[v1alpha1.AnnotationShare] = "public" })
	w.Eventually("wait for a node to be assigned the address", func() error {
		assigned, _, err := w.carriers("10.0.70.2")
		if err == nil && len(assigned) != 1 {
			err = fmt.Errorf("assigned to %v", assigned)
		}
		return err
	})
	w.why(t, "front", 2, "Service default/front: The Service waits for an address.", "Problem: 10.0.70.2: node node1 does not confirm", "10.0.70.2   web    -       node node1 does not confirm that it carries it", "kubectl berth node node1")
	w.agents.set(false, "node1")
	w.shows("front", "10.0.70.2")
	w.why(t, "front", 0, "Service default/front: Clients reach the Service by 10.0.70.2.", "10.0.70.2   web    node1   -")

	w.agents.refuse("node1", v1alpha1.RefusedNotPossible, "kube-proxy of this node has the mode ipvs")
	w.Eventually("wait for the node to refuse it", func() error {
		_, carried, err := w.carriers("10.0.70.2")
		if err == nil && len(carried) > 0 {
			err = fmt.Errorf("carried by %v", carried)
		}
		return err
	})
	w.why(t, "front", 2, "Problem: 10.0.70.2: node node1 does not carry it: kube-proxy of this node has the mode ipvs")
	w.agents.accept("node1")
	w.carriedBy("10.0.70.2", "the node", func(nodes []string) bool { return len(nodes) == 1 })

	w.create("late", nil)
	w.saysOfNone("late", "PoolsExhausted")
	w.why(t, "late", 2, "Problem: no pool that it may use has an address for it (IPv4)", `web    1       no               pool "web" (10.0.70.2) has no free address (1 in use, 0 retained)`,
		"NoServiceAddress, ", "PoolsExhausted", "free addresses that nobody uses: kubectl berth top owners")
	w.create("lost", func(service *v1.Service) { service.Annotations[v1alpha1.AnnotationPools] = "wub" })
	w.saysOfNone("lost", "NoSuchPool")
	w.why(t, "lost", 2, `Problem: there is no IPPool "wub"`, "NoSuchPool")
	w.create("odd", func(service *v1.Service) { service.Annotations[v1alpha1.AnnotationAddresses] = "10.0.70" })
	w.why(t, "odd", 2, "Problem: annotation berth.dev/addresses: ", "correct Service odd")
	w.create("same", func(service *v1.Service) { service.Annotations[v1alpha1.AnnotationShare] = "public" })
	w.why(t, "same", 2, "The Service does not share the addresses of Service front.", "Problem: It cannot share addresses with Service front: both have port 80/TCP")
	w.create("shares", func(service *v1.Service) {
		service.Annotations[v1alpha1.AnnotationShare], service.Spec.Ports[0].Port = "public", 443
	})
	w.shows("shares", "10.0.70.2")
	w.why(t, "shares", 0, "Clients reach the Service by 10.0.70.2. It shares the addresses of Service front, whose annotations decide.", "10.0.70.2   web    node1   -")
	w.create("others", func(service *v1.Service) { service.Spec.LoadBalancerClass = nil })
	w.why(t, "others", 0, "The Service asks Berth for no address: it has no spec.loadBalancerClass", "create it again with spec.loadBalancerClass: berth.dev/lb")
	w.why(t, "nothing", 1, "there is no Service default/nothing")

	// A user of the namespace, who may not read Berth's objects.
	w.permit("tenant", "view")
	w.whyAs(t, "tenant", "front", 0, "Clients reach the Service by 10.0.70.2.", "More is not said, because user \"tenant\" may not")
	w.whyAs(t, "tenant", "late", 2, "The Service waits for an address.", "NoServiceAddress: ", "PoolsExhausted", "More is not said")

	// One family is enough for a Service that prefers both, and not for one that requires both.
	dual := func(policy v1.IPFamilyPolicy) func(*v1.Service) {
		return func(service *v1.Service) {
			service.Annotations[v1alpha1.AnnotationPools] = "two"
			service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = &policy, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
		}
	}
	w.Pool("two", "10.0.70.10-10.0.70.19")
	w.create("prefers", dual(v1.IPFamilyPolicyPreferDualStack))
	w.Eventually("wait for the Service to have one address", func() error {
		if got, err := w.shown("prefers"); err != nil || len(got) != 1 {
			return fmt.Errorf("it shows %v: %w", got, err)
		}
		return nil
	})
	w.why(t, "prefers", 0, "Clients reach the Service by 10.0.70.1", "It has no IPv6 address, which it would like to have")
	w.create("requires", dual(v1.IPFamilyPolicyRequireDualStack))
	w.saysOfNone("requires", "")
	w.why(t, "requires", 2, "The Service waits for an address.", "Problem: ")
}

// permit gives a user a ClusterRole in the namespace. The role view has no rules without
// kube-controller-manager: the user gets what it would have for Services.
func (w *world) permit(user, role string) {
	w.T.Helper()
	made := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: role, Namespace: simulation.Namespace}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "services", "events", "namespaces"}, Verbs: []string{"get", "list", "watch"}},
	}}
	if _, err := w.Kube.RbacV1().Roles(simulation.Namespace).Create(w.Ctx, made, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role, Namespace: simulation.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	if _, err := w.Kube.RbacV1().RoleBindings(simulation.Namespace).Create(w.Ctx, binding, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// saysOfNone waits for the controller's event about a Service without an address.
func (w *world) saysOfNone(name, reason string) {
	w.T.Helper()
	w.Eventually("wait for an event about Service "+name, func() error {
		events, err := w.Kube.CoreV1().Events(simulation.Namespace).List(w.Ctx, metav1.ListOptions{FieldSelector: "reason=NoServiceAddress,involvedObject.name=" + name})
		if err != nil {
			return err
		}
		for i := range events.Items {
			if strings.HasPrefix(events.Items[i].Message, reason) {
				return nil
			}
		}
		return fmt.Errorf("none of %d begins with %s", len(events.Items), reason)
	})
}

// why asks as a user with the rights of the example.
func (w *world) why(t *testing.T, service string, code int, texts ...string) {
	t.Helper()
	w.whyAs(t, "viewer", service, code, texts...)
}

func (w *world) whyAs(t *testing.T, user, service string, code int, texts ...string) {
	t.Helper()
	command := exec.CommandContext(w.Ctx, simulation.Plugin(t), "why", "service/"+service, "-n", simulation.Namespace, "--kubeconfig="+w.ControlPlane.Kubeconfig(), "--as="+user)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	_ = command.Run() // judged by the exit code
	if got := command.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d of why service/%s, want %d:\n%s", got, service, code, &out)
	}
	for _, text := range texts {
		if !strings.Contains(out.String(), text) {
			t.Errorf("why service/%s does not say %q:\n%s", service, text, &out)
		}
	}
}
