// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// gateways is as much of the Gateway API as the test needs.
const gateways = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "gateways.gateway.networking.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
"spec": {"group": "gateway.networking.k8s.io", "scope": "Namespaced", "names": {"kind": "Gateway", "plural": "gateways", "singular": "gateway"},
"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`

// kube-proxy has each node answer for the addresses that a Service names. So a Service, or a
// Gateway, may name addresses of pools only where its writer may assign them.
func TestAddressesOfPoolsElsewhere(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	crd := &unstructured.Unstructured{}
	if err := errors.Join(crd.UnmarshalJSON([]byte(gateways)), deploy.Apply(w.Ctx, w.Config, []*unstructured.Unstructured{crd})); err != nil {
		t.Fatal(err)
	}
	four, six := simulation.NewPool("four", "10.0.70.9"), simulation.NewPool("six", "2001:db8:70::9-2001:db8:70:1::1:9")
	four.Spec.Ranges = []string{"10.0.70.9-10.0.70.100", "10.0.70.128/25"}
	four.Spec.Exclude = []string{"10.0.70.50-10.0.70.59", "10.0.70.60"}
	six.Spec.Subnet, six.Spec.Gateway = "2001:db8:70::/48", ""
	for _, pool := range []*v1alpha1.IPPool{four, six} {
		if _, err := w.Berth.IPPools.Create(w.Ctx, pool, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "services"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "services/status"}, Verbs: []string{"*"}},
		{APIGroups: []string{"gateway.networking.k8s.io"}, Resources: []string{"gateways"}, Verbs: []string{"*"}},
	}}
	assigns := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "assigns"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.SchemeGroupVersion.Group}, Resources: []string{"ippools"}, Verbs: []string{"assign"}, ResourceNames: []string{"four"}},
	}}
	for _, r := range []*rbacv1.ClusterRole{role, assigns} {
		if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.Bind("services", "tenant")
	w.Bind("services", "metallb")
	w.Bind("assigns", "metallb")
	as := func(user string) *rest.Config {
		config := rest.CopyConfig(w.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		return config
	}
	tenant, metallb := kubernetes.NewForConfigOrDie(as("tenant")), kubernetes.NewForConfigOrDie(as("metallb"))
	service := func(edits ...func(*v1.Service)) *v1.Service {
		s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default"}, Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, Ports: []v1.ServicePort{{Port: 80}}}}
		for _, edit := range edits {
			edit(s)
		}
		return s
	}
	external := func(addresses ...string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.ExternalIPs = addresses }
	}
	asks := func(address string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.LoadBalancerIP = address }
	}
	class := func(class string) func(*v1.Service) {
		return func(s *v1.Service) { s.Spec.LoadBalancerClass = &class }
	}
	create := func(kube kubernetes.Interface, s *v1.Service) error {
		_, err := kube.CoreV1().Services(s.Namespace).Create(w.Ctx, s, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	refused := func(err error, text string) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), text)
	}
	// The API server takes a moment to enforce a policy that was just made, and to know the kind of
	// its parameters.
	for _, address := range []string{"10.0.70.9", "2001:db8:70::9"} {
		w.Eventually("wait for the policy to be enforced", func() error {
			err := create(tenant, service(external(address)))
			if err == nil {
				return errors.New("a tenant takes " + address)
			}
			if refused(err, "of IPPool") {
				return nil
			}
			return err
		})
	}
	const four4, plain = "of IPPool four", "write each address in its usual form"
	for _, test := range []struct {
		name string
		edit func(*v1.Service)
		want string // empty: allowed
	}{
		{"none", external(), ""},
		{"first of a range", external("10.0.70.9"), "10.0.70.9 is " + four4},
		{"last of a range, beside another", external("192.0.2.1", "10.0.70.100"), "10.0.70.100 is " + four4},
		{"before the range", external("10.0.70.8"), ""},
		{"after the range", external("10.0.70.101"), ""},
		{"in a CIDR", external("10.0.70.200"), four4},
		{"excluded", external("10.0.70.50", "10.0.70.59", "10.0.70.60"), ""},
		{"after the excluded", external("10.0.70.61"), four4},
		{"outside", external("10.0.71.9", "2001:db8:71::9"), ""},
		{"IPv6", external("2001:db8:70::9"), "2001:db8:70::9 is of IPPool six"},
		{"IPv6 in the middle", external("2001:db8:70:0:ffff::"), "of IPPool six"},
		{"IPv6 last", external("2001:db8:70:1::1:9"), "of IPPool six"},
		{"IPv6 before", external("2001:db8:70::8"), ""},
		{"IPv6 after", external("2001:db8:70:1::1:a"), ""},
		{"IPv6 after, with more groups", external("2001:db8:70:2::"), ""},
		{"asks another implementation", asks("10.0.70.9"), four4},
		{"asks another class", func(s *v1.Service) { asks("10.0.70.9")(s); class("example.org/lb")(s) }, four4},
		{"asks Berth", func(s *v1.Service) { asks("10.0.70.9")(s); class(v1alpha1.LoadBalancerClass)(s) }, ""},
		{"is Berth's, and has another way", func(s *v1.Service) { external("10.0.70.9")(s); class(v1alpha1.LoadBalancerClass)(s) }, four4},
		{"long IPv6", asks("2001:0DB8:0070:0:0:0:0:9"), "of IPPool six"},
		{"IPv4 in IPv6", asks("::ffff:10.0.70.9"), plain},
		{"zeros", asks("010.000.070.009"), plain},
		{"a list", asks("10.0.70.9,10.0.70.10"), plain},
		{"a zone", asks("2001:db8:70::9%eth0"), plain},
		{"digits of another base", asks("0x0a.0.70.9"), plain},
		{"a list with a name", asks("10.0.70.9,example.org"), plain},
		{"a name that begins so", asks("10.0.70.9.example.org"), ""},
	} {
		if err := create(tenant, service(test.edit)); test.want == "" && err != nil || test.want != "" && !refused(err, test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	if err := create(metallb, service(external("10.0.70.9"))); err != nil {
		t.Errorf("a user with the right to assign the pool: %v", err)
	}
	if err := create(metallb, service(external("2001:db8:70::9"))); !refused(err, "of IPPool six") {
		t.Errorf("a user with the right to assign another pool: %v", err)
	}

	// A Service that names an address already, as from before the pool, can be changed otherwise.
	s, err := metallb.CoreV1().Services("default").Create(w.Ctx, service(external("10.0.70.9")), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Labels = map[string]string{"a": "b"}
	if s, err = tenant.CoreV1().Services("default").Update(w.Ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("another change of a Service that has the address: %v", err)
	}
	more := s.DeepCopy()
	more.Spec.ExternalIPs = append(more.Spec.ExternalIPs, "10.0.70.10")
	if _, err := tenant.CoreV1().Services("default").Update(w.Ctx, more, metav1.UpdateOptions{}); !refused(err, "10.0.70.10 is "+four4) {
		t.Errorf("one more address: %v", err)
	}
	// Its class is free again where it is no LoadBalancer: what it asked Berth it must not ask others.
	berths, err := tenant.CoreV1().Services("default").Create(w.Ctx, service(asks("10.0.70.9"), class(v1alpha1.LoadBalancerClass), func(s *v1.Service) { s.Name = "berths" }), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	berths.Spec.Type, berths.Spec.LoadBalancerClass, berths.Spec.AllocateLoadBalancerNodePorts = v1.ServiceTypeClusterIP, nil, nil
	if _, err := tenant.CoreV1().Services("default").Update(w.Ctx, berths, metav1.UpdateOptions{}); !refused(err, four4) {
		t.Errorf("what Berth was asked for is left to another class: %v", err)
	}
	status := s.DeepCopy()
	status.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{Hostname: "a.b"}, {IP: "10.0.70.11"}}
	if _, err := tenant.CoreV1().Services("default").UpdateStatus(w.Ctx, status, metav1.UpdateOptions{}); !refused(err, "10.0.70.11 is "+four4) {
		t.Errorf("an address in the status: %v", err)
	}
	if status, err = metallb.CoreV1().Services("default").UpdateStatus(w.Ctx, status, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("an address in the status, of a user with the right to assign: %v", err)
	}
	// What a Service was given is taken back: its tenant may not write it where it stays.
	status.Spec.ExternalIPs = append(status.Spec.ExternalIPs, "10.0.70.11")
	if _, err := tenant.CoreV1().Services("default").Update(w.Ctx, status, metav1.UpdateOptions{}); !refused(err, "10.0.70.11 is "+four4) {
		t.Errorf("an address of its status among its own: %v", err)
	}

	gateway := func(user string, addresses ...any) error {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": map[string]any{"name": "shop", "namespace": "default"},
			"spec": map[string]any{"addresses": addresses},
		}}
		_, err := dynamic.NewForConfigOrDie(as(user)).Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}).
			Namespace("default").Create(w.Ctx, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	ip := func(value string) any { return map[string]any{"type": "IPAddress", "value": value} }
	w.Eventually("wait for Gateways", func() error { return gateway("tenant", ip("192.0.2.1")) })
	if err := gateway("tenant", map[string]any{"type": "Hostname", "value": "10.example.org"}, map[string]any{"type": "example.org/Name", "value": "projects/p1/addresses/a_1"}, map[string]any{"type": "IPAddress"}); err != nil {
		t.Errorf("a Gateway with a name, and any address: %v", err)
	}
	if err := gateway("tenant", ip("192.0.2.1"), map[string]any{"value": "10.0.70.9"}); !refused(err, "10.0.70.9 is "+four4) {
		t.Errorf("a Gateway with an address of a pool: %v", err)
	}
	if err := gateway("tenant", ip("::ffff:10.0.70.9")); !refused(err, plain) {
		t.Errorf("a Gateway with an address in another form: %v", err)
	}
	if err := gateway("metallb", ip("10.0.70.9")); err != nil {
		t.Errorf("a Gateway of a user with the right to assign: %v", err)
	}
}
