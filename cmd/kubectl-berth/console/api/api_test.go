// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Claims, Services and BGPPeers are answered like the other kinds, within the scope of the asker.
func TestKinds(t *testing.T) {
	r := register.New()
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", ResourceVersion: "7"}
	}
	since := metav1.NewTime(time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC))
	var rows []*register.Row
	for address, owner := range map[string]*v1alpha1.Owner{"10.0.70.2": {Kind: "IPClaim", Namespace: "shop", Name: "web"}, "10.0.70.3": {Kind: "Service", Namespace: "shop", Name: "front"}} {
		ip := &v1alpha1.FloatingIP{ObjectMeta: meta("", address), Spec: v1alpha1.FloatingIPSpec{Address: address, Owner: owner, Since: &since}}
		if owner.Kind == "Service" {
			ip.Spec.Service = &v1alpha1.ServiceReference{Name: owner.Name}
		} else {
			ip.Spec.Pod, ip.Spec.Node = &v1alpha1.PodReference{Name: "web-0"}, "node1"
		}
		row, _ := register.RowOf(ip)
		rows = append(rows, row)
	}
	r.ReplaceFloatingIPs(rows)
	r.Objects.Claims.Replace([]*v1alpha1.IPClaim{{ObjectMeta: meta("shop", "web"), Spec: v1alpha1.IPClaimSpec{Size: 2}}})
	r.Objects.Assignments.Put(&v1alpha1.NodeAssignment{ObjectMeta: meta("", "node1"), Spec: v1alpha1.NodeAssignmentSpec{Addresses: []v1alpha1.AssignedAddress{{Address: "10.0.70.3", Use: v1alpha1.UseService}}}})
	r.Objects.Peers.Put(&v1alpha1.BGPPeer{ObjectMeta: meta("", "rack"), Spec: v1alpha1.BGPPeerSpec{LocalASN: 65200}})
	handler := New(Options{Register: r})
	for _, test := range []struct {
		scope  register.Scope
		path   string
		status int
		want   string
	}{
		{register.Everything, "claims", 200, `{"claims":[{"namespace":"shop","name":"web","spec":{"size":2},"held":1,"retained":0,"reserved":0,"cooling":0,"addresses":[{"address":"10.0.70.2","state":"Held","pod":{"namespace":"shop","name":"web-0"},"node":"node1"`},
		{register.Of("shop"), "claims/shop/web", 200, `{"namespace":"shop","name":"web",`},
		{register.Of("shop"), "claims/shop/web?limit=1", 200, `"uid":"u","resourceVersion":"7"}`},
		{register.Of("bank"), "claims", 200, `{"claims":[]}`},
		{register.Of("bank"), "claims/shop/web", 404, "there is no IPClaim of this name that you may see"},
		{register.Everything, "claims/shop/none", 404, "IPClaim shop/none"},
		{register.Everything, "claims/shop/web?limit=0", 400, "write a number from 1 to 1000"},
		{register.Everything, "claims?q=web", 400, "there is no parameter"},
		{register.Of("shop"), "services", 200, `{"services":[{"namespace":"shop","service":"front","address":"10.0.70.3","state":"Held",`},
		{register.Of("shop"), "services", 200, `"carriers":[{"node":"node1","answers":false}]}]}`},
		{register.Of("bank"), "services", 200, `{"services":[]}`},
		{register.Everything, "bgppeers", 200, `{"peers":[{"name":"rack","uid":"u","resourceVersion":"7","spec":{"localASN":65200,`},
		{register.Of("shop"), "bgppeers", 200, `{"peers":[]}`},
		{register.Everything, "changes?limit=1", 200, `"changes":[{"number":2,"at":"2026-11-26T12:00:00Z","address":"10.0.70.3","after":{"state":"Held"}}]}`},
		{register.Everything, "addresses?sort=colour", 400, `there is no sort \"colour\": write address, since, pod`},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Prefix+test.path, nil).WithContext(access.With(t.Context(), test.scope)))
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s is answered %d %s\nwant %d %s", test.path, w.Code, w.Body, test.status, test.want)
		}
	}
}

// The pages and the API read the same queries.
func TestQueryOf(t *testing.T) {
	q, err := QueryOf(url.Values{"q": {"web"}, "state": {"Held"}, "sort": {"pod"}, "order": {"desc"}, "node": {"n"}})
	if want := (register.Query{Text: "web", State: "Held", Sort: register.ByPod, Descending: true, Node: "n"}); err != nil || q != want {
		t.Errorf("%+v, %v; want %+v", q, err, want)
	}
	for _, wrong := range []url.Values{{"state": {"held"}}, {"sort": {"x"}}, {"order": {"up"}}, {"q": {strings.Repeat("x", 254)}}} {
		if _, err := QueryOf(wrong); StatusOf(err) != http.StatusBadRequest {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}
