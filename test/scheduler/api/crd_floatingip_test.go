// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The lock that makes a duplicate impossible is the object's name: there must be
// one name for an address.
func TestFloatingIPValidation(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	const (
		name6 = "2001-0db8-0070-0000-0000-0000-0000-0010"
		rule  = "metadata.name must be spec.address itself for IPv4, and its eight four-digit groups joined by dashes for IPv6"
		form  = "must be an IP address in canonical form, such as 10.0.70.2 or 2001:db8::1"
	)
	tests := []struct {
		what, name, address string
		policy              v1alpha1.ReleasePolicy
		want                string // in the message; empty: accepted
	}{
		{"IPv4", "10.0.70.2", "10.0.70.2", "Retain", ""},
		{"IPv6", name6, "2001:db8:70::10", "Never", ""},
		{"default policy", "10.0.70.3", "10.0.70.3", "", ""},
		{"another address", "10.0.70.4", "10.0.70.5", "", rule},
		{"a name of its own", "web", "10.0.70.4", "", rule},
		{"a name with a dash", "web-0", "10.0.70.4", "", rule},
		{"another IPv6 address", name6, "2001:db8:70::11", "", rule},
		{"a short IPv6 name", "2001-db8-70--11", "2001:db8:70::11", "", rule},
		{"an IPv6 name without leading zeros", "2001-db8-70-0-0-0-0-11", "2001:db8:70::11", "", rule},
		{"an IPv4 name with dashes", "10-0-70-4", "10.0.70.4", "", rule},
		{"IPv4 under an IPv6 name", "0000-0000-0000-0000-0000-ffff-0a00-4604", "10.0.70.4", "", rule},
		{"IPv6 in upper case", name6, "2001:DB8:70::10", "", form},
		{"IPv6 written out", name6, "2001:db8:70:0:0:0:0:10", "", form},
		{"IPv4 in IPv6", "0000-0000-0000-0000-0000-ffff-0a00-4604", "::ffff:10.0.70.4", "", form},
		{"IPv4 with leading zeros", "10.0.70.04", "10.0.70.04", "", form},
		{"no address", "10.0.70.4", "", "", form},
		{"a prefix", "10.0.70.4", "10.0.70.4/24", "", form},
		{"an unknown policy", "10.0.70.4", "10.0.70.4", "Forever", `supported values: "PodDeleted", "Retain", "Never"`},
	}
	for _, tc := range tests {
		t.Run(tc.what, func(t *testing.T) {
			w := w.On(t)
			_, err := w.Berth.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{
				ObjectMeta: metav1.ObjectMeta{Name: tc.name},
				Spec:       v1alpha1.FloatingIPSpec{Address: tc.address, ReleasePolicy: tc.policy},
			}, metav1.CreateOptions{})
			checkAnswer(t, err, tc.want)
		})
	}
	t.Run("the address is changed", func(t *testing.T) {
		w := w.On(t)
		_, err := w.Berth.FloatingIPs.Patch(w.Ctx, name6, types.MergePatchType, []byte(`{"spec":{"address":"2001:db8:70::12"}}`), metav1.PatchOptions{})
		checkAnswer(t, err, "is immutable: delete this FloatingIP and create another")
	})
	t.Run("kept without a pod, but with one", func(t *testing.T) {
		w := w.On(t)
		_, err := w.Berth.FloatingIPs.Patch(w.Ctx, "10.0.70.3", types.MergePatchType, []byte(`{"spec":{"keepUntil":"2030-01-02T03:04:05Z"}}`), metav1.PatchOptions{})
		checkAnswer(t, err, "")
		_, err = w.Berth.FloatingIPs.Patch(w.Ctx, "10.0.70.3", types.MergePatchType, []byte(`{"spec":{"pod":{"name":"web","uid":"a"}}}`), metav1.PatchOptions{})
		checkAnswer(t, err, "says how long the address is kept without a pod: leave it out while a pod has the address")
	})
	t.Run("rests for a last node", func(t *testing.T) {
		w := w.On(t)
		for _, tc := range []struct{ spec, want string }{
			{`"lastNode":{"name":"node1"}`, "spec.lastNode.uid"},
			{`"lastNode":{"name":"node1","uid":"1"}`, "set spec.owner, or set spec.releasedAt to the time at which the address was freed"},
			{`"lastNode":{"name":"","uid":"1"}`, "spec.lastNode.name"},
			{`"releasedAt":"2030-01-02t03:04:05z"`, "spec.releasedAt"},
			{`"retainFor":"forever"`, "spec.retainFor"},
			{`"lastOwner":{"apiVersion":"v1","kind":"Pod","namespace":"shop","name":"a","uid":"a"}`, "says which owner had an address that is in cooldown for spec.lastNode"},
			{`"lastNode":{"name":"node1","uid":"1"},"releasedAt":"2030-01-02T03:04:05Z","lastOwner":{"apiVersion":"v1","kind":"Pod","namespace":"shop","name":"a","uid":"a"}`, ""},
		} {
			_, err := w.Berth.FloatingIPs.Patch(w.Ctx, "10.0.70.2", types.MergePatchType, []byte(`{"spec":{`+tc.spec+`}}`), metav1.PatchOptions{})
			checkAnswer(t, err, tc.want)
		}
	})
	t.Run("moves without a pod", func(t *testing.T) {
		w := w.On(t)
		_, err := w.Berth.FloatingIPs.Patch(w.Ctx, "10.0.70.3", types.MergePatchType, []byte(`{"spec":{"twin":{"pod":{"name":"web","uid":"a"},"node":"node2"}}}`), metav1.PatchOptions{})
		checkAnswer(t, err, "is the other pod of a live migration: leave it out while no pod has the address")
	})
	t.Run("the default policy is filled in", func(t *testing.T) {
		w := w.On(t)
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.3", metav1.GetOptions{})
		if err != nil || ip.Spec.ReleasePolicy != v1alpha1.ReleasePodDeleted {
			t.Errorf("%+v (%v)", ip.Spec, err)
		}
	})
	t.Run("the record of writes does not name each field", func(t *testing.T) {
		w := w.On(t)
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.3", metav1.GetOptions{})
		if err != nil || len(ip.ManagedFields) != 1 || ip.ManagedFields[0].FieldsV1.GetRawString() != `{"f:spec":{}}` {
			t.Errorf("managed fields %v (%v)", ip.ManagedFields, err)
		}
	})
	for _, field := range []string{"spec.pool=web", "spec.node=node1"} {
		t.Run("select by "+field, func(t *testing.T) {
			w := w.On(t)
			if _, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{FieldSelector: field}); err != nil {
				t.Error(err)
			}
		})
	}
}

// `kubectl get` answers who has an address, where and since when, and how full a
// pool is.
func TestColumns(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller("--leader-elect=true")
	w.Pool("web", "10.0.70.2-10.0.70.9")
	w.Occupy("web")
	want := map[string]string{
		"Name": "10.0.70.2", "Pool": "web", "Namespace": simulation.Namespace, "Pod": "web-first", "Node": "node1",
		"Owner-Kind": "Pod", "Owner": "web-first", "Policy": "PodDeleted", "Cooling": "<none>", "Reserved": "<none>",
	}
	rows := tableOf(w, "floatingips")
	if len(rows) != 1 {
		t.Fatalf("the table is %v", rows)
	}
	if since := rows[0]["Since"]; since == "" || since == "<unknown>" || since == "<invalid>" {
		t.Errorf("since %q", since)
	}
	delete(rows[0], "Since")
	if diff := cmp.Diff(want, rows[0]); diff != "" {
		t.Errorf("floatingips (-want +got):\n%s", diff)
	}
	wantPool := map[string]string{"Name": "web", "Subnet": "10.0.70.0/24", "Ready": "True", "Capacity": "8", "Allocated": "1", "Retained": "0", "Free": "7"}
	w.Eventually("wait for the pool's row", func() error {
		rows := tableOf(w, "ippools")
		delete(rows[0], "Age")
		if diff := cmp.Diff(wantPool, rows[0]); diff != "" {
			return simulation.DiffError(diff)
		}
		return nil
	})
}

// textOf returns a cell as kubectl prints it.
func textOf(cell any) string {
	if cell == nil {
		return "<none>"
	}
	return fmt.Sprint(cell)
}

// tableOf returns what `kubectl get` prints without -o wide.
func tableOf(w *simulation.World, resource string) []map[string]string {
	w.T.Helper()
	table := &metav1.Table{}
	err := w.Kube.RESTClient().Get().AbsPath("/apis/berth.dev/v1alpha1", resource).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Do(w.Ctx).Into(table)
	if err != nil {
		w.T.Fatal(err)
	}
	var rows []map[string]string
	for _, row := range table.Rows {
		cells := map[string]string{}
		for i, column := range table.ColumnDefinitions {
			if column.Priority == 0 {
				cells[column.Name] = textOf(row.Cells[i])
			}
		}
		rows = append(rows, cells)
	}
	return rows
}
