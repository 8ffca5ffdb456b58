// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
)

func eventually(t *testing.T, f func() error) {
	t.Helper()
	netnstest.Eventually(t, f)
}

func (n *node) carries(address string) bool {
	for _, family := range []string{"-4", "-6"} {
		if strings.Contains(n.IP(family, "neigh", "show", "proxy"), address+" ") || strings.Contains(n.IP(family, "route", "show", "table", "all"), address+" ") {
			return true
		}
	}
	return false
}

// withdrawn complains of the addresses, separated by commas, that the node still
// carries.
func (n *node) withdrawn(addresses string) error {
	var errs []error
	for address := range strings.SplitSeq(addresses, ",") {
		if n.carries(address) {
			errs = append(errs, fmt.Errorf("node %s still carries %s", n.name, address))
		}
	}
	return errors.Join(errs...)
}

// TestWithdraw: whatever takes an address from its pod, also one of several, the node stops
// answering for all of them without waiting for the runtime, for others as well after a restart,
// and says so; DEL still works. A pod from which one was taken by mistake has its network back when
// that is corrected.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "withdraw-a", "10.0.60.11")
	before := n.kernel()
	const two = "10.70.52.7,2001:db8:70::52:7"
	add := func(name, addresses string) *container {
		pod := createPod(t, n.name, "withdraw-"+name, addresses)
		bind(t, addresses, pod)
		c := newContainer(t, name, pod)
		n.mustAdd(c)
		return c
	}
	deleted, finished, stays, mistaken := add("deleted", "10.70.52.5"), add("finished", "10.70.52.6"), add("stays", "10.70.52.8"), add("mistaken", two)
	for _, address := range []string{"10.70.52.5", "10.70.52.6", "10.70.52.7"} {
		ping(t, net.client, address)
	}
	silent := func(addresses string) {
		t.Helper()
		eventually(t, func() error { return n.withdrawn(addresses) })
		for address := range strings.SplitSeq(addresses, ",") {
			if answers(net.client, address) {
				t.Errorf("somebody still answers at %s", address)
			}
		}
	}
	deletePod(t, deleted.pod.Name)
	silent("10.70.52.5")
	now := finished.pod.DeepCopy()
	now.Status.Phase = corev1.PodFailed
	if _, err := apiOf(t).kube.CoreV1().Pods("default").UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	silent("10.70.52.6")
	bind(t, "2001:db8:70::52:7", createPod(t, "elsewhere", "withdraw-another", "2001:db8:70::52:7"))
	n.kill()
	n.start()
	silent(two)
	if err := n.withdrawn("10.70.52.5,10.70.52.6"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	eventually(t, func() error { return eventOn(t, mistaken.pod, "AddressesWithdrawn", "withdraw-another") })
	if shows := n.inspect("default/withdraw-mistaken"); !strings.Contains(shows, "withdrawn: ") || !strings.Contains(shows, "withdraw-another") {
		t.Errorf("inspect:\n%s", shows)
	}
	bind(t, "2001:db8:70::52:7", mistaken.pod)
	// The agent looks at the start and every minute.
	n.kill()
	n.start()
	eventually(t, func() error { return eventOn(t, mistaken.pod, "AddressesRestored", "10.70.52.7") })
	// The event says that it begins.
	eventually(t, func() error {
		if !answers(net.client, "10.70.52.7") {
			return errors.New("nobody answers at 10.70.52.7")
		}
		return nil
	})
	ping(t, net.client, "10.70.52.7")
	ping(t, net.client, "10.70.52.8")
	for _, c := range []*container{deleted, finished, mistaken, stays} {
		n.mustDel(c)
	}
	n.mustBeAs(before)
}

// inspect returns what berth-agent inspect shows of a pod.
func (n *node) inspect(pod string) string {
	n.t.Helper()
	var out []byte
	err := n.Try(func() error {
		var err error
		out, err = n.command("berth-agent", "inspect", "--socket", n.dir+"/run/agent.sock", pod).CombinedOutput()
		return err
	})
	if err != nil {
		n.t.Errorf("inspect: %v\n%s", err, out)
	}
	return string(out)
}

func eventOn(t *testing.T, pod *corev1.Pod, reason, text string) error {
	t.Helper()
	all, err := apiOf(t).kube.EventsV1().Events(pod.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, e := range all.Items {
		if e.Regarding.UID == pod.UID && e.Reason == reason && strings.Contains(e.Note, text) {
			return nil
		}
	}
	return fmt.Errorf("pod %s has no event %s with %q", pod.Name, reason, text)
}

// A plugin after ours hangs or fails, the pod is deleted by force: the node stops answering
// for the address and finishes the work as soon as the plugin lets it, without the
// runtime.
func TestPluginKeepsNothing(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	bin := t.TempDir()
	for _, name := range []string{"ptp", "host-local"} {
		if err := os.Symlink(shared.bin+"/"+name, bin+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	n := net.newNode(t, "keeps-nothing", "10.0.60.11", "--cni-bin-dir", bin)
	n.write("floating.conflist", `{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"berth-veth"},{"type":"chained"}]}`)
	n.stop()
	n.args = append(n.args, "--floating-network", n.dir+"/floating.conflist")
	n.start()
	before := n.kernel()
	// The plugin does what the file of its command says.
	n.write("chained", "#!/bin/sh\ncat > "+n.dir+"/input\n[ -e "+n.dir+"/$CNI_COMMAND ] && . "+n.dir+"/$CNI_COMMAND\n"+
		`sed -e 's/.*"prevResult":\(.*\),"type".*/\1/' `+n.dir+"/input\n")
	if err := exec.Command("install", "-m", "755", n.dir+"/chained", bin+"/chained").Run(); err != nil {
		t.Fatal(err)
	}
	hang := "echo started > " + n.dir + "/started; exec sleep 600\n"
	started := func() error { return os.Remove(n.dir + "/started") }
	allow := func(command string) {
		if err := os.Remove(filepath.Join(n.dir, command)); err != nil {
			t.Fatal(err)
		}
	}

	for name, c := range map[string]struct{ command, script string }{
		"DEL fails": {"DEL", "echo '{\"code\":11,\"msg\":\"not now\"}'; exit 1\n"},
		"DEL hangs": {"DEL", hang},
		"ADD hangs": {"ADD", hang},
	} {
		t.Run(name, func(t *testing.T) {
			n.t = t
			pod := createPod(t, n.name, "keeps-"+strings.ToLower(strings.ReplaceAll(name, " ", "-")), "10.70.53.5")
			bind(t, "10.70.53.5", pod)
			container := newContainer(t, strings.ReplaceAll(name, " ", ""), pod)
			n.write(c.command, c.script)
			ended := make(chan error, 1)
			if c.command == "ADD" {
				go func() { _, err := n.add(container); ended <- err }()
			} else {
				n.mustAdd(container)
				go func() { ended <- n.del(container) }()
			}
			if strings.Contains(c.script, "started") {
				eventually(t, started)
			}
			deletePod(t, pod.Name)
			eventually(t, func() error { return n.withdrawn("10.70.53.5") })
			if answers(net.client, "10.70.53.5") {
				t.Error("somebody still answers")
			}
			if name == "DEL hangs" {
				// The sleep that stands for the plugin would end later than the test.
				n.kill()
			}
			if err := <-ended; err == nil {
				t.Errorf("%s succeeds", name)
			}
			allow(c.command)
			if name == "DEL hangs" {
				n.start()
			}
			n.becomes(before)
			n.mustDel(container)
		})
	}
	n.t = t
}

func mac(n *node) string { return macOfLink(n.Host) }

func macOfLink(h *netnstest.Host) string {
	f := strings.Fields(h.IP("-o", "link", "show", "eth0"))
	for i := range f {
		if f[i] == "link/ether" {
			return f[i+1]
		}
	}
	return "no MAC"
}

// systemd-networkd deletes all rules and routes that it does not know when it starts, as at an
// upgrade of the node's packages, and the kernel forgets what hangs on a link that goes down. The
// agent puts its own back.
func TestRoutesAndRulesDeleted(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "routes-a", "10.0.60.11")
	pod := createPod(t, n.name, "routes", "10.70.54.5")
	bind(t, "10.70.54.5", pod)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	before := n.kernel()
	for _, lost := range []func(){
		func() { n.IP("rule", "flush", "protocol", "98") },
		func() { n.IP("route", "flush", "table", "all", "proto", "98") },
		func() {
			n.IP("link", "set", "eth0", "down")
			n.IP("link", "set", "eth0", "up")
			n.IP("-6", "addr", "replace", "2001:db8:60::11/64", "dev", "eth0", "nodad")
			n.IP("route", "replace", "default", "via", "10.0.60.1")
			n.IP("-6", "route", "replace", "default", "via", "2001:db8:60::1")
		},
	} {
		lost()
		n.becomes(before)
		ping(t, net.client, "10.70.54.5")
	}
	n.mustDel(c)
}
