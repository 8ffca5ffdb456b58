// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// answering is an agent that answers with what it was asked. It fails for all of the node, pod or
// address "fails".
type answering struct{ asked []string }

var errBroken = errors.New("boom")

func (a *answering) Inspect(_ context.Context, pod string, check bool) (*Inspection, error) {
	if pod == "fails" {
		return nil, errBroken
	}
	return &Inspection{Problems: []string{fmt.Sprintf("%s %v", pod, check)}}, nil
}

func (a *answering) Carried(_ context.Context, hears bool) (*Carried, error) {
	c := &Carried{Addresses: []CarriedAddress{{Address: netip.MustParseAddr("10.0.70.2"), Link: "eth0", MACs: []string{"aa"}}}}
	if hears {
		c.Hears = []Segment{{Link: "eth0", Seconds: 7, Nodes: []Neighbour{{Name: "node2"}}}}
	}
	return c, nil
}

func (a *answering) Witness(_ context.Context, q WitnessQuestion) (*Testimony, error) {
	if q.Node == "fails" {
		return nil, errBroken
	}
	return &Testimony{Control: true, Addresses: []AnsweredAddress{{Address: netip.MustParseAddr("10.0.70.2"), MACs: []string{fmt.Sprint(q)}}}}, nil
}

func (a *answering) TracePolicy(_ context.Context, q PolicyTrace) (string, error) {
	if q.From == "fails" {
		return "", errBroken
	}
	return fmt.Sprintln(q), nil
}

func (a *answering) PreviewPolicies(context.Context) (*PolicyPreview, error) {
	return &PolicyPreview{Enforced: "FloatingIP"}, nil
}

func (a *answering) TakeOver(_ context.Context, addr netip.Addr) error {
	if addr.Is6() {
		return errBroken
	}
	a.asked = append(a.asked, addr.String())
	return nil
}

// ask brings a query to a handler.
func ask(of http.Handler, method, path, query string) (status int, body string) {
	answer := httptest.NewRecorder()
	of.ServeHTTP(answer, httptest.NewRequest(method, path+"?"+query, nil))
	return answer.Code, answer.Body.String()
}

// What a client asks comes to the agent as it was asked, and the answer or the error back as it was
// given.
func TestClient(t *testing.T) {
	agent := &answering{}
	handler := Handler(agent)
	client := Client(func(_ context.Context, method, path string, query url.Values) ([]byte, error) {
		status, body := ask(handler, method, path, query.Encode())
		if status != http.StatusOK {
			return nil, errors.New(strings.TrimSpace(body))
		}
		return []byte(body), nil
	})
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	ctx := t.Context()
	question := WitnessQuestion{Node: "n", Hosts: addrs("10.0.0.1", "2001:db8::1"), Controls: addrs("10.0.0.2"), VLAN: 70, Gateways: addrs("10.0.70.1"), Addresses: addrs("10.0.70.5")}
	trace := PolicyTrace{From: "shop/web", To: "10.0.0.1", Port: 80, Protocol: "TCP"}
	for name, call := range map[string]func(of Inquirer) (any, error){
		"inspect":              func(of Inquirer) (any, error) { return of.Inspect(ctx, "a/b", true) },
		"inspect all":          func(of Inquirer) (any, error) { return of.Inspect(ctx, "", false) },
		"inspect fails":        func(of Inquirer) (any, error) { return of.Inspect(ctx, "fails", false) },
		"carried":              func(of Inquirer) (any, error) { return of.Carried(ctx, false) },
		"carried and hears":    func(of Inquirer) (any, error) { return of.Carried(ctx, true) },
		"witness":              func(of Inquirer) (any, error) { return of.Witness(ctx, question) },
		"witness of addresses": func(of Inquirer) (any, error) { return of.Witness(ctx, WitnessQuestion{Addresses: addrs("::1")}) },
		"witness fails":        func(of Inquirer) (any, error) { return of.Witness(ctx, WitnessQuestion{Node: "fails"}) },
		"trace":                func(of Inquirer) (any, error) { return of.TracePolicy(ctx, trace) },
		"trace fails":          func(of Inquirer) (any, error) { return of.TracePolicy(ctx, PolicyTrace{From: "fails"}) },
		"preview":              func(of Inquirer) (any, error) { return of.PreviewPolicies(ctx) },
		"take over fails":      func(of Inquirer) (any, error) { return nil, of.TakeOver(ctx, netip.IPv6LinkLocalAllNodes()) },
	} {
		want, wantErr := call(agent)
		got, err := call(client)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("%s: %v, want %v", name, err, wantErr)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" && err == nil {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if err := client.TakeOver(ctx, netip.MustParseAddr("10.0.70.5")); err != nil || !slices.Equal(agent.asked, []string{"10.0.70.5"}) {
		t.Errorf("TakeOver() = %v, and the agent heard of %v", err, agent.asked)
	}
}

// A question that cannot be read, or asks for too much, does not come to the agent, and a change
// comes by POST alone.
func TestMalformed(t *testing.T) {
	handler := Handler(&answering{})
	for _, test := range []struct {
		method, path, query string
		status              int
		text                string
	}{
		{http.MethodGet, PathInspect, "check=maybe", 400, "check=\"maybe\" is neither true nor false\n"},
		{http.MethodGet, PathInspect, "pod=fails", 422, "boom\n"},
		{http.MethodGet, PathCarried, "hears=1", 200, ""},
		{http.MethodGet, PathCarried, "hears=2", 400, "hears=\"2\" is neither true nor false\n"},
		{http.MethodGet, PathWitness, "node=n&address=10.0.70.5" + strings.Repeat("&address=10.0.70.6", MostAddresses), 400, "address is given 1025 times: give 1024 at most\n"},
		{http.MethodGet, PathWitness, "node=n" + strings.Repeat("&host=10.0.70.6&control=10.0.0.1&gateway=10.0.0.2", MostHosts+1), 400,
			"host is given 17 times: give 16 at most\ncontrol is given 17 times: give 16 at most\ngateway is given 17 times: give 16 at most\n"},
		{http.MethodGet, PathWitness, "node=n&vlan=4096", 400, "vlan=\"4096\" is no VLAN\n"},
		{http.MethodGet, PathWitness, "host=10.0.0.1", 400, "neither node nor address is given: name the node that may be lost, or addresses\n"},
		{http.MethodGet, PathWitness, "node=n&host=node1&address=::&address=x", 400, "host=\"node1\" is no address\naddress=\"x\" is no address\n"},
		{http.MethodGet, PathPolicyTrace, "from=a/b&port=65536", 400, "port=\"65536\" is no port\n"},
		{http.MethodPost, PathTakeOver, "address=x", 400, "address=\"x\" is no address\n"},
		{http.MethodPost, PathTakeOver, "address=10.0.70.5&address=10.0.70.6", 400, "2 addresses: name one\n"},
		{http.MethodPost, PathTakeOver, "", 400, "0 addresses: name one\n"},
		{http.MethodGet, PathTakeOver, "address=10.0.70.5", 405, "Method Not Allowed\n"},
		{http.MethodPost, PathInspect, "", 405, "Method Not Allowed\n"},
	} {
		if status, text := ask(handler, test.method, test.path, test.query); status != test.status || test.text != "" && text != test.text {
			t.Errorf("%s %s?%.40s: %d %q, want %d %q", test.method, test.path, test.query, status, text, test.status, test.text)
		}
	}
}
