// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// losses are the ways in which a pod loses its address.
func losses() map[string]func(t *testing.T, pod *corev1.Pod) {
	return map[string]func(t *testing.T, pod *corev1.Pod){
		"deleted": func(t *testing.T, pod *corev1.Pod) { deletePod(t, pod.Name) },
		"replaced": func(t *testing.T, pod *corev1.Pod) {
			deletePod(t, pod.Name)
			bind(t, "10.0.70.5", createPod(t, "elsewhere", pod.Name, "10.0.70.5"))
		},
		"finished": func(t *testing.T, pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodFailed
			if _, err := apiOf(t).kube.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// TestWithdraw: whatever takes the address from the pod, the node stops
// answering for it without waiting for the runtime, and DEL still works.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	for name, lose := range losses() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "withdraw-"+name, "10.0.60.11")
			before := n.kernel()
			pod := createPod(t, n.name, "withdraw-"+name, "10.0.70.5")
			bind(t, "10.0.70.5", pod)
			c := newContainer(t, "c1", pod)
			n.mustAdd(c)
			ping(t, net.client, "10.0.70.5")
			lose(t, pod)
			eventually(t, func() error { return n.withdrawn("10.0.70.5") })
			if answers(net.client, "10.0.70.5") {
				t.Error("somebody still answers")
			}
			n.kill()
			n.start()
			if err := n.withdrawn("10.0.70.5"); err != nil {
				t.Errorf("after a restart: %v", err)
			}
			n.mustDel(c)
			n.mustBeAs(before)
		})
	}
}

// TestDamagedState: with its file damaged the agent begins anew by itself. Pods keep their
// network, also over another restart, and whoever loses an address is still withdrawn.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	for name, lose := range losses() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "damaged-"+name, "10.0.60.11")
			before := n.kernel()
			pod, other := createPod(t, n.name, "damaged-"+name, "10.0.70.5"), createPod(t, n.name, "damaged-other-"+name, "10.0.70.6")
			bind(t, "10.0.70.5", pod)
			bind(t, "10.0.70.6", other)
			c, stays := newContainer(t, "c1", pod), newContainer(t, "c2", other)
			n.mustAdd(c)
			n.mustAdd(stays)
			n.kill()
			n.write("run/state.db", "this is not a database, but somebody may want to look at it")
			n.start()
			if raw, err := filepath.Glob(n.dir + "/run/state.db.bak-*"); err != nil || len(raw) != 1 {
				t.Errorf("the damaged file is kept as %q, %v", raw, err)
			}
			n.kill()
			n.start()
			ping(t, net.client, "10.0.70.5")
			lose(t, pod)
			eventually(t, func() error { return n.withdrawn("10.0.70.5") })
			if answers(net.client, "10.0.70.5") {
				t.Error("somebody still answers")
			}
			ping(t, net.client, "10.0.70.6")
			n.mustDel(c)
			n.mustDel(stays)
			n.mustBeAs(before)
		})
	}
}

// TestCorrected: somebody gives the address of a running pod away by mistake, and corrects
// it. The node withdraws the address and the pod's events say so; then the pod has its
// network back. The operator sees both on the node.
func TestCorrected(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "corrected", "10.0.60.11")
	pod := createPod(t, n.name, "corrected", "10.0.70.5")
	bind(t, "10.0.70.5", pod)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	if shows := n.inspect("default/corrected"); !strings.Contains(shows, "added") || !strings.Contains(shows, "10.0.70.5") {
		t.Errorf("inspect:\n%s", shows)
	}
	bind(t, "10.0.70.5", createPod(t, "elsewhere", "another", "10.0.70.5"))
	n.kill()
	n.start()
	eventually(t, func() error { return n.withdrawn("10.0.70.5") })
	eventually(t, func() error { return eventOn(t, pod, "AddressesWithdrawn", "another") })
	if shows := n.inspect("default/corrected"); !strings.Contains(shows, "withdrawn: ") || !strings.Contains(shows, "another") {
		t.Errorf("inspect:\n%s", shows)
	}
	if answers(net.client, "10.0.70.5") {
		t.Error("somebody still answers")
	}
	bind(t, "10.0.70.5", pod)
	// The agent looks at the start and every minute.
	n.kill()
	n.start()
	eventually(t, func() error { return eventOn(t, pod, "AddressesRestored", "10.0.70.5") })
	ping(t, net.client, "10.0.70.5")
	n.mustDel(c)
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
			pod := createPod(t, n.name, "keeps-"+strings.ToLower(strings.ReplaceAll(name, " ", "-")), "10.0.70.5")
			bind(t, "10.0.70.5", pod)
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
			eventually(t, func() error { return n.withdrawn("10.0.70.5") })
			if answers(net.client, "10.0.70.5") {
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

// TestPartition: a node is cut off, its pod's address moves to another node and
// works there; when the first node is back it lets go at once and nobody has
// to clear a neighbour cache.
func TestPartition(t *testing.T) {
	t.Parallel()
	for name, agentLives := range map[string]bool{"agent lives": true, "agent dies": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			suffix := strings.Fields(name)[1]
			a := net.newNode(t, "partition-a-"+suffix, "10.0.60.11")
			b := net.newNode(t, "partition-b-"+suffix, "10.0.60.12")
			pod := createPod(t, a.name, "partition-"+suffix, "10.0.70.5")
			bind(t, "10.0.70.5", pod)
			ca := newContainer(t, "a", pod)
			a.mustAdd(ca)
			ping(t, net.client, "10.0.70.5")

			net.wire.Port(a.port, false)
			if !agentLives {
				a.kill()
			}
			deletePod(t, pod.Name)
			again := createPod(t, b.name, pod.Name, "10.0.70.5")
			bind(t, "10.0.70.5", again)
			cb := newContainer(t, "b", again)
			b.mustAdd(cb)
			// No flush: the announcement alone updates the client.
			eventually(t, func() error {
				_, err := net.client.Command("ping", "-c", "1", "-W", "1", "10.0.70.5")
				return err
			})
			if agentLives {
				// Until the dead connection has been noticed.
				eventually(t, func() error {
					if !strings.Contains(a.agent.text(), "Cannot check the floating IPs") {
						return errors.New("the agent has not noticed that it is cut off")
					}
					return nil
				})
			}
			net.wire.Port(a.port, true)
			if !agentLives {
				a.launch()
			}
			back := time.Now()
			eventually(t, func() error { return a.withdrawn("10.0.70.5") })
			t.Logf("let go after %v", time.Since(back))
			for range 3 {
				net.client.IP("neigh", "del", "10.0.70.5", "dev", "eth0")
				ping(t, net.client, "10.0.70.5")
			}
			if !strings.Contains(net.client.IP("neigh", "show", "10.0.70.5"), mac(b)) {
				t.Errorf("the client has %q, want %s", net.client.IP("neigh", "show", "10.0.70.5"), mac(b))
			}
			a.ready()
			a.mustDel(ca)
			ping(t, net.client, "10.0.70.5")
			b.mustDel(cb)
		})
	}
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

// TestNewSandbox: the kubelet replaces a pod's sandbox; the old one's DEL comes
// after the new one's ADD.
func TestNewSandbox(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "sandbox-a", "10.0.60.11")
	before := n.kernel()
	pod := createPod(t, n.name, "sandbox", "10.0.70.5")
	bind(t, "10.0.70.5", pod)
	old, fresh := newContainer(t, "old", pod), newContainer(t, "new", pod)
	n.mustAdd(old)
	n.mustAdd(fresh)
	ping(t, net.client, "10.0.70.5")
	n.kill()
	n.start()
	n.mustDel(old)
	ping(t, net.client, "10.0.70.5")
	if err := n.check(fresh); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	n.mustDel(fresh)
	n.mustBeAs(before)
}

// The kernel forgets what hangs on a link that goes down.
func TestUplinkFlap(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "flap-a", "10.0.60.11")
	pod := createPod(t, n.name, "flap", "10.0.70.5")
	bind(t, "10.0.70.5", pod)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	n.IP("link", "set", "eth0", "down")
	n.IP("link", "set", "eth0", "up")
	n.IP("route", "add", "default", "via", "10.0.60.1")
	eventually(t, func() error { return n.check(c) })
	ping(t, net.client, "10.0.70.5")
	n.mustDel(c)
}

// systemd-networkd deletes all rules and routes that it does not know when it starts, as at an upgrade of the
// node's packages. The agent puts its own back by the event; it looks by itself once a minute only.
func TestRoutesAndRulesDeleted(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "routes-a", "10.0.60.11")
	pod := createPod(t, n.name, "routes", "10.0.70.5")
	bind(t, "10.0.70.5", pod)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	look := func() string {
		return n.IP("rule") + n.IP("-6", "rule") + n.IP("route", "show", "table", "all", "proto", "98")
	}
	before := look()
	rules, routes := []string{"rule", "flush", "protocol", "98"}, []string{"route", "flush", "table", "all", "proto", "98"}
	// More often than the agent looks after an ADD anyway.
	for _, lost := range [][]string{rules, routes, rules, routes, rules, routes, rules, routes} {
		n.IP(lost...)
		// Shorter than the minute after which the agent would look without an event.
		within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		tick := time.NewTicker(100 * time.Millisecond)
		for look() != before && within.Err() == nil {
			<-tick.C
		}
		tick.Stop()
		cancel()
		if diff := cmp.Diff(before, look()); diff != "" {
			t.Errorf("after ip %s:\n%s", strings.Join(lost, " "), diff)
		}
		ping(t, net.client, "10.0.70.5")
	}
	n.mustDel(c)
}
