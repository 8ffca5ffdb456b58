// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/cni/socket/sockettest"
)

func TestForwardSendsWhatItGot(t *testing.T) {
	path := sockettest.Path(t)
	var got api.Request
	sockettest.Serve(t, path, func(w http.ResponseWriter, r *http.Request) {
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
