// SPDX-License-Identifier: Apache-2.0

package agentport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	. "github.com/berth-dev/berth/ipam/agentport"
)

// A question about a node goes to the agent of another one, with a token for that agent only.
func TestWitness(t *testing.T) {
	var audience, asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			request := authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}}
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
				t.Error(err)
			}
			audience = fmt.Sprint(request.Spec.Audiences)
			request.Status.Token = "secret"
			if err := json.NewEncoder(w).Encode(request); err != nil {
				t.Error(err)
			}
			return
		}
		asked = r.Header.Get("Berth-Authorization") + " " + r.URL.Path + "?" + r.URL.Query().Encode()
		fmt.Fprint(w, `{"control":true,"host":true,"agent":false,"addresses":[{"address":"10.0.70.5","macs":["02:00:00:00:00:01"]}]}`)
	}))
	defer server.Close()
	ports := Ports{Kube: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}), Namespace: "berth-system"}
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	got, err := ports.Witness(t.Context(), agent, "node1", []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}, []netip.Addr{netip.MustParseAddr("10.0.70.5")})
	if err != nil {
		t.Fatal(err)
	}
	want := Testimony{Control: true, Host: true, Addresses: []Answered{{netip.MustParseAddr("10.0.70.5"), []string{"02:00:00:00:00:01"}}}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("Witness() (-want +got):\n%s", diff)
	}
	if want := "Bearer secret /api/v1/namespaces/berth-system/pods/https:berth-agent-2:/proxy/v1/witness?address=10.0.70.5&host=10.0.0.1&host=2001%3Adb8%3A%3A1&node=node1"; asked != want {
		t.Errorf("asked %s\nwant  %s", asked, want)
	}
	if audience != "[agent.berth.dev/node2]" {
		t.Errorf("the token is for %s", audience)
	}
}
