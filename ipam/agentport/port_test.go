// SPDX-License-Identifier: Apache-2.0

package agentport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
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
	var heard heard
	ports := heard.serve(t, `{"control":true,"host":true,"agent":false,"addresses":[{"address":"10.0.70.5","macs":["02:00:00:00:00:01"]}]}`, http.StatusOK)
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	got, err := ports.Witness(t.Context(), agent, WitnessQuestion{
		Node: "node1", Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}, Controls: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		VLAN: 70, Gateways: []netip.Addr{netip.MustParseAddr("10.0.70.1")}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Testimony{Control: true, Host: true, Addresses: []Answered{{netip.MustParseAddr("10.0.70.5"), []string{"02:00:00:00:00:01"}}}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("Witness() (-want +got):\n%s", diff)
	}
	if want := "GET Bearer secret /api/v1/namespaces/berth-system/pods/https:berth-agent-2:/proxy/v1/witness?address=10.0.70.5&control=10.0.0.2&gateway=10.0.70.1&host=10.0.0.1&host=2001%3Adb8%3A%3A1&node=node1&vlan=70"; heard.asked != want {
		t.Errorf("asked %s\nwant  %s", heard.asked, want)
	}
	if heard.token != "/api/v1/namespaces/berth-system/serviceaccounts/berth-diagnosis/token for [agent.berth.dev/node2]" {
		t.Errorf("the token is %s", heard.token)
	}
}

// A person's word goes to the agent with a token of the operators' account.
func TestTakeOver(t *testing.T) {
	var heard heard
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	if err := heard.serve(t, "", http.StatusOK).TakeOver(t.Context(), agent, netip.MustParseAddr("10.0.70.5")); err != nil {
		t.Error(err)
	}
	if want := "POST Bearer secret /api/v1/namespaces/berth-system/pods/https:berth-agent-2:/proxy/v1/take-over?address=10.0.70.5"; heard.asked != want {
		t.Errorf("asked %s\nwant  %s", heard.asked, want)
	}
	if heard.token != "/api/v1/namespaces/berth-system/serviceaccounts/berth-failover-operator/token for [agent.berth.dev/node2]" {
		t.Errorf("the token is %s", heard.token)
	}
	err := heard.serve(t, "node node2 does not wait", http.StatusUnprocessableEntity).TakeOver(t.Context(), agent, netip.MustParseAddr("10.0.70.5"))
	if err == nil || err.Error() != "the agent of node node2 answers in pod berth-agent-2: node node2 does not wait" {
		t.Errorf("TakeOver() = %v", err)
	}
}

// A program is asked with a token of the account and for the audience of the question, and says itself why it does not answer.
func TestAsk(t *testing.T) {
	var heard heard
	question := Question{
		Method: http.MethodPost, Path: "/v1/resume", Query: url.Values{"now": {"true"}}, Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-failover-1"}},
		Of: "berth-failover", Account: "berth-failover-operator", Audience: "failover.berth.dev",
	}
	ports := heard.serve(t, "{}", http.StatusOK)
	if answer, err := ports.Ask(t.Context(), question); err != nil || string(answer) != "{}" {
		t.Errorf("Ask() = %s, %v", answer, err)
	}
	if want := "POST Bearer secret /api/v1/namespaces/berth-system/pods/https:berth-failover-1:/proxy/v1/resume?now=true"; heard.asked != want {
		t.Errorf("asked %s\nwant  %s", heard.asked, want)
	}
	if heard.token != "/api/v1/namespaces/berth-system/serviceaccounts/berth-failover-operator/token for [failover.berth.dev]" {
		t.Errorf("the token is %s", heard.token)
	}
	ports = heard.serve(t, "this replica does not lead", http.StatusConflict)
	if _, err := ports.Ask(t.Context(), question); err == nil || err.Error() != "berth-failover answers in pod berth-failover-1: this replica does not lead" {
		t.Errorf("Ask() = %v", err)
	}
}

// heard is what an API server was asked for.
type heard struct{ token, asked string }

// serve returns Ports with an API server behind whose proxy a program gives an answer.
func (h *heard) serve(t *testing.T, answer string, code int) *Ports {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/token") {
			w.Header().Set("Content-Type", "application/json")
			request := authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}}
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
				t.Error(err)
			}
			h.token = fmt.Sprint(r.URL.Path, " for ", request.Spec.Audiences)
			request.Status.Token = "secret"
			if err := json.NewEncoder(w).Encode(request); err != nil {
				t.Error(err)
			}
			return
		}
		h.asked = r.Method + " " + r.Header.Get("Berth-Authorization") + " " + r.URL.Path + "?" + r.URL.Query().Encode()
		if code != http.StatusOK {
			http.Error(w, answer, code)
			return
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	return &Ports{Kube: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}), Namespace: "berth-system"}
}
