// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestErrors checks what a user reads in the pod's events, one error of each code, and that nothing
// is left.
func TestErrors(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "errors-a", "10.0.60.11")
	before := n.kernel()
	victim := createPod(t, "elsewhere", "victim", "10.70.29.9")
	bind(t, "10.70.29.9", victim)
	thief := createPod(t, n.name, "thief", "10.70.29.16,10.70.29.9")
	bind(t, "10.70.29.16", thief)
	_, err := n.add(newContainer(t, "thief", thief))
	want(t, err, api.CodePodNotPlaced, "does not hold the floating IP 10.70.29.9", "victim", string(victim.UID), `node "elsewhere"`)
	_, err = n.add(newContainer(t, "nobody", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "never-was"}}))
	want(t, err, types.ErrTryAgainLater, "pod not found: default/never-was")
	// An annotation without the request opens nothing.
	liar := podObject(n.name, "liar")
	liar.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: "10.70.29.9"}
	c := newContainer(t, "liar", create(t, liar))
	if r := n.mustAdd(c); !strings.HasPrefix(r.IPs[0].Address.String(), "10.244.") {
		t.Errorf("got %s", r.IPs[0].Address.String())
	}
	n.mustDel(c)
	if err := os.Remove(n.dir + "/net.d/10-default.conflist"); err != nil {
		t.Fatal(err)
	}
	_, err = n.add(newContainer(t, "nonet", createPod(t, n.name, "nonet", "")))
	want(t, err, api.CodeNetworkMissing, "no default network on this node", "00-berth.conflist", "--default-network")
	pod := createPod(t, n.name, "has-net", "10.70.29.13")
	bind(t, "10.70.29.13", pod)
	c = newContainer(t, "hasnet", pod)
	n.mustAdd(c)
	n.mustDel(c)
	n.mustBeAs(before)
	n.kill()
	_, err = n.add(newContainer(t, "down", victim))
	want(t, err, types.ErrTryAgainLater, n.dir+"/run/agent.sock", "kubectl get pods -A")
}

func want(t *testing.T, err error, code uint, texts ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a CNI error", err)
	}
	if e.Code != code {
		t.Errorf("code %d, want %d: %v", e.Code, code, e)
	}
	for _, text := range texts {
		if !strings.Contains(e.Msg, text) {
			t.Errorf("%q lacks %q", e.Msg, text)
		}
	}
}

func TestSocketAndConfiguration(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "socket-a", "10.0.60.11")
	for path, mode := range map[string]os.FileMode{"/run": 0o700, "/run/agent.sock": 0o600, "/run/state.db": 0o600} {
		info, err := os.Stat(n.dir + path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", path, info.Mode(), err, mode)
		}
	}
	raw, err := os.ReadFile(n.dir + "/net.d/00-berth.conflist")
	if err != nil || !strings.Contains(string(raw), `"type": "berth-cni"`) {
		t.Errorf("configuration: %s, %v", raw, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.agent.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000203000\n") {
		t.Errorf("the agent of these tests does not run with the three capabilities of its manifest: %v\n%s", err, status)
	}
	// A second agent leaves the first alone.
	first := n.agent
	n.launch()
	n.ended("beside another one")
	if !strings.Contains(n.agent.text(), "another agent runs on this node") {
		t.Errorf("the second agent said:\n%s", n.agent.text())
	}
	n.agent = first
	n.ready()
}

// gc is GC by a runtime that has the containers, of which it knows the first interface.
func (n *node) gc(keep ...*container) {
	n.t.Helper()
	valid := []map[string]string{}
	for _, c := range keep {
		valid = append(valid, map[string]string{"containerID": c.id, "ifname": "eth0"})
	}
	if _, err := n.cni([]string{"CNI_COMMAND=GC", "CNI_PATH=/nowhere"}, map[string]any{"cni.dev/valid-attachments": valid}); err != nil {
		n.t.Fatalf("GC: %v", err)
	}
}

// TestGC: containers that the runtime does not know go, also further interfaces, and links whose
// record was lost with the state file; those that it knows stay.
func TestGC(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "gc-a", "10.0.60.11")
	define(t, newNetworks(t), "default", "gc-floating", `{"cniVersion":"1.1.0","plugins":[{"type":"berth-veth"}]}`)
	before := n.kernel()
	add := func(name, address, networks string) *container {
		c := newContainer(t, name, podWith(t, n.name, "gc-"+name, address, networks))
		n.mustAdd(c)
		return c
	}
	stays, goes, ordinary := add("stays", "10.70.30.5", ""), add("goes", "10.70.30.6", ""), add("ordinary", "", "")
	further, lost := add("further", "10.70.30.7", "gc-floating@data0"), add("lost", "10.70.30.8", "gc-floating")
	n.gc(stays, further, lost)
	if err := n.check(stays); err != nil {
		t.Errorf("a valid container after GC: %v", err)
	}
	if err := n.withdrawn("10.70.30.6"); err != nil {
		t.Error(err)
	}
	n.stop()
	n.args = append(n.args, "--reset-state")
	n.start()
	n.gc(stays, further)
	ping(t, net.client, "10.70.30.5")
	ping(t, net.client, "10.70.30.7")
	if answers(net.client, "10.70.30.8") {
		t.Error("the address of a container that the runtime does not know answers")
	}
	n.gc()
	// Without records only DEL ends what other plugins made.
	for _, c := range []*container{stays, goes, ordinary, further, lost} {
		n.mustDel(c)
	}
	n.mustBeAs(before)
}

// TestPluginHangs: an ADD whose runtime gave up is undone.
func TestPluginHangs(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	bin := t.TempDir()
	if err := os.Symlink(shared.bin+"/ptp", bin+"/ptp"); err != nil {
		t.Fatal(err)
	}
	n := net.newNode(t, "hang-a", "10.0.60.11", "--cni-bin-dir", bin)
	script := "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = ADD ] && { echo started > " + n.dir + "/started; exec sleep 600; }\nexit 0\n"
	n.write("hang", script)
	if err := exec.Command("install", "-m", "755", n.dir+"/hang", bin+"/ptp").Run(); err != nil {
		t.Fatal(err)
	}
	before := n.kernel()
	c := newContainer(t, "hang", createPod(t, n.name, "hang", ""))
	cmd := n.command("berth-cni")
	cmd.Env = append(cmd.Env, c.env("ADD")...)
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"berth","type":"berth-cni","socket":"` + n.dir + `/run/agent.sock"}`)
	n.Run(cmd.Start)
	eventually(t, func() error { _, err := os.Stat(n.dir + "/started"); return err })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, func() error {
		if !strings.Contains(n.agent.text(), "plugin ended before it finished") {
			return errors.New("the agent still waits for the plugin")
		}
		return nil
	})
	n.mustDel(c)
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
