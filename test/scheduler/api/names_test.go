// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/names"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// dnsEndpoints is the kind of ExternalDNS, with what its definition demands of the fields that
// Berth writes.
const dnsEndpoints = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "dnsendpoints.externaldns.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
"spec": {"group": "externaldns.k8s.io", "scope": "Namespaced", "names": {"kind": "DNSEndpoint", "plural": "dnsendpoints", "singular": "dnsendpoint"},
"versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
"status": {"type": "object", "properties": {"observedGeneration": {"type": "integer"}}},
"spec": {"type": "object", "properties": {"endpoints": {"type": "array", "maxItems": 1000, "items": {"type": "object", "required": ["dnsName", "recordType"],
"x-kubernetes-validations": [{"rule": "self.recordType != 'PTR' || self.dnsName.endsWith('.in-addr.arpa') || self.dnsName.endsWith('.ip6.arpa')"}],
"properties": {"dnsName": {"type": "string", "maxLength": 253, "pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\\.)*[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
"recordType": {"type": "string", "enum": ["A", "AAAA", "PTR"]},
"targets": {"type": "array", "maxItems": 1000, "items": {"type": "string", "minLength": 1, "maxLength": 4096}}}}}}}}}}}]}}`

// The addresses of a pool have names as long as somebody has them, in objects of ExternalDNS' kind,
// with the rights of the chart's value and no others. Without the kind an event says so.
func TestNames(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	roles := slices.DeleteFunc(w.Chart(map[string]any{"controller": map[string]any{"names": true}}), func(o *unstructured.Unstructured) bool {
		return o.GetKind() != "Role" || o.GetName() != "berth-controller"
	})
	if err := deploy.Apply(w.Ctx, w.Config, roles); err != nil {
		t.Fatal(err)
	}
	for access, want := range map[string]bool{
		"create externaldns.k8s.io/dnsendpoints " + w.System + "/": true, "create externaldns.k8s.io/dnsendpoints default/": false,
		"list externaldns.k8s.io/dnsendpoints": false, "patch externaldns.k8s.io/dnsendpoints/status " + w.System + "/": false,
	} {
		if got := w.Allowed("berth-controller", access); got != want {
			t.Errorf("the controller may %s: %v, want %v", access, got, want)
		}
	}
	w.Nodes(1)
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller("--names", "--leader-elect-resource-namespace="+w.System)
	w.Pool("web", "10.0.70.10-10.0.70.19", func(pool *v1alpha1.IPPool) { pool.Spec.DNSDomain = "pods.example.com" })
	w.Pool("other", "10.0.70.20")
	w.Create(simulation.NewPod("db", simulation.FromPools("web"), simulation.Policy(v1alpha1.ReleaseNever)),
		simulation.NewPod("one", simulation.FromPools("web")), simulation.NewPod("two", simulation.FromPools("other")))
	w.Bound("db", "one", "two")
	w.Eventually("wait for the pool's event", func() error { return w.EventOf("web", names.EventNoNames, "Install ExternalDNS") })

	crd := &unstructured.Unstructured{}
	if err := errors.Join(crd.UnmarshalJSON([]byte(dnsEndpoints)), deploy.Apply(w.Ctx, w.Config, []*unstructured.Unstructured{crd})); err != nil {
		t.Fatal(err)
	}
	objects := w.Dynamic.Resource(schema.GroupVersionResource{Group: "externaldns.k8s.io", Version: "v1alpha1", Resource: "dnsendpoints"}).Namespace(w.System)
	// see writes each status, as ExternalDNS does, and returns the records.
	see := func() (records []string, err error) {
		list, err := objects.List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			object := &list.Items[i]
			endpoints, _, err := unstructured.NestedSlice(object.Object, "spec", "endpoints")
			if err != nil {
				return nil, err
			}
			for _, endpoint := range endpoints {
				one := endpoint.(map[string]any)
				records = append(records, fmt.Sprint(one["dnsName"], " ", one["recordType"], " ", one["targets"]))
			}
			object.Object["status"] = map[string]any{"observedGeneration": object.GetGeneration()}
			if _, err := objects.UpdateStatus(w.Ctx, object, metav1.UpdateOptions{}); err != nil {
				return nil, err
			}
		}
		slices.Sort(records)
		return records, nil
	}
	are := func(what, domain string, pods map[string]string) {
		t.Helper()
		var want []string
		for pod, addr := range pods {
			name := pod + ".default." + domain
			digits := strings.Split(addr, ".")
			slices.Reverse(digits)
			want = append(want, name+" A ["+addr+"]", strings.Join(digits, ".")+".in-addr.arpa PTR ["+name+"]")
		}
		slices.Sort(want)
		w.Eventually(what, func() error {
			got, err := see()
			if err == nil && !slices.Equal(got, want) {
				err = errors.New(cmp.Diff(want, got))
			}
			return err
		})
	}
	all := map[string]string{"db": w.Address("db"), "one": w.Address("one")}
	are("wait for the names", "pods.example.com", all)
	w.Delete("db", "one")
	delete(all, "one")
	are("wait until the address that is kept is alone", "pods.example.com", all)
	simulation.Patch(w, w.Berth.IPPools, "web", `{"spec":{"dnsDomain":%q}}`, "example.org")
	are("wait for the other domain", "example.org", all)
	if err := w.Berth.FloatingIPs.Delete(w.Ctx, all["db"], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	are("wait until no name is left", "example.org", nil)
}
