// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/berth-dev/berth/agent/api"
)

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bc-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir + "/agent.sock"
}

func serve(t *testing.T, path string, h http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
}

func TestForwardSendsWhatItGot(t *testing.T) {
	path := socketPath(t)
	var got api.Request
	serve(t, path, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.URL.Path != api.PathCNI {
			t.Errorf("%s: %v", r.URL, err)
		}
		_, _ = w.Write([]byte(`{}`))
	})
	stdin := `{"cniVersion":"1.1.0","socket":"` + path + `","runtimeConfig":{"portMappings":[]}}`
	err := forward("DEL")(&skel.CmdArgs{ContainerID: "c", Netns: "/n", IfName: "eth0", Args: "A=1", StdinData: []byte(stdin)})
	if err != nil {
		t.Fatal(err)
	}
	if got.Command != "DEL" || got.ContainerID != "c" || got.NetNS != "/n" || got.IfName != "eth0" || got.Args != "A=1" || string(got.Config) != stdin {
		t.Errorf("sent %+v", got)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","socket":"/x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := parseConfig(raw); err == nil && c.Socket == "" {
			t.Errorf("parseConfig(%q) has no socket", raw)
		}
	})
}
