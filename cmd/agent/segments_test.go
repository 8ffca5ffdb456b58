// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"testing"
)

// TestNodeUID has the payload of a token of Kubernetes 1.36.
func TestNodeUID(t *testing.T) {
	token := func(payload string) string {
		return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
	}
	const payload = `{"aud":["https://kubernetes.default.svc"],"exp":1,"iss":"https://kubernetes.default.svc","kubernetes.io":{"namespace":"berth-system",` +
		`"node":{"name":"node1","uid":"u1"},"pod":{"name":"berth-agent-x","uid":"u2"},"serviceaccount":{"name":"berth-agent","uid":"u3"}},"sub":"system:serviceaccount:berth-system:berth-agent"}`
	for name, test := range map[string]struct{ token, node, want string }{
		"a pod's":              {token(payload), "node1", "u1"},
		"of another node":      {token(payload), "node2", ""},
		"not bound to a pod":   {token(`{"kubernetes.io":{"namespace":"berth-system"}}`), "node1", ""},
		"no token":             {"", "node1", ""},
		"another form":         {"a.b", "node1", ""},
		"not base64":           {"a.!.b", "node1", ""},
		"not JSON":             {token("{"), "node1", ""},
		"a claim without form": {token(`{"kubernetes.io":7}`), "node1", ""},
	} {
		if got := nodeUID(test.token, test.node); got != test.want {
			t.Errorf("%s: nodeUID() = %q, want %q", name, got, test.want)
		}
	}
}
