// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/berth-dev/berth/cni/api"
)

func TestParseArgs(t *testing.T) {
	cases := map[string]struct {
		args string
		want api.Pod
		text string
	}{
		"kubelet":      {"IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c", api.Pod{Namespace: "a", Name: "b", UID: "c"}, ""},
		"no UID":       {"K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", api.Pod{Namespace: "a", Name: "b", UID: ""}, ""},
		"trailing":     {"K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;", api.Pod{Namespace: "a", Name: "b", UID: ""}, ""},
		"empty":        {"", api.Pod{}, "names no pod"},
		"no name":      {"K8S_POD_NAMESPACE=a", api.Pod{}, "names no pod"},
		"not pairs":    {"K8S_POD_NAMESPACE", api.Pod{}, "not key=value"},
		"another path": {"K8S_POD_NAMESPACE=a;K8S_POD_NAME=../secrets", api.Pod{}, "no name of a pod"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseArgs(c.args)
			if c.text == "" && (err != nil || got != c.want) {
				t.Errorf("parseArgs() = %v, %v, want %v", got, err, c.want)
			}
			if c.text != "" && (!errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("parseArgs() = %v, %v, want %q", got, err, c.text)
			}
		})
	}
}

// The CNI specification has the rules for container IDs, the kernel for interface names.
func TestCheckIDs(t *testing.T) {
	cases := map[string]struct {
		containerID, ifName string
		text                string
	}{
		"containerd":                       {strings.Repeat("0123456789abcdef", 4), "eth0", ""},
		"all kinds of characters":          {"0aZ.b_c-d", "eth0.1-x_y", ""},
		"one character":                    {"c", "e", ""},
		"no limit of the length":           {strings.Repeat("c", 2*maxContainerID), "eth0", ""},
		"no container ID":                  {"", "eth0", "missing containerID"},
		"first character is a dot":         {".c", "eth0", "invalid characters in containerID"},
		"first character is a dash":        {"-c", "eth0", "invalid characters in containerID"},
		"first character is an underscore": {"_c", "eth0", "invalid characters in containerID"},
		"a slash":                          {"a/c", "eth0", "invalid characters in containerID"},
		"a space":                          {"a c", "eth0", "invalid characters in containerID"},
		"a letter of another script":       {"cä", "eth0", "invalid characters in containerID"},
		"a NUL in the container ID":        {"a\x00c", "eth0", "invalid characters in containerID"},
		"a newline at the end":             {"c\n", "eth0", "invalid characters in containerID"},
		"interface name of 15 characters":  {"c", "eth456789012345", ""},
		"interface name of 16 characters":  {"c", "eth4567890123456", "interface name is too long"},
		"no interface name":                {"c", "", "interface name is empty"},
		"interface name is the parent":     {"c", "..", "interface name is . or .."},
		"interface name with a slash":      {"c", "a/b", "contains / or :"},
		"interface name with a tab":        {"c", "a\tb", "whitespace"},
		"interface name with a NUL":        {"c", "a\x00b", "contains NUL"},
		"interface name with a colon":      {"c", "eth0:1", "contains / or :"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := checkIDs(&api.Request{ContainerID: c.containerID, IfName: c.ifName})
			if c.text == "" && err != nil {
				t.Errorf("checkIDs() = %v", err)
			}
			if c.text != "" && (!errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("checkIDs() = %v, want %q", err, c.text)
			}
		})
	}
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c")
	f.Add(";;=;K8S_POD_NAME==")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseArgs(text)
		if err == nil && (p.Namespace == "" || p.Name == "" || strings.ContainsAny(p.Namespace+p.Name+p.UID, "/%\x00")) {
			t.Errorf("parseArgs(%q) = %+v", text, p)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"runtimeConfig":{"portMappings":[]},"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`))
	f.Add([]byte(`{"cni.dev/attachments":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseConfig(raw)
		if err == nil && c.hasAttachments != (c.ValidAttachments != nil) {
			t.Errorf("parseConfig(%q) = %+v", raw, c)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"command":"ADD","containerID":"c","netns":"/run/netns/x","ifName":"eth0","config":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var req api.Request
		if json.Unmarshal(raw, &req) != nil || checkIDs(&req) != nil {
			return
		}
		if req.ContainerID == "" || len(req.IfName) > 15 || strings.ContainsRune(req.ContainerID+req.IfName, 0) {
			t.Errorf("checkIDs accepts %+v", req)
		}
	})
}
