// SPDX-License-Identifier: Apache-2.0

package agentport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/inquiry"
	. "github.com/berth-dev/berth/ipam/agentport"
)

// A question about a node goes to the agent of another one, with a token for that agent only.
func TestWitness(t *testing.T) {
	var heard heard
	ports := heard.serve(t, `{"control":true,"host":true,"agent":false,"addresses":[{"address":"10.0.70.5","macs":["02:00:00:00:00:01"]}]}`, http.StatusOK)
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	got, err := ports.Witness(t.Context(), agent, inquiry.WitnessQuestion{
		Node: "node1", Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}, Controls: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		VLAN: 70, Gateways: []netip.Addr{netip.MustParseAddr("10.0.70.1")}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &inquiry.Testimony{Control: true, Host: true, Addresses: []inquiry.AnsweredAddress{{Address: netip.MustParseAddr("10.0.70.5"), MACs: []string{"02:00:00:00:00:01"}}}}
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

// The agent of the node that is asked for is found by its node, and has to be ready.
func TestCarried(t *testing.T) {
	agent := func(name string, ready v1.ConditionStatus) v1.Pod {
		return v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{NodeName: "node2"}, Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}}
	}
	both := []v1.Pod{agent("berth-agent-1", v1.ConditionFalse), agent("berth-agent-2", v1.ConditionTrue)}
	for name, test := range map[string]struct {
		agents    []v1.Pod
		answer    string
		code      int
		want, err string
	}{
		"it carries two":  {both, `{"addresses":[{"address":"10.0.70.5"},{"address":"2001:db8::5"}]}`, http.StatusOK, "[10.0.70.5 2001:db8::5]", ""},
		"it carries none": {both, `{"addresses":[]}`, http.StatusOK, "[]", ""},
		"no ready agent":  {both[:1], "", http.StatusOK, "[]", "node node2 has no ready agent"},
		"no list":         {nil, "", http.StatusOK, "[]", "find the agent of node node2: "},
		"no JSON":         {both, "carries", http.StatusOK, "[]", "ask what node node2 carries: read the agent's answer: "},
		"it fails":        {both, "no records", http.StatusInternalServerError, "[]", "ask what node node2 carries: the agent of node node2 answers in pod berth-agent-2: no records"},
	} {
		t.Run(name, func(t *testing.T) {
			heard := heard{agents: test.agents}
			got, err := heard.serve(t, test.answer, test.code).Carried(t.Context(), "node2")
			if fmt.Sprint(got) != test.want || (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("Carried() = %v, %v, want %s, %s", got, err, test.want, test.err)
			}
			if want := "fieldSelector=spec.nodeName%3Dnode2&labelSelector=app.kubernetes.io%2Fname%3Dberth-agent&resourceVersion=0"; heard.listed != want {
				t.Errorf("listed %s\nwant   %s", heard.listed, want)
			}
			if err == nil && heard.token != "/api/v1/namespaces/berth-system/serviceaccounts/berth-diagnosis/token for [agent.berth.dev/node2]" {
				t.Errorf("the token is %s", heard.token)
			}
		})
	}
}

// ending is a context with a deadline in four seconds, which passes when it is told to.
type ending struct {
	context.Context
	passed chan struct{}
}

func (ending) Deadline() (time.Time, bool) { return time.Now().Add(4 * time.Second), true }
func (e ending) Done() <-chan struct{}     { return e.passed }
func (e ending) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A program that does not answer has had the caller's time, if that is shorter, and the error says
// so.
func TestNoAnswer(t *testing.T) {
	ctx := ending{t.Context(), make(chan struct{})}
	heard := heard{hangs: func() { close(ctx.passed) }}
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	_, err := heard.serve(t, "", http.StatusOK).Agent(agent).Carried(ctx, false)
	if err == nil || err.Error() != "the agent of node node2 does not answer in pod berth-agent-2 within 4s" {
		t.Errorf("Carried() = %v", err)
	}
}

// An error of the API server is not taken for the program's.
func TestErrorOfAPIServer(t *testing.T) {
	heard := heard{}
	ports := heard.serve(t, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"pods \"berth-agent-2\" not found","details":{"name":"berth-agent-2","kind":"pods"}}`, http.StatusNotFound)
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	_, err := ports.Agent(agent).Carried(t.Context(), false)
	const want = "reach the agent of node node2 through the API server (the Role berth-diagnosis in namespace berth-system allows it): pods \"berth-agent-2\" not found"
	if err == nil || err.Error() != want {
		t.Errorf("Carried() = %v\nwant %s", err, want)
	}
}

// A person's word goes to the agent with a token of the operators' account.
func TestTakeOver(t *testing.T) {
	var heard heard
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-2"}, Spec: v1.PodSpec{NodeName: "node2"}}
	if err := heard.serve(t, "", http.StatusOK).Agent(agent).TakeOver(t.Context(), netip.MustParseAddr("10.0.70.5")); err != nil {
		t.Error(err)
	}
	if want := "POST Bearer secret /api/v1/namespaces/berth-system/pods/https:berth-agent-2:/proxy/v1/take-over?address=10.0.70.5"; heard.asked != want {
		t.Errorf("asked %s\nwant  %s", heard.asked, want)
	}
	if heard.token != "/api/v1/namespaces/berth-system/serviceaccounts/berth-failover-operator/token for [agent.berth.dev/node2]" {
		t.Errorf("the token is %s", heard.token)
	}
	err := heard.serve(t, "node node2 does not wait", http.StatusUnprocessableEntity).Agent(agent).TakeOver(t.Context(), netip.MustParseAddr("10.0.70.5"))
	if err == nil || err.Error() != "the agent of node node2 answers in pod berth-agent-2: node node2 does not wait" {
		t.Errorf("TakeOver() = %v", err)
	}
}

// A program is asked with a token of the account and for the audience of the question, and says
// itself why it does not answer.
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
	if heard.body != "" {
		t.Errorf("the question without a body has %q", heard.body)
	}
	question.Body = []byte(`{"reason":"fixed"}`)
	if _, err := ports.Ask(t.Context(), question); err != nil || heard.body != `application/json {"reason":"fixed"}` {
		t.Errorf("Ask() = %v, with the body %q", err, heard.body)
	}
	ports = heard.serve(t, "this replica does not lead", http.StatusConflict)
	if _, err := ports.Ask(t.Context(), question); err == nil || err.Error() != "berth-failover answers in pod berth-failover-1: this replica does not lead" {
		t.Errorf("Ask() = %v", err)
	}
}

// heard is what an API server was asked for.
type heard struct {
	token, asked, listed string
	body                 string // with its type; empty: none
	// agents are the pods that it has; hangs, if given, is called in place of an answer.
	agents []v1.Pod
	hangs  func()
}

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
		if strings.HasSuffix(r.URL.Path, "/pods") {
			h.listed = r.URL.Query().Encode()
			if h.agents == nil {
				http.Error(w, "no right", http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: h.agents}); err != nil {
				t.Error(err)
			}
			return
		}
		if h.hangs != nil {
			h.hangs()
			<-r.Context().Done()
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		h.body = strings.TrimSpace(r.Header.Get("Content-Type") + " " + string(body))
		h.asked = r.Method + " " + r.Header.Get("Berth-Authorization") + " " + r.URL.Path + "?" + r.URL.Query().Encode()
		if code != http.StatusOK {
			if strings.HasPrefix(answer, `{"kind"`) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(code)
				fmt.Fprint(w, answer)
				return
			}
			http.Error(w, answer, code)
			return
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	return &Ports{Kube: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}), Namespace: "berth-system"}
}
