// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
)

// Claims, Services, BGPPeers, lost nodes and changes before the start are as the document says,
// with each of their fields.
func TestKindsAreAsDocumented(t *testing.T) {
	t.Parallel()
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "cmd/kubectl-berth/console/api/openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	described := newDocument(t, text)
	handler := api.New(api.Options{Register: fill()})
	for _, path := range []string{
		"/summary", "/claims", "/claims?x=y", "/claims/shop/web", "/claims/shop/web?limit=1", "/claims/shop/none", "/services", "/services?x=y", "/bgppeers", "/bgppeers?x=y", "/nodes",
		"/changes", "/addresses", "/addresses/10.0.70.3",
	} {
		r := httptest.NewRequest(http.MethodGet, prefix+path, nil)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(access.With(t.Context(), register.Everything)))
		if err := described.check(r, &answer{status: w.Code, header: w.Header(), body: w.Body.Bytes()}); err != nil {
			t.Errorf("GET %s: %v\n%s", path, err, w.Body)
		}
	}
}

// fill returns a register with objects that have all fields.
func fill() *register.Register {
	r := register.New()
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", ResourceVersion: "7"}
	}
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	var rows []*register.Row
	for _, ip := range []*v1alpha1.FloatingIP{
		{ObjectMeta: meta("", "10.0.70.2"), Spec: v1alpha1.FloatingIPSpec{Pool: "web", Owner: &v1alpha1.Owner{Kind: "IPClaim", Namespace: "shop", Name: "web"}, Pod: &v1alpha1.PodReference{Name: "web-0"}, Node: "node1", Since: &now}},
		{ObjectMeta: meta("", "10.0.70.3"), Spec: v1alpha1.FloatingIPSpec{Pool: "web", Owner: &v1alpha1.Owner{Kind: "Service", Namespace: "shop", Name: "front"}, Service: &v1alpha1.ServiceReference{Name: "front"}, Since: &now}},
		{ObjectMeta: meta("", "10.0.70.4"), Spec: v1alpha1.FloatingIPSpec{Pool: "web", Owner: &v1alpha1.Owner{Kind: "IPClaim", Namespace: "shop", Name: "web"}, LastPod: "web-1", ReleasePolicy: v1alpha1.ReleaseRetain, Since: &now}},
	} {
		ip.Spec.Address = ip.Name
		row, _ := register.RowOf(ip)
		rows = append(rows, row)
	}
	r.ReplaceFloatingIPs(rows)
	claim := &v1alpha1.IPClaim{ObjectMeta: meta("shop", "web"), Spec: v1alpha1.IPClaimSpec{Size: 1, Pools: []string{"web"}}}
	claim.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ClaimReady, Status: metav1.ConditionFalse, Reason: "NoAddress", Message: "no pool has one"}, {Type: v1alpha1.ClaimOversized, Status: metav1.ConditionTrue},
	}
	r.Objects.Claims.Put(claim)
	r.Objects.Assignments.Put(&v1alpha1.NodeAssignment{
		ObjectMeta: meta("", "node1"), Spec: v1alpha1.NodeAssignmentSpec{Addresses: []v1alpha1.AssignedAddress{{Address: "10.0.70.3", Use: v1alpha1.UseService}}},
		Status: v1alpha1.NodeAssignmentStatus{Refused: []v1alpha1.RefusedAddress{{Address: "10.0.70.3", Message: "a host has it"}}},
	})
	r.Objects.Peers.Put(&v1alpha1.BGPPeer{ObjectMeta: meta("", "rack"), Spec: v1alpha1.BGPPeerSpec{LocalASN: 65200}})
	r.Objects.Nodes.Replace([]*register.Node{{Name: "node1", Ready: "False", Lost: true}})
	return r
}
