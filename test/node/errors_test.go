// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestErrors checks the texts that a user reads in the pod's events, and that nothing is left.
func TestErrors(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "errors-a", "10.0.60.11")
	before := n.kernel()
	annotate := func(pod *corev1.Pod, value string) {
		pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: value}
		if _, err := apiOf(t).kube.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	victim := createPod(t, "elsewhere", "victim", "10.0.70.9")
	bind(t, "10.0.70.9", victim)
	cases := []struct {
		name string
		pod  func() *corev1.Pod
		code uint
		text []string
	}{
		{"thief", func() *corev1.Pod { return createPod(t, n.name, "thief", "10.0.70.9") }, api.CodePodNotPlaced,
			[]string{"does not hold the floating IP 10.0.70.9", "victim", string(victim.UID), `node "elsewhere"`}},
		{"free address", func() *corev1.Pod { return createPod(t, n.name, "free", "10.0.70.10") }, api.CodePodNotPlaced,
			[]string{"the FloatingIP does not exist"}},
		{"not placed", func() *corev1.Pod {
			pod := createPod(t, n.name, "stock", "10.0.70.11")
			annotate(pod, "")
			return pod
		}, api.CodePodNotPlaced, []string{"default/stock requests berth.dev/ip", "set spec.schedulerName to berth-scheduler"}},
		{"garbage", func() *corev1.Pod {
			pod := createPod(t, n.name, "garbage", "10.0.70.11")
			annotate(pod, "10.0.70.11,../../etc/passwd")
			return pod
		}, api.CodePodNotPlaced, []string{"annotation cannot be read", "berth.dev/floating-ips"}},
		{"wrong node", func() *corev1.Pod {
			pod := createPod(t, n.name, "wrong-node", "10.0.70.12")
			moved := pod.DeepCopy()
			moved.Spec.NodeName = "elsewhere"
			bind(t, "10.0.70.12", moved)
			return pod
		}, api.CodePodNotPlaced, []string{`bound to node "elsewhere"`}},
		{"too few", func() *corev1.Pod {
			pod := createPod(t, n.name, "too-few", "10.0.70.14,10.0.70.15")
			bind(t, "10.0.70.14,10.0.70.15", pod)
			annotate(pod, "10.0.70.14")
			return pod
		}, api.CodePodNotPlaced, []string{"default/too-few", "it requests 2", `berth.dev/floating-ips="10.0.70.14" names 1`, "delete the pod"}},
		{"one of two is another's", func() *corev1.Pod {
			pod := createPod(t, n.name, "half", "10.0.70.16,10.0.70.9")
			bind(t, "10.0.70.16", pod)
			return pod
		}, api.CodePodNotPlaced, []string{"does not hold the floating IP 10.0.70.9", "victim"}},
		{"no pod", func() *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "never-was"}}
		}, types.ErrTryAgainLater, []string{"pod not found: default/never-was"}},
		{"replaced", func() *corev1.Pod {
			pod := createPod(t, n.name, "replaced", "")
			pod.UID = "an-older-one"
			return pod
		}, types.ErrTryAgainLater, []string{"pod was replaced", "an-older-one"}},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := n.add(newContainer(t, "err"+string(rune('a'+i)), c.pod()))
			want(t, err, c.code, c.text...)
		})
	}
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	t.Run("an annotation without the request opens nothing", func(t *testing.T) {
		pod := createPod(t, n.name, "liar", "")
		annotate(pod, "10.0.70.9")
		c := newContainer(t, "liar", pod)
		r := n.mustAdd(c)
		if !strings.HasPrefix(r.IPs[0].Address.String(), "10.244.") {
			t.Errorf("got %s", r.IPs[0].Address.String())
		}
		n.mustDel(c)
	})
	t.Run("no default network", func(t *testing.T) {
		if err := os.Rename(n.dir+"/net.d/10-default.conflist", n.dir+"/moved"); err != nil {
			t.Fatal(err)
		}
		_, err := n.add(newContainer(t, "nonet", createPod(t, n.name, "nonet", "")))
		want(t, err, api.CodeNetworkMissing, "no default network on this node", "00-berth.conflist", "--default-network")
		pod := createPod(t, n.name, "has-net", "10.0.70.13")
		bind(t, "10.0.70.13", pod)
		c := newContainer(t, "hasnet", pod)
		n.mustAdd(c)
		n.mustDel(c)
	})
	t.Run("agent down", func(t *testing.T) {
		n.kill()
		_, err := n.add(newContainer(t, "down", victim))
		want(t, err, types.ErrTryAgainLater, n.dir+"/run/agent.sock", "kubectl get pods -A")
		n.start()
	})
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

// TestStateFile: a file of a newer agent stays as it is, the agent says what to do, and
// doing that keeps pods running and lets DEL clean up.
func TestStateFile(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "state-a", "10.0.60.11")
	before := n.kernel()
	pod := createPod(t, n.name, "state", "10.0.70.5")
	bind(t, "10.0.70.5", pod)
	c := newContainer(t, "c1", pod)
	ordinary := newContainer(t, "c2", createPod(t, n.name, "state-ordinary", ""))
	n.mustAdd(c)
	n.mustAdd(ordinary)
	n.stop()
	db, err := bbolt.Open(n.dir+"/run/state.db", 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("99")) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	newer, err := os.ReadFile(n.dir + "/run/state.db")
	if err != nil {
		t.Fatal(err)
	}
	n.launch()
	<-n.agent.done
	for _, text := range []string{"state file unusable", n.dir + "/run/state.db", `schema \"99\"`, "--reset-state"} {
		if !strings.Contains(n.agent.text(), text) {
			t.Errorf("the agent's last words lack %q:\n%s", text, n.agent.text())
		}
	}
	if raw, err := os.ReadFile(n.dir + "/run/state.db"); err != nil || !bytes.Equal(raw, newer) {
		t.Errorf("the file was changed (%v)", err)
	}
	ping(t, net.client, "10.0.70.5")
	n.args = append(n.args, "--reset-state")
	n.start()
	ping(t, net.client, "10.0.70.5")
	n.mustDel(c)
	n.mustDel(ordinary)
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("after DEL (-before +after):\n%s", diff)
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
	<-n.agent.done
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

// TestGCOfFurtherInterfaces: the runtime does not know the interfaces of a container but the
// first, and after the loss of the state file nor do records. Links of containers that the
// runtime knows stay; links of other containers go, also where their pod is alive.
func TestGCOfFurtherInterfaces(t *testing.T) {
	t.Parallel()
	for name, plugin := range map[string]string{"veth": `{"type":"berth-veth"}`, "macvlan": `{"type":"berth-vlan","mode":"macvlan"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "gc-further-"+name, "10.0.60.11")
			define(t, newNetworks(t), "default", "floating", `{"cniVersion":"1.1.0","plugins":[`+plugin+`]}`)
			before := n.kernel()
			stays := newContainer(t, "stays", podWith(t, n.name, n.name+"-stays", "10.0.70.5", "floating@data0"))
			goes := newContainer(t, "goes", podWith(t, n.name, n.name+"-goes", "10.0.70.6", "floating"))
			n.mustAdd(stays)
			n.mustAdd(goes)
			n.stop()
			n.args = append(n.args, "--reset-state")
			n.start()
			n.gc(stays, goes)
			ping(t, net.client, "10.0.70.5")
			ping(t, net.client, "10.0.70.6")
			n.gc(stays)
			ping(t, net.client, "10.0.70.5")
			if answers(net.client, "10.0.70.6") {
				t.Error("the address of a container that the runtime does not know answers")
			}
			n.gc()
			for _, c := range []*container{stays, goes} {
				n.mustDel(c)
			}
			if diff := cmp.Diff(before, n.kernel()); diff != "" {
				t.Errorf("after GC of everything (-before +after):\n%s", diff)
			}
		})
	}
}

func TestGC(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "gc-a", "10.0.60.11")
	before := n.kernel()
	var all []*container
	for _, address := range []string{"10.0.70.5", "10.0.70.6", ""} {
		pod := createPod(t, n.name, "gc-"+strings.ReplaceAll(address, ".", "-")+"x", address)
		if address != "" {
			bind(t, address, pod)
		}
		c := newContainer(t, "gc"+pod.Name, pod)
		n.mustAdd(c)
		all = append(all, c)
	}
	n.gc(all[0])
	if err := n.check(all[0]); err != nil {
		t.Errorf("a valid container after GC: %v", err)
	}
	if n.carries("10.0.70.6") {
		t.Error("an invalid container is still there after GC")
	}
	// Links whose record was lost.
	n.stop()
	n.args = append(n.args, "--reset-state")
	n.start()
	n.gc(all[0])
	ping(t, net.client, "10.0.70.5")
	n.gc()
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("after GC of everything (-before +after):\n%s", diff)
	}
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
	// Far less than the ten minutes of the plugin.
	start := time.Now()
	n.mustDel(c)
	if took := time.Since(start); took > time.Minute {
		t.Errorf("DEL took %v", took)
	}
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
