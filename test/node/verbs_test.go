// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
)

// cnitool runs CNI's own tool, as another runtime, with the configurations of a folder. Its
// cache of results is the node's, and not the cache of the machine that runs the test.
func (n *node) cnitool(folder string, c *container, args ...string) (string, error) {
	n.t.Helper()
	const enter = `mkdir -p /var/lib/cni && mount --bind "$CACHE" /var/lib/cni && exec "$0" "$@"`
	cmd := n.command("cnitool")
	cmd.Args = append([]string{"unshare", "--mount", "sh", "-c", enter, cmd.Path}, args...)
	cmd.Path = "/usr/bin/unshare"
	cmd.Env = append(cmd.Env, "NETCONFPATH="+folder, "CNI_PATH="+shared.bin, "CACHE="+n.dir+"/cache")
	if c != nil {
		cmd.Args = append(cmd.Args, c.Path())
		cmd.Env = append(cmd.Env, fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", c.pod.Namespace, c.pod.Name, c.pod.UID))
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Try(cmd.Run); err != nil {
		return "", fmt.Errorf("cnitool %s: %w: %s%s", strings.Join(args, " "), err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String(), nil
}

// TestCNITool: CNI's own tool drives every verb in every version of the specification, for
// pods with and without a floating IP, in networks of older versions, too.
func TestCNITool(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "cnitool-a", "10.0.60.11")
	n.write("cache/results/.keep", "")
	before := n.kernel()
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			// The default network's version is another one.
			other := map[string]string{"0.3.1": "1.0.0", "0.4.0": "0.3.1", "1.0.0": "0.4.0", "1.1.0": "0.3.1"}[version]
			n.write("net.d/10-default.conflist", fmt.Sprintf(`{"cniVersion":%q,"name":"default-net","plugins":[
				{"type":"ptp","ipam":{"type":"host-local","subnet":"10.244.0.0/24","dataDir":%q,"routes":[{"dst":"0.0.0.0/0"}]}}]}`, other, n.dir+"/host-local"))
			folder := filepath.Join(n.dir, "runtime-"+version)
			n.write("runtime-"+version+"/berth.conflist", fmt.Sprintf(`{"cniVersion":%q,"name":"berth","plugins":[{"type":"berth-cni","socket":%q}]}`, version, n.dir+"/run/agent.sock"))
			name := strings.ReplaceAll(version, ".", "-")
			pod := createPod(t, n.name, "tool-"+name, "10.70.51.5,2001:db8:70::51:5")
			bind(t, "10.70.51.5,2001:db8:70::51:5", pod)
			floating := newContainer(t, "", pod)
			ordinary := newContainer(t, "", createPod(t, n.name, "tool-ordinary-"+name, ""))
			n.driveVerbs(network, folder, version, floating, ordinary)
			if diff := cmp.Diff(before, n.kernel()); diff != "" {
				t.Errorf("node afterwards (-before +after):\n%s", diff)
			}
		})
	}
	t.Run("the agent's own configuration", func(t *testing.T) {
		// The runtime and the agent agree on the newest version that both know.
		c := newContainer(t, "", createPod(t, n.name, "tool-own", ""))
		out, err := n.cnitool(n.dir+"/net.d", c, "add", "berth")
		if err != nil || versionOf(t, out) != "1.1.0" {
			t.Errorf("add: %s, %v", out, err)
		}
		if _, err := n.cnitool(n.dir+"/net.d", c, "del", "berth"); err != nil {
			t.Error(err)
		}
	})
}

func versionOf(t *testing.T, result string) string {
	t.Helper()
	var r struct{ CNIVersion string }
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		t.Errorf("%q: %v", result, err)
	}
	return r.CNIVersion
}

func (n *node) driveVerbs(network *network, folder, version string, floating, ordinary *container) {
	t := n.t
	t.Helper()
	tool := func(c *container, verb string) string {
		t.Helper()
		out, err := n.cnitool(folder, c, verb, "berth")
		if err != nil {
			t.Error(err)
		}
		return out
	}
	checks := func(c *container) {
		t.Helper()
		_, err := n.cnitool(folder, c, "check", "berth")
		if version == "0.3.1" {
			if err == nil || !strings.Contains(err.Error(), "does not support the CHECK command") {
				t.Errorf("check: %v", err)
			}
		} else if err != nil {
			t.Error(err)
		}
	}
	tool(floating, "status")
	all := []*container{floating, ordinary}
	for _, c := range all {
		tool(c, "del") // nothing was ever there
		if got := versionOf(t, tool(c, "add")); got != version {
			t.Errorf("add returns a result of version %s, want %s", got, version)
		}
		checks(c)
	}
	for _, address := range []string{"10.70.51.5", "2001:db8:70::51:5"} {
		ping(t, network.client, address)
	}
	ping(t, ordinary.Host, "10.70.51.5")
	for _, c := range all {
		tool(c, "del")
		tool(c, "del")
		if c.IP("-o", "link", "show", "type", "veth") != "" {
			t.Errorf("after DEL the container of %s has links", c.pod.Name)
		}
	}
	for _, c := range all {
		tool(c, "add")
	}
	// gc takes down what cnitool remembers, by DEL, and asks for GC without a list.
	tool(floating, "gc")
	if n.carries("10.70.51.5") {
		t.Error("the node carries the address after gc")
	}
}

// call is a runtime's call of a plugin, where nil is the usual.
type call struct {
	verb  string
	env   map[string]string
	conf  map[string]any
	stdin *string
	// broken has standard input that cannot be read.
	broken bool
}

func (n *node) call(t *testing.T, c call) error {
	t.Helper()
	env := map[string]string{
		"CNI_COMMAND": c.verb, "CNI_PATH": "/nowhere", "CNI_CONTAINERID": "none", "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere/netns",
		"CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=none;K8S_POD_UID=none",
	}
	conf := map[string]any{"cniVersion": "1.1.0", "name": "berth", "type": "berth-cni", "socket": n.dir + "/run/agent.sock", "uplink": "eth0", "mode": "macvlan",
		"prevResult": map[string]any{"cniVersion": "1.1.0"}}
	if c.verb == "ADD" {
		delete(conf, "prevResult")
	}
	maps.Copy(env, c.env)
	for key, value := range c.conf {
		conf[key] = value
		if value == nil {
			delete(conf, key)
		}
	}
	raw, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	if c.stdin != nil {
		raw = []byte(*c.stdin)
	}
	cmd := n.command("berth-cni")
	for key, value := range env {
		if value != "" {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
	}
	cmd.Stdin = bytes.NewReader(raw)
	if c.broken {
		folder, err := os.Open(n.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer folder.Close()
		cmd.Stdin = folder
	}
	var out []byte
	err = n.Try(func() (err error) { out, err = cmd.Output(); return err })
	if err == nil {
		return nil
	}
	var e types.Error
	if json.Unmarshal(out, &e) == nil && e.Msg != "" {
		return &e
	}
	return fmt.Errorf("%w: %s", err, out)
}

// TestErrorCodes: every verb of berth-cni fails with the codes of the CNI
// specification, and an error of the runtime changes nothing on the node.
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "codes-a", "10.0.60.11")
	before := n.kernel()
	verbs := []string{"ADD", "DEL", "CHECK", "GC", "STATUS"}
	ofContainer := verbs[:3]
	text := func(s string) *string { return &s }
	type failure struct {
		call
		verbs []string
		code  uint
		text  string
	}
	failures := []failure{
		{call{conf: map[string]any{"cniVersion": "9.0.0"}}, verbs, types.ErrIncompatibleCNIVersion, "version"},
		{call{conf: map[string]any{"cniVersion": "0.3.1"}}, []string{"CHECK"}, types.ErrIncompatibleCNIVersion, "does not allow CHECK"},
		{call{conf: map[string]any{"cniVersion": "1.0.0"}}, []string{"GC"}, types.ErrIncompatibleCNIVersion, "does not allow GC"},
		{call{conf: map[string]any{"cniVersion": "1.0.0"}}, []string{"STATUS"}, types.ErrIncompatibleCNIVersion, "does not allow STATUS"},
		{call{conf: map[string]any{"ipam": map[string]any{"type": "host-local"}}}, []string{"ADD"}, types.ErrUnsupportedField, "host-local"},
		{call{env: map[string]string{"CNI_CONTAINERID": ""}}, ofContainer, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		{call{env: map[string]string{"CNI_IFNAME": ""}}, ofContainer, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME"},
		{call{env: map[string]string{"CNI_NETNS": ""}}, []string{"ADD", "CHECK"}, types.ErrInvalidEnvironmentVariables, "CNI_NETNS"},
		{call{env: map[string]string{"CNI_CONTAINERID": "../none"}}, ofContainer, types.ErrInvalidEnvironmentVariables, "containerID"},
		{call{env: map[string]string{"CNI_IFNAME": "a/b"}}, ofContainer, types.ErrInvalidEnvironmentVariables, "interface name"},
		{call{verb: "UPDATE"}, []string{"UPDATE"}, types.ErrInvalidEnvironmentVariables, "CNI_COMMAND"},
		{call{broken: true}, verbs, types.ErrIOFailure, "stdin"},
		{call{stdin: text(`{"cniVersion":`)}, verbs, types.ErrDecodingFailure, ""},
		{call{conf: map[string]any{"name": nil}}, verbs, types.ErrInvalidNetworkConfig, "name"},
		{call{conf: map[string]any{"name": "a/b"}}, verbs, types.ErrInvalidNetworkConfig, "name"},
		{call{conf: map[string]any{"prevResult": map[string]any{"cniVersion": "1.1.0", "interfaces": []any{}}}}, []string{"ADD"}, types.ErrUnsupportedField, "prevResult"},
		{call{}, []string{"CHECK"}, types.ErrUnknownContainer, "none"},
		{call{env: map[string]string{"CNI_CONTAINERID": "../none"}}, ofContainer, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		{call{env: map[string]string{"CNI_IFNAME": "a/b"}}, ofContainer, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME"},
		{call{env: map[string]string{"CNI_ARGS": "K8S_POD_NAMESPACE=default"}}, []string{"ADD"}, types.ErrInvalidEnvironmentVariables, "CNI_ARGS"},
		{call{conf: map[string]any{"runtimeConfig": 5}}, []string{"ADD"}, types.ErrDecodingFailure, "runtimeConfig"},
		{call{conf: map[string]any{"cni.dev/valid-attachments": "all"}}, []string{"GC"}, types.ErrDecodingFailure, "valid-attachments"},
		{call{env: map[string]string{"CNI_NETNS": n.Path()}}, []string{"ADD"}, types.ErrInvalidNetNS, "namespace is the node's own"},
		{call{}, []string{"ADD"}, types.ErrTryAgainLater, "pod not found"},
		{call{conf: map[string]any{"socket": n.dir + "/none.sock"}}, []string{"ADD", "DEL", "CHECK", "GC"}, types.ErrTryAgainLater, "none.sock"},
		{call{conf: map[string]any{"socket": n.dir + "/none.sock"}}, []string{"STATUS"}, api.CodeNotAvailable, "none.sock"},
	}
	for _, f := range failures {
		for _, verb := range f.verbs {
			f.verb = verb
			t.Run(fmt.Sprintf("%s %d %s", verb, f.code, f.text), func(t *testing.T) {
				want(t, n.call(t, f.call), f.code, f.text)
			})
		}
	}
	t.Run("VERSION", func(t *testing.T) {
		cmd := n.command("berth-cni")
		cmd.Env = append(cmd.Env, "CNI_COMMAND=VERSION")
		out, err := cmd.Output()
		for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			if err != nil || !strings.Contains(string(out), `"`+version+`"`) {
				t.Errorf("VERSION says %s, %v; want %s", out, err, version)
			}
		}
	})
	// A namespace that is gone already is no error.
	for _, netns := range []string{"", "/nowhere/netns"} {
		for range 2 {
			if err := n.call(t, call{verb: "DEL", env: map[string]string{"CNI_NETNS": netns}}); err != nil {
				t.Errorf("DEL of a container that never was, in namespace %q: %v", netns, err)
			}
		}
	}
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// TestErrorsOfPlugins: a plugin's own code reaches the runtime, a failed ADD is undone, and
// DEL succeeds where a plugin says that it does not know the container.
func TestErrorsOfPlugins(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	bin := t.TempDir()
	if err := os.Symlink(shared.bin+"/ptp", bin+"/ptp"); err != nil {
		t.Fatal(err)
	}
	n := network.newNode(t, "codes-b", "10.0.60.11", "--cni-bin-dir", bin)
	plugin := func(script string) {
		t.Helper()
		n.write("plugin", "#!/bin/sh\ncat >/dev/null\necho $CNI_COMMAND >> "+n.dir+"/calls\n"+script)
		if err := exec.Command("install", "-m", "755", n.dir+"/plugin", bin+"/own").Run(); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(verb string, code int) string {
		return fmt.Sprintf(`[ $CNI_COMMAND = %s ] && { echo '{"cniVersion":"1.1.0","code":%d,"msg":"of my own"}'; exit 1; }`+"\n", verb, code)
	}
	ok := `[ $CNI_COMMAND = VERSION ] && echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'
		[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0"}'
		exit 0` + "\n"
	n.write("net.d/10-default.conflist", `{"cniVersion":"1.1.0","name":"default-net","plugins":[{"type":"own"}]}`)
	before := n.kernel()
	c := newContainer(t, "own", createPod(t, n.name, "own", ""))

	plugin(fails("ADD", 142) + ok)
	_, err := n.add(c)
	want(t, err, 142, "of my own", "plugin own", "default-net")
	if calls, err := os.ReadFile(n.dir + "/calls"); err != nil || !slices.Equal(strings.Fields(string(calls)), []string{"ADD", "DEL"}) {
		t.Errorf("the plugin was called %q, %v; want its DEL after the failed ADD", calls, err)
	}
	plugin(ok)
	n.mustAdd(c)
	plugin(fails("CHECK", 143) + fails("DEL", 3) + ok)
	want(t, n.check(c), 143, "of my own")
	n.mustDel(c)
	if err := n.check(c); err == nil {
		t.Error("the container is known after DEL")
	}
	for code, told := range map[int]uint{51: api.CodeLimitedConnectivity, 50: api.CodeNotAvailable, 142: api.CodeNotAvailable} {
		plugin(fails("STATUS", code) + ok)
		netnstest.Eventually(t, func() error {
			err := n.call(t, call{verb: "STATUS"})
			var e *types.Error
			if !errors.As(err, &e) || e.Code != told || !strings.Contains(e.Msg, "of my own") {
				return fmt.Errorf("STATUS where the plugin says %d: %w, want code %d", code, err, told)
			}
			return nil
		})
	}
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
