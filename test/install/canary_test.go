// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

// TestCanary: Berth comes to a cluster in use as docs/how-to/installation.md says, to one node
// first and then to all, each of which has another network; and goes. No pod of the default network
// is cut off at any time, also where the agent cannot work yet, and no pod with a floating IP has
// another address.
func TestCanary(t *testing.T) {
	c := newInUse(t)
	canary, firewalled := c.byNetwork[onPTP], c.byNetwork[onFirewalld]
	c.everywhere("used")
	clean, handles := c.nodes(), c.handles()
	// Each is asked from a node of another network.
	used := c.ask(c.byNetwork[onBridge].Host, c.addressesOf("used", onBridge, onFirewalld))
	used.ask(canary.Host, c.ordinary("used-"+onBridge))
	// Firewalld itself drops packets while it is told something.
	behind := c.ask(canary.Host, c.ordinary("used-"+onFirewalld))
	undisturbed := func(name string, do func()) {
		t.Helper()
		c.step(used, name, func() { c.step(behind, name+" (firewalld)", do) })
	}
	stopWatch := c.noForeignAddress()

	begin := time.Now()
	undisturbed("installation on one node", func() {
		c.kubectl("label", "node", canary.Name(), "berth.dev/canary=")
		c.run(append([]string{"install", release, c.chart}, c.canaryOptions()...)...)
		c.createPool()
		c.create(c.workload(4))
		for uid, address := range c.addresses(4) {
			if err := c.AskUntil(c.ctx, address, uid); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("from helm install until all of 4 pods answer a host outside of the cluster: %s", time.Since(begin).Round(100*time.Millisecond))
	})
	traffic := c.ask(c.Cluster.Client(), c.addresses(4))
	c.runOn("kept", canary)
	c.waits("elsewhere", c.byNetwork[onFlannel])
	undisturbed("pods of the default network", func() { c.everywhere("canary") })

	c.step(traffic, "installation on all nodes", func() {
		undisturbed("installation on all nodes", func() {
			c.run("upgrade", release, c.chart, "--reset-then-reuse-values", "--set", "agent.nodeSelector=null")
			c.ready("elsewhere", 1)
			c.says(firewalled, "FirewallRefusesPods", "run on the node: firewall-cmd ")
			if node := c.byNetwork[onCalico]; node != nil {
				c.says(node, "RuntimeDoesNotCallBerth", "Set agent.hostRoot=true")
				c.waits("on-calico", node)
			}
			c.waits("on-firewalld", firewalled)
			c.everywhere("all")
		})
		commands := c.commands("docs/how-to/firewall.md", "\n## firewalld\n")
		behind.stop()
		c.step(used, "the page's commands for firewalld", func() { c.follow(commands) })
		behind = c.ask(canary.Host, c.ordinary("used-"+onFirewalld))
		undisturbed("agents that run plugins in the node's file system", func() {
			c.run("upgrade", release, c.chart, "--reset-then-reuse-values", "--wait", "--set", "agent.hostRoot=true")
		})
	})
	undisturbed("pods of both kinds on all nodes", func() {
		for network, node := range c.byNetwork {
			name := "floating-" + network
			c.create(c.pod(name, floating, c.attached(network), hostname(node)))
			pod := c.get(name)
			if err := c.AskUntil(c.ctx, pod.Status.PodIP, string(pod.UID)); err != nil {
				t.Error(err)
			}
			c.isAttached(network, name)
			c.runOn(name, node)
		}
		for _, name := range []string{"on-calico", "on-firewalld"} {
			if c.byNetwork[strings.TrimPrefix(name, "on-")] != nil {
				c.ready(name, 1)
			}
		}
		c.everywhere("both")
	})
	traffic.stop()
	stopWatch()

	undisturbed("uninstallation", func() {
		c.kubectl("delete", "statefulset", "kept", "--cascade=foreground")
		c.kubectl("delete", "pods", "-l", "app notin ("+strings.Join(c.names("used"), ",")+")", "--wait")
		if out := c.run("uninstall", release); !strings.Contains(out, fmt.Sprintf("%d of %[1]d nodes are clean", len(c.byNetwork))) {
			t.Errorf("the uninstall does not say that the nodes are clean:\n%s", out)
		}
	})
	behind.stop()
	c.step(used, "firewalld as before", func() {
		c.follow(c.commands("docs/how-to/firewall.md", "**Without Berth**"))
		c.asBefore(clean)
		if diff := cmp.Diff(handles, c.handles()); diff != "" {
			t.Errorf("Calico's addresses are not as before:\n%s", diff)
		}
		c.everywhere("after")
	})
	used.stop()
}

// waits creates a pod with a floating IP for a node without a ready agent, and checks that it says
// so.
func (c *inUse) waits(name string, node *lab.Node) {
	c.t.Helper()
	if _, err := c.Client.CoreV1().Pods("default").Create(c.ctx, c.pod(name, floating, hostname(node)), metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	waiting, err := c.Pod(c.ctx, "default", name, witness.BecomesUnschedulable)
	if err != nil {
		c.t.Fatal(err)
	}
	if why := witness.Unschedulable(waiting); !strings.Contains(why, "no Berth agent is ready") {
		c.t.Errorf("pod %s waits because of %q", name, why)
	}
}

// commands returns the commands for firewalld that follow a text of a page.
func (c *inUse) commands(path, text string) string {
	c.t.Helper()
	_, rest, _ := strings.Cut(c.page(path), text)
	block := regexp.MustCompile(`(?m)(^    firewall-cmd .*\n)+`).FindString(rest)
	if block == "" {
		c.t.Fatalf("%s has no commands for firewalld behind %q", path, text)
	}
	return block
}

// names returns the names of a prefix's pods.
func (c *inUse) names(prefix string) []string {
	var all []string
	for network := range c.byNetwork {
		all = append(all, prefix+"-"+network)
	}
	return all
}

// hostname has the scheduler bind a pod to a node.
func hostname(node *lab.Node) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node.Name()} }
}

// canaryOptions returns the options of helm install that the page on installation has for one node.
func (s *site) canaryOptions() []string {
	s.t.Helper()
	command := regexp.MustCompile(`helm install -n berth-system berth oci://ghcr\.io/\S+ --version VERSION (.*) \\\n +(--set-string) '(.*)'\n`).FindStringSubmatch(s.page("docs/how-to/installation.md"))
	if command == nil {
		s.t.Fatal("docs/how-to/installation.md has no helm install for one node")
	}
	return append(strings.Fields(command[1]), command[2], command[3])
}

// ordinary returns the addresses of pods of the default network by UID.
func (s *site) ordinary(names ...string) map[string]string {
	s.t.Helper()
	addresses := map[string]string{}
	for _, name := range names {
		pod := s.get(name)
		addresses[string(pod.UID)] = pod.Status.PodIP
	}
	return addresses
}

func (s *site) get(name string) *v1.Pod {
	s.t.Helper()
	pod, err := s.Client.CoreV1().Pods("default").Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return pod
}

// runOn checks that all pods of an app run on a node.
func (s *site) runOn(app string, node *lab.Node) {
	s.t.Helper()
	list, err := s.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.Spec.NodeName != node.Name() {
			s.t.Errorf("pod %s is on %s, want %s", pod.Name, pod.Spec.NodeName, node.Name())
		}
	}
}
