// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

// remembers answers ADD with a result of CNI 1.0.0 and keeps the request.
type remembers struct {
	fakeHandler
	got *api.Request
	err error
}

func (r *remembers) Add(_ context.Context, req *api.Request) (json.RawMessage, error) {
	r.got = req
	return json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.0.70.5/24","interface":0}]}`), r.err
}

// callAs makes a call as berth-cni does; an empty value of env takes a variable away.
func callAs(t *testing.T, s *Server, config string, env map[string]string) (relay.Answer, *types.Error) {
	t.Helper()
	values := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere", "CNI_ARGS": "A=100%;B=\n",
	}
	var headers strings.Builder
	for _, variable := range relay.Variables() {
		value, given := env[variable]
		if !given {
			value = values[variable]
		}
		headers.WriteString(relay.Line(variable, value))
	}
	answer, err := relay.Post(s.Socket, relay.Path, headers.String(), []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	if answer.Outcome != relay.Error {
		return answer, nil
	}
	var e types.Error
	if err := json.Unmarshal(answer.Body, &e); err != nil {
		t.Fatalf("%q: %v", answer.Body, err)
	}
	return answer, &e
}

// The result of ADD has the version of the runtime's configuration.
func TestServeCall(t *testing.T) {
	handler := &remembers{}
	s := newServer(t, handler)
	stop := run(t, s)
	for _, version := range relay.Versions() {
		config := `{"cniVersion":"` + version + `","name":"berth"}`
		answer, e := callAs(t, s, config, nil)
		var result struct {
			CNIVersion string
			IPs        []struct{ Address string }
		}
		if err := json.Unmarshal(answer.Body, &result); err != nil || e != nil || result.CNIVersion != version || len(result.IPs) != 1 || result.IPs[0].Address != "10.0.70.5/24" {
			t.Errorf("version %s: %q, %v, %v", version, answer.Body, err, e)
		}
		want := api.Request{Command: "ADD", ContainerID: "c", NetNS: "/n", IfName: "eth0", Args: "A=100%;B=\n", Config: json.RawMessage(config)}
		if got := handler.got; got.Command != want.Command || got.ContainerID != want.ContainerID || got.NetNS != want.NetNS || got.IfName != want.IfName ||
			got.Args != want.Args || string(got.Config) != config {
			t.Errorf("the agent got %+v", got)
		}
	}
	for _, verb := range []string{"DEL", "GC", "STATUS"} {
		if answer, e := callAs(t, s, `{"cniVersion":"1.1.0","name":"berth"}`, map[string]string{"CNI_COMMAND": verb}); e != nil || answer.Outcome != relay.Result || len(answer.Body) != 0 {
			t.Errorf("%s: %+v, %v", verb, answer, e)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A call that no runtime may make fails with the code of the specification, and nobody acts on it.
func TestServeCallRefuses(t *testing.T) {
	handler := &remembers{}
	s := newServer(t, handler)
	stop := run(t, s)
	const good = `{"cniVersion":"1.1.0","name":"berth"}`
	env := func(pairs ...string) map[string]string {
		all := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			all["CNI_"+pairs[i]] = pairs[i+1]
		}
		return all
	}
	for name, c := range map[string]struct {
		config string
		env    map[string]string
		code   uint
		text   string
	}{
		"no container":          {good, env("CONTAINERID", ""), types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		"no namespace":          {good, env("NETNS", ""), types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		"no path, DEL":          {good, env("COMMAND", "DEL", "PATH", ""), types.ErrInvalidEnvironmentVariables, "CNI_PATH"},
		"no namespace, CHECK":   {good, env("COMMAND", "CHECK", "NETNS", ""), types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		"a path as container":   {good, env("CONTAINERID", "../c"), types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID: "},
		"a path as interface":   {good, env("IFNAME", "a/b"), types.ErrInvalidEnvironmentVariables, "CNI_IFNAME: "},
		"unknown command":       {good, env("COMMAND", "UPDATE"), types.ErrInvalidEnvironmentVariables, "CNI_COMMAND"},
		"no command":            {good, env("COMMAND", ""), types.ErrInvalidEnvironmentVariables, "CNI_COMMAND"},
		"no JSON":               {`{"cniVersion":5`, nil, types.ErrDecodingFailure, "configuration"},
		"another type":          {`{"cniVersion":5,"name":"berth"}`, nil, types.ErrDecodingFailure, ""},
		"no name":               {`{"cniVersion":"1.1.0"}`, nil, types.ErrInvalidNetworkConfig, "name"},
		"a path as name":        {`{"cniVersion":"1.1.0","name":"a/b"}`, nil, types.ErrInvalidNetworkConfig, "name"},
		"a newer version":       {`{"cniVersion":"9.0.0","name":"berth"}`, nil, types.ErrIncompatibleCNIVersion, "version"},
		"no version":            {`{"name":"berth"}`, nil, types.ErrIncompatibleCNIVersion, "version"},
		"no version at all":     {`{"cniVersion":"new","name":"berth"}`, env("COMMAND", "GC"), types.ErrDecodingFailure, ""},
		"CHECK of an old one":   {`{"cniVersion":"0.3.1","name":"berth"}`, env("COMMAND", "CHECK"), types.ErrIncompatibleCNIVersion, "does not allow CHECK"},
		"GC of an old one":      {`{"cniVersion":"1.0.0","name":"berth"}`, env("COMMAND", "GC"), types.ErrIncompatibleCNIVersion, "does not allow GC"},
		"STATUS of an old one":  {`{"cniVersion":"1.0.0","name":"berth"}`, env("COMMAND", "STATUS"), types.ErrIncompatibleCNIVersion, "does not allow STATUS"},
		"the agent's own error": {good, env("COMMAND", "CHECK"), 999, "broken"},
		"too large":             {strings.Repeat(" ", relay.MaxBytes+1) + good, nil, types.ErrIOFailure, "configuration"},
	} {
		if _, e := callAs(t, s, c.config, c.env); e == nil || e.Code != c.code || !strings.Contains(e.Msg+e.Details, c.text) {
			t.Errorf("%s: %v, want code %d and %q", name, e, c.code, c.text)
		}
	}
	if handler.got != nil {
		t.Errorf("the agent acted on %+v", handler.got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
