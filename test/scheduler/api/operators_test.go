// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// An operator (manifests/examples/operator-rbac.yaml) takes no address from its pod, gives none to
// another owner and changes no record that nodes follow. An administrator may.
func TestOperators(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	w.Grant("operator-rbac.yaml", "operator")
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "operator", Groups: []string{"system:authenticated"}}
	operator, err := client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	owner := func(kind, namespace, name string) *v1alpha1.Owner {
		versions := map[string]string{"IPClaim": v1alpha1.SchemeGroupVersion.String(), "Deployment": "apps/v1"}
		return &v1alpha1.Owner{APIVersion: versions[kind], Kind: kind, Namespace: namespace, NamespaceUID: "u", Name: name, UID: "u"}
	}
	now := metav1.Now().Rfc3339Copy()
	create := func(address string, spec v1alpha1.FloatingIPSpec) {
		t.Helper()
		spec.Address = address
		if _, err := w.Berth.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const held, claimed, cooling = "10.0.70.2", "10.0.70.3", "10.0.70.4"
	create(held, v1alpha1.FloatingIPSpec{
		Owner: owner("Deployment", "shop", "web"), Pod: &v1alpha1.PodReference{Name: "web-x", UID: "x"}, Node: "node1", Pool: "web", Since: &now,
		Network: &v1alpha1.Network{Subnet: "10.0.70.0/24", VLAN: 7}, ReleasePolicy: v1alpha1.ReleaseRetain, RetainFor: &metav1.Duration{Duration: time.Hour},
	})
	create(claimed, v1alpha1.FloatingIPSpec{Owner: owner("IPClaim", "shop", "a"), Pool: "web", LastPod: "y"})
	create(cooling, v1alpha1.FloatingIPSpec{Pool: "web", ReleasedAt: &now, LastPod: "z"})
	update := func(api *client.Client, address string, edit func(*v1alpha1.FloatingIPSpec)) error {
		t.Helper()
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		edit(&ip.Spec)
		_, err = api.FloatingIPs.Update(w.Ctx, ip, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	forget := func(s *v1alpha1.FloatingIPSpec) { s.Pod = nil }
	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		if update(operator, held, forget) == nil {
			return fmt.Errorf("an operator can take an address from its pod")
		}
		return nil
	})

	const whose, fields = "an operator may not change whose address it is: ", "of the spec an operator may change reserved, releasePolicy, retainFor, keepOnScaleDown and keepUntil only"
	for _, test := range []struct {
		name, address string
		edit          func(*v1alpha1.FloatingIPSpec)
		want          string // empty: allowed
	}{
		{"takes it from its pod", held, forget, "an operator may not change which pod holds the address: it is pod shop/web-x; delete that pod, and"},
		{"gives it to another pod", held, func(s *v1alpha1.FloatingIPSpec) { s.Pod.UID = "other" }, "which pod holds the address: it is pod shop/web-x"},
		{"gives a kept one to a pod", claimed, func(s *v1alpha1.FloatingIPSpec) { s.Pod = &v1alpha1.PodReference{Name: "p", UID: "p"} }, "which pod holds the address: it is none"},
		{"gives it to another owner", held, func(s *v1alpha1.FloatingIPSpec) { s.Owner.Name = "other" }, whose + "it is of Deployment shop/web; an address without a pod can be deleted"},
		{"takes it from its owner", claimed, func(s *v1alpha1.FloatingIPSpec) { s.Owner = nil }, whose + "it is of IPClaim shop/a; "},
		{"gives it to a claim", held, func(s *v1alpha1.FloatingIPSpec) { s.Owner = owner("IPClaim", "shop", "a") }, whose},
		{"gives a claim's to a workload", claimed, func(s *v1alpha1.FloatingIPSpec) { s.Owner = owner("Deployment", "shop", "web") }, whose},
		{"moves it to another namespace", claimed, func(s *v1alpha1.FloatingIPSpec) { s.Owner.Namespace = "bank" }, whose},
		{"moves it to another namespace of the name", claimed, func(s *v1alpha1.FloatingIPSpec) { s.Owner.NamespaceUID = "other" }, whose},
		{"gives one at rest to an owner", cooling, func(s *v1alpha1.FloatingIPSpec) { s.Owner, s.ReleasedAt = owner("IPClaim", "shop", "a"), nil }, whose + "it has no owner"},
		{"moves its pod to another VLAN", held, func(s *v1alpha1.FloatingIPSpec) { s.Network.VLAN = 8 }, fields},
		{"moves its pod to another node", held, func(s *v1alpha1.FloatingIPSpec) { s.Node = "node2" }, fields},
		{"ends a rest by hand", cooling, func(s *v1alpha1.FloatingIPSpec) { s.ReleasedAt = nil }, fields},
		{"says which node carried it", cooling, func(s *v1alpha1.FloatingIPSpec) {
			s.LastNode = &v1alpha1.NodeReference{Name: "node2", UID: "2"}
		}, fields},
		{"lets another namespace have it while it rests", cooling, func(s *v1alpha1.FloatingIPSpec) {
			s.LastNode, s.LastOwner = &v1alpha1.NodeReference{Name: "node2", UID: "2"}, owner("IPClaim", "bank", "a")
		}, fields},

		{"moves it to another claim", claimed, func(s *v1alpha1.FloatingIPSpec) { s.Owner.Name, s.Owner.UID = "b", "v" }, ""},
		{"reserves it", held, func(s *v1alpha1.FloatingIPSpec) { s.Reserved = true }, ""},
		{"changes for how long it is kept", held, func(s *v1alpha1.FloatingIPSpec) {
			s.ReleasePolicy, s.RetainFor, s.KeepOnScaleDown = v1alpha1.ReleaseRetain, nil, true
		}, ""},
	} {
		err := update(operator, test.address, test.edit)
		if test.want == "" && err != nil || test.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("an operator %s: %v, want %q", test.name, err, test.want)
		}
		if err := update(w.Berth, test.address, test.edit); err != nil && !strings.Contains(err.Error(), "'held-addresses.berth.dev'") {
			t.Errorf("an administrator %s: %v", test.name, err)
		}
	}

	const address = "10.0.70.9"
	for _, test := range []struct {
		spec    v1alpha1.FloatingIPSpec
		allowed bool
	}{
		{v1alpha1.FloatingIPSpec{Reserved: true, Pool: "web"}, true},
		{v1alpha1.FloatingIPSpec{}, false},
		{v1alpha1.FloatingIPSpec{Reserved: true, Owner: owner("Deployment", "shop", "web")}, false},
		{v1alpha1.FloatingIPSpec{Reserved: true, Owner: owner("Deployment", "shop", "web"), Pod: &v1alpha1.PodReference{Name: "p", UID: "p"}}, false},
	} {
		test.spec.Address = address
		_, err := operator.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: test.spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if test.allowed != (err == nil) || err != nil && !strings.Contains(err.Error(), "an operator may create only reserved addresses") {
			t.Errorf("an operator creates %+v: %v", test.spec, err)
		}
	}
	if err := operator.FloatingIPs.Delete(w.Ctx, claimed, metav1.DeleteOptions{}); err != nil {
		t.Errorf("an operator frees a kept address: %v", err)
	}
}
